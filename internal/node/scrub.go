package node

import (
	"time"

	"penstock/internal/node/datadir"
	"penstock/internal/node/partition"
	"penstock/internal/node/scrub"
)

// newScrub makes the scrub, which reads and verifies this node's segments, commit log files and small files in the
// background. Open calls it after recovery.
func (e *Engine) newScrub() *scrub.Scrub {
	n := scrub.Env{
		Host: e.host, Log: e.log, Disk: e.disk, Stop: e.stop, Interval: e.opts.ScrubInterval, Copies: e.copiesToScrub,
		CommitLog: e.store.CommitLog(), Failed: func() bool { return e.store.Failure() != nil },
		MarkRotten: e.store.Flusher().MarkRotten, WithNodeFile: e.node.With, Topics: e.topicFiles,
	}
	if e.cluster != nil {
		n.Shortened = e.cluster.Shortened
	}
	return scrub.New(n)
}

// startScrub starts those goroutines of the scrub that an interval needs and that do not run yet. Open calls it, and
// then the holder of changing.
func (e *Engine) startScrub(interval time.Duration) {
	if interval > 0 && !e.started.scrub {
		e.started.scrub = true
		e.background(e.scrub.ReadSegments)
		e.background(e.scrub.ReadFiles)
	}
	if (interval > 0 || e.members.others()) && !e.started.retries {
		e.started.retries = true
		e.background(e.scrub.RetryReads)
	}
}

// copiesToScrub returns the partitions of which this node has a log, except those of quarantined topics.
func (e *Engine) copiesToScrub() []scrub.Copy {
	var all []scrub.Copy
	for _, pt := range e.store.Partitions() {
		if !pt.Topic().Quarantined && pt.Replica().HasLog() {
			all = append(all, scrubbedCopy{pt})
		}
	}
	return all
}

// scrubbedCopy is a partition as the scrub sees it.
type scrubbedCopy struct{ *partition.Partition }

func (c scrubbedCopy) Topic() string        { return c.Partition.Topic().Name }
func (c scrubbedCopy) WaitsForDevice() bool { return c.Replica().IsWaitingForDevice() }
func (c scrubbedCopy) DeviceReads()         { c.Replica().DeviceReads() }

func (e *Engine) topicFiles() []scrub.TopicFile {
	var all []scrub.TopicFile
	for _, t := range e.Topics() {
		all = append(all, func(check func(*datadir.Topic)) { e.withTopicFile(t, check) })
	}
	return all
}

// withTopicFile implements scrub.TopicFile. It calls check with the content that topic.json should have, and keeps
// topic.json from being replaced meanwhile: it holds catalog. It does not call check for a deleted topic.
func (e *Engine) withTopicFile(t *Topic, check func(*datadir.Topic)) {
	e.host.Lock(&e.catalog)
	defer e.catalog.Unlock()
	if !t.OfPartitions().Deleted.Load() {
		check(t.File())
	}
}
