package engine

import (
	"penstock/engine/core"
	"penstock/replicate/wire"
	"penstock/segment"
)

// What is in the fold of a partition's log, for those who do not own it. replica.mu keeps it still.

// readChannels calls f with what the log says of each channel, and returns whether it says that the topic is paused.
func (pt *partition) readChannels(f func(*core.Cursor)) (paused bool) {
	pt.rep.mu.Lock()
	defer pt.rep.mu.Unlock()
	pt.fold.Each(f)
	return pt.fold.TopicPaused
}

// foldState returns the topic's state as the log has it.
func (pt *partition) foldState() *wire.TopicState {
	pt.rep.mu.Lock()
	defer pt.rep.mu.Unlock()
	s := &wire.TopicState{Paused: pt.fold.TopicPaused}
	pt.fold.Each(func(cur *core.Cursor) {
		s.Channels = append(s.Channels, wire.ChannelState{
			Name: cur.Name, Paused: cur.Paused, Skipped: cur.Skipped, Settings: cur.Settings,
		})
	})
	return s
}

// findChannel says whether the log has the channel, and whether the log's end is not committed yet.
func (pt *partition) findChannel(name string) (has, open bool) {
	pt.rep.mu.Lock()
	defer pt.rep.mu.Unlock()
	return pt.fold.Channel(name) != nil, pt.rep.committed() < pt.machine.State().Next
}

// adopt gives the channels in the log the partition: each gets a snapshot, and all later events. It returns their
// names, whether the topic is paused, and whether the log has never had a channel (neverHad).
func (pt *partition) adopt(channel func(name string) subscriber) (names []string, paused, neverHad bool) {
	pt.rep.mu.Lock()
	defer pt.rep.mu.Unlock()
	pt.fold.Each(func(cur *core.Cursor) { names = append(names, cur.Name) })
	for _, name := range names {
		pt.followFound(channel(name), name)
	}
	return names, pt.fold.TopicPaused, pt.neverHadChannels()
}

// neverHadChannels says whether nothing about channels was ever written to the log. replica.mu is held.
func (pt *partition) neverHadChannels() bool {
	return pt.fold.Len() == 0 && pt.fold.Unclaimed == 0 && !pt.fold.TopicPaused
}

// leadsWithoutChannels says whether this node of a cluster leads the partition and nothing about channels was ever
// written to its log.
func (pt *partition) leadsWithoutChannels() bool {
	if pt.rep.solo() || !pt.Leading.Load() {
		return false
	}
	pt.rep.mu.Lock()
	defer pt.rep.mu.Unlock()
	return pt.neverHadChannels()
}

// lacks returns the control entries that the log lacks of what first's log says of the topic's channels. Recovery calls
// it, while nothing else uses the folds.
func (pt *partition) lacks(first *partition) (entries []core.Control) {
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

// epoch is the epoch of the newest batch; 0: there is none.
func (pt *partition) epoch() segment.Epoch {
	if pt.machine == nil {
		return 0
	}
	return pt.machine.State().Epoch
}
