package topic

import (
	"slices"

	"penstock/internal/node/channel"
	"penstock/internal/node/health"
	"penstock/internal/node/partition"
)

// Stats, ChannelStats and ConsumerStats are snapshots with the names of NSQ's /stats. They cover this node: the
// partitions that it has a copy of, and the channels' consumers that it serves.
type Stats struct {
	Name         string
	MadeBy       string // see Topic.MadeBy
	Depth        int64  // messages that no channel can get yet, because the topic has no channel or is paused
	BackendDepth int64  // the same as Depth
	// Published counts the messages that were ever published to the partitions that this node leads, as far as they are
	// committed. It is in their logs: neither a restart nor retention changes it.
	Published    uint64
	MessageCount uint64 // messages that this node stored as the leader, committed since Open
	MessageBytes uint64 // approximate bytes of their bodies
	Paused       bool
	OverQuota    bool // in the last minute, a put was refused because of the quota of a partition that is led here
	// DelaysRefused counts the partitions that this node leads and that refuse delayed messages now; see ErrStateFull.
	DelaysRefused int
	// ReadOnly counts the partitions that this node leads and that store nothing new until a restart, because a part of
	// their logs is missing, damaged or of a newer version.
	ReadOnly    int
	Partitions  int   // all partitions of the topic, on any node
	StoredBytes int64 // bytes of the logs of this node's copies
	// Served are the partitions whose channels deliver from this node, in order; never nil. Channels has the part of each
	// channel that is in these partitions. A new leader serves as soon as the start of its epoch is committed.
	Served   []int
	Led      int   // partitions that this node leads
	LedBytes int64 // bytes of the logs of these
	// Producers counts the producers, named or not, that these partitions know; one that publishes to several partitions
	// counts in each. MaxProducers is the number in the one that knows the most: at 4096 a partition forgets anonymous
	// ones, and refuses further named ones.
	Producers    int
	MaxProducers int
	Channels     []channel.Stats // by name; nil if this node serves no partition of the topic
}

// Stats returns the statistics of the topic, with the channel of that name ("": all).
func (t *Topic) Stats(channel string) Stats {
	s := Stats{
		Name: t.Name(), MadeBy: t.MadeBy(), MessageCount: t.shared.Messages.Load(), MessageBytes: t.shared.Bytes.Load(),
		Paused: t.paused.Load(), Partitions: len(t.PartitionList()), Served: []int{},
		DelaysRefused: t.local.led(refusesDelays), ReadOnly: t.local.led((*partition.Partition).ReadOnly),
	}
	for n, pt := range t.PartitionList() {
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
			s.OverQuota = s.OverQuota || pt.OverQuota(t.env.Clock.Mono())
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

// led counts the partitions that this node leads and of which is says so.
func (l *Local) led(is func(*partition.Partition) bool) (count int) {
	for _, pt := range l.t.PartitionList() {
		if pt.Leads() && is(pt) {
			count++
		}
	}
	return count
}

func refusesDelays(pt *partition.Partition) bool { return pt.RefusesDelay(1, 0) != nil }

// Troubles adds the topic to f if it is paused, over its quota or read-only, or refuses delays, and its channels that
// do not go on as they should. f keeps the first of each kind.
func (l *Local) Troubles(f *health.Facts) {
	if l.t.paused.Load() && slices.ContainsFunc(l.t.PartitionList(), (*partition.Partition).Leads) {
		f.PausedTopic = f.PausedTopic.And(health.Channel{Topic: l.t.Name()})
	}
	count := func(is func(*partition.Partition) bool) health.Channel {
		return health.Channel{Topic: l.t.Name(), Count: l.led(is)}
	}
	f.QuotaTopic = f.QuotaTopic.With(count(func(pt *partition.Partition) bool {
		return pt.OverQuota(l.t.env.Clock.Mono())
	}))
	f.ReadOnlyTopic = f.ReadOnlyTopic.With(count((*partition.Partition).ReadOnly))
	f.DelaysRefused = f.DelaysRefused.With(count(refusesDelays))
	for _, c := range l.t.Channels() {
		now := c.local.Troubles()
		one := func(count int, why string) health.Channel {
			return health.Channel{Topic: l.t.Name(), Name: c.name, Count: count, Why: why}
		}
		f.AsideLetters = f.AsideLetters.With(one(now.AsideCount, now.AsideWhy))
		f.FullChannel = f.FullChannel.With(one(now.FullPartitions, ""))
		f.DroppingChannel = f.DroppingChannel.With(one(int(now.DroppedCount), ""))
		if now.Starved {
			f.StarvedChannel = f.StarvedChannel.And(one(0, ""))
		}
		if now.Paused {
			f.PausedChannel = f.PausedChannel.And(one(0, ""))
		}
		if now.Skipping {
			c := one(int(now.SkippedCount), health.Since(now.SkippingSince))
			c.Before = now.SkippedBefore
			f.SkippingChannel = f.SkippingChannel.And(c)
		}
	}
}
