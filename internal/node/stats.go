package node

import (
	"time"

	"penstock/segment/aio"
)

// Now returns the time by the engine's clock, which messages get when they are stored. It does not follow steps of the
// wall clock.
func (e *Engine) Now() time.Time { return time.Unix(0, e.clock.NowNs()) }

// DiskFreeBytes returns how many bytes this process may still write to the file system of the data directory. It asks
// the file system, and may wait for it.
func (e *Engine) DiskFreeBytes() (int64, error) { return e.disk.FreeBytes() }

// DiskFreeInodes returns how many files may still be made there, and whether the file system says so: on some, only
// space limits them. It asks the file system, and may wait for it.
func (e *Engine) DiskFreeInodes() (count int64, limited bool) {
	count, err := e.disk.FreeInodes()
	return count, err == nil && count != aio.NoInodeLimit
}

// Stats returns a snapshot of the topic of that name ("": of all topics, sorted by name), with the channel of that name
// ("": all, sorted by name). The result is empty if there is no such topic, and belongs to the caller. Stats takes each
// channel's lock, so it may wait while a channel reads from the disk.
func (e *Engine) Stats(topic, channel string) []TopicStats {
	var topics []*Topic
	if topic == "" {
		topics = e.catalog.Topics()
	} else if t, ok := e.catalog.LookupTopic(topic); ok {
		topics = []*Topic{t}
	}
	out := make([]TopicStats, 0, len(topics))
	for _, t := range topics {
		if !t.OfPartitions().Deleted.Load() {
			out = append(out, t.Stats(channel))
		}
	}
	return out
}
