package node

import (
	"time"

	"penstock/segment/aio"
)

// Now returns the time by the engine's clock, which messages get when they are stored. It does not follow steps of the
// wall clock.
func (e *Engine) Now() time.Time { return e.now() }

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
		topics = e.Topics()
	} else if t, ok := e.LookupTopic(topic); ok {
		topics = []*Topic{t}
	}
	out := make([]TopicStats, 0, len(topics))
	for _, t := range topics {
		if !t.shared.Deleted.Load() {
			out = append(out, t.stats(channel))
		}
	}
	return out
}

// stats returns the statistics of the topic, with the channel of that name ("": all).
func (t *Topic) stats(channel string) TopicStats {
	s := TopicStats{
		Name: t.Name(), MadeBy: t.MadeBy(), MessageCount: t.shared.Messages.Load(), MessageBytes: t.shared.Bytes.Load(),
		Paused: t.paused.Load(), Partitions: len(t.partitions()), Served: []int{},
		DelaysRefused: t.delaysRefused(), ReadOnly: t.readOnly(),
	}
	for n, pt := range t.partitions() {
		if pt.Replica().HasLog() {
			s.StoredBytes += pt.Log().Bytes()
			if pt.Leads() {
				s.Led++
				s.LedBytes += pt.Log().Bytes()
			}
		}
		if pt.Leads() {
			s.Depth += pt.WaitingAtTopic()
			s.Published += pt.Published()
			s.OverQuota = s.OverQuota || pt.OverQuota()
			s.Producers += pt.ProducerCount()
			s.MaxProducers = max(s.MaxProducers, pt.ProducerCount())
		}
		if pt.Serves() {
			s.Served = append(s.Served, n)
		}
	}
	s.BackendDepth = s.Depth
	if len(s.Served) == 0 { // the channels here only serve clients of other leaders, and those leaders' stats show them
		return s
	}
	for _, c := range t.Channels() {
		if channel == "" || channel == c.name {
			s.Channels = append(s.Channels, c.local.Stats())
		}
	}
	return s
}
