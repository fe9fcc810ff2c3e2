package part

import (
	"penstock/engine/core"
	"penstock/replicate/wire"
	"penstock/segment"
)

// What is in the fold of a partition's log, for those who do not own it. Replica.mu keeps it still.

// ReadChannels calls f with what the log says of each channel, and returns whether it says that the topic is paused.
func (pt *Partition) ReadChannels(f func(*core.Cursor)) (paused bool) {
	pt.replica.mu.Lock()
	defer pt.replica.mu.Unlock()
	pt.fold.Each(f)
	return pt.fold.TopicPaused
}

// FoldState returns the topic's state as the log has it.
func (pt *Partition) FoldState() *wire.TopicState {
	pt.replica.mu.Lock()
	defer pt.replica.mu.Unlock()
	s := &wire.TopicState{Paused: pt.fold.TopicPaused}
	pt.fold.Each(func(cur *core.Cursor) {
		s.Channels = append(s.Channels, wire.ChannelState{
			Name: cur.Name, Paused: cur.Paused, Skipped: cur.Skipped, Settings: cur.Settings,
		})
	})
	return s
}

// FindChannel says whether the log has the channel, and whether the log's end is not committed yet.
func (pt *Partition) FindChannel(name string) (has, open bool) {
	pt.replica.mu.Lock()
	defer pt.replica.mu.Unlock()
	return pt.fold.Channel(name) != nil, pt.replica.committed() < pt.machine.State().Next
}

// Adopt gives the channels in the log the partition: each gets a snapshot, and all later events. It returns their
// names, whether the topic is paused, and whether the log has never had a channel (neverHad).
func (pt *Partition) Adopt(channel func(name string) Subscriber) (names []string, paused, neverHad bool) {
	pt.replica.mu.Lock()
	defer pt.replica.mu.Unlock()
	pt.fold.Each(func(cur *core.Cursor) { names = append(names, cur.Name) })
	for _, name := range names {
		pt.followFound(channel(name), name)
	}
	return names, pt.fold.TopicPaused, pt.neverHadChannels()
}

// neverHadChannels says whether nothing about channels was ever written to the log. Replica.mu is held.
func (pt *Partition) neverHadChannels() bool {
	return pt.fold.Len() == 0 && pt.fold.Unclaimed == 0 && !pt.fold.TopicPaused
}

// LeadsWithoutChannels says whether this node of a cluster leads the partition and nothing about channels was ever
// written to its log.
func (pt *Partition) LeadsWithoutChannels() bool {
	if pt.replica.solo() || !pt.Leading.Load() {
		return false
	}
	pt.replica.mu.Lock()
	defer pt.replica.mu.Unlock()
	return pt.neverHadChannels()
}

// Lacks returns the control entries that the log lacks of what first's log says of the topic's channels. Recovery calls
// it, while nothing else uses the folds.
func (pt *Partition) Lacks(first *Partition) (entries []core.Control) {
	first.fold.Each(func(cur *core.Cursor) {
		if pt.fold.Channel(cur.Name) == nil {
			entries = append(entries, core.Control{Kind: core.ChannelCreated, Channel: cur.Name})
		}
	})
	if first.fold.TopicPaused && !pt.fold.TopicPaused && pt.fold.Len() == 0 {
		entries = append(entries, core.Control{Kind: core.TopicPaused, Flag: true})
	}
	return entries
}

// Epoch is the epoch of the newest batch; 0: there is none. It takes no lock: the engine asks while it opens, before
// the commit log runs.
func (pt *Partition) Epoch() segment.Epoch {
	if pt.machine == nil {
		return 0
	}
	return pt.machine.State().Epoch
}
