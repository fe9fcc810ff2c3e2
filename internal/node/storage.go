package node

import (
	"context"
	"fmt"
	"time"

	"penstock/clog"
	"penstock/internal/node/errs"
	"penstock/internal/node/health"
	"penstock/replicate"
	"penstock/replicate/wire"
)

// Storage returns the present StorageStats. It takes locks of the commit log and of each partition's log.
func (e *Engine) Storage() StorageStats {
	log, m, c := e.store.CommitLog(), e.store.Memory(), &e.counters
	s := log.Stats()
	out := StorageStats{
		Groups: s.Groups, CommitBytes: s.Bytes,
		FlushP50Micros: s.FlushMicros(0.5), FlushP99Micros: s.FlushMicros(0.99),
		Marks: s.Marks, TornBytes: s.TornBytes,
		StallsBuffer: s.StallsBuffer, StallsFile: s.StallsSpare, StallsFull: s.StallsFull,
		CommitLiveBytes: s.LiveBytes, CommitRoomBytes: log.Headroom(), CommitFileBytes: log.FileBytes(),
		HeapLimitBytes:   e.opts.MaxHeapBytes,
		ListedPartitions: e.shared.Partitions(), PartitionLimit: int64(e.current().MaxPartitions),
		FreeBuffers: m.Free, Buffers: m.Buffers, WaitingBytes: m.Waiting,
		Overloaded:     c.Overloaded.Load(),
		InflatingBytes: e.limits.Inflation.Bytes(), InflationRefused: e.limits.Inflation.Refused(),
		SegmentBytes: c.SegmentBytes.Load(), SegmentSyncs: c.SegmentSyncs.Load(), TrimmedBytes: c.TrimmedBytes.Load(),
		TrashEntries: e.store.Flusher().TrashEntries(),
		OpenSegments: e.store.Flusher().OpenSegments(), MappedSegments: e.store.MappedSegments(),
		ISRChanges: c.ISRChanges.Load(), AbsentReplicas: c.AbsentReplicas.Load(),
		FramesNoCopy: c.FramesWithoutCopy.Load(), MissingCopies: c.MissingCopies.Load(),
		Partitions: len(e.store.Partitions()),
	}
	e.describeWarnings(&out)
	for _, pt := range e.store.Partitions() {
		if pt.Log().Health() != nil {
			out.DamagedCopies++
		}
		if pt.WhyUnread() != nil {
			out.UnreadCopies++
		}
	}
	out.Transient = e.transience != ""
	out.CertificatesEnding, out.CertificatesRefused = health.CountCertificates(e.Certificates(), e.host.Wall())
	kept := e.store.Aside().Stats()
	out.AsideCuts, out.AsideMessages, out.AsideBytes = kept.Cuts, kept.Messages, kept.Bytes
	var f health.Facts
	e.channelTroubles(&f)
	out.ListedTopics, out.TopicLimit = int64(f.Topics), int64(e.current().MaxTopics)
	out.AsideChannels, out.FullChannels = f.AsideLetters.Channels(), f.FullChannel.Channels()
	out.DroppingChannels, out.SkippingChannels = f.DroppingChannel.Channels(), f.SkippingChannel.Channels()
	e.describeSkipping(&out)
	out.PausedChannels, out.PausedTopics = f.PausedChannel.Channels(), f.PausedTopic.Channels()
	out.StarvedChannels = f.StarvedChannel.Channels()
	out.OverQuotaTopics = f.QuotaTopic.Channels()
	out.DelaysRefused, out.ReadOnlyTopics = f.DelaysRefused.Channels(), f.ReadOnlyTopic.Channels()
	if e.logs != nil {
		out.LogLinesDropped = e.logs.Dropped()
	}
	e.members.describe(&out)
	if s.Groups > 0 {
		out.BatchesPerGroup = float64(s.Records) / float64(s.Groups)
		out.FlushMeanMicros = float64(s.FlushNanos) / float64(s.Groups) / float64(time.Microsecond)
	}
	return out
}

// describeSkipping fills in what the channels that skip have discarded, and since when.
func (e *Engine) describeSkipping(out *StorageStats) {
	for _, t := range e.catalog.Topics() {
		for _, c := range t.Channels() {
			if now := c.Local().Troubles(); now.Skipping {
				out.SkippedMessages += now.SkippedCount
				out.SkippingSince = health.Earlier(out.SkippingSince, health.Since(now.SkippingSince))
				out.SkippedBefore = out.SkippedBefore || now.SkippedBefore
			}
		}
	}
}

// describeWarnings fills in what Warnings judges.
func (e *Engine) describeWarnings(out *StorageStats) {
	c, why := &e.counters, e.store.Failure()
	out.DiskFull, out.NoInodes = e.store.Flusher().NoSpace(), e.store.Flusher().Full() == errs.ErrNoInodes
	out.Failed, out.GroundLost, out.Forgotten = why != nil, clog.Lost(why) != nil, e.forgotten
	out.TornGroups = e.store.CommitLog().Stats().Torn
	out.ISRHeldBack, out.Stranded = c.ISRHeldBack.Load(), c.Stranded.Load()
	out.DelaysCorrected, out.FromTheFuture = c.DelaysCorrected.Load(), c.FromTheFuture.Load()
	out.ClockSteps, out.ClockAheadMs = e.clock.Steps(), e.clock.Ahead().Milliseconds()
	out.ClockDiffersMs, out.AuthSilentS = e.clockAheadMs(), e.authSilentSeconds()
	out.StateBytes, out.StateLimitBytes = e.store.Memory().State, e.current().MaxStateBytes
	e.describeDisk(out)
}

// describeDisk fills in what the disk watch and the scrub have seen. It takes no lock.
func (e *Engine) describeDisk(out *StorageStats) {
	d := e.disks.Stats()
	out.DiskState, out.DiskWaitedMs = d.State.String(), d.WaitedMs
	out.DiskProbes, out.DiskHangs, out.DiskHandOvers = d.Probes, d.Hangs, d.HandOvers
	s := e.scrub.Stats()
	out.ScrubRounds, out.ScrubBytes, out.ScrubDamaged = s.Rounds, s.Bytes, s.Damaged
	out.ScrubMended, out.ScrubLogDamaged, out.ReadsRecovered = s.Mended, s.LogDamaged, s.ReadAgain
	out.ScrubPartitions, out.ScrubRunning = s.Partitions, s.Running
}

// Warnings returns the node's faults that are cheap to determine, without a lock whose holder may hang: faults of the
// disk, the commit log, the clock and the scrub, and replicas that leave and join the ISR too often. Callers that ask
// often combine Warnings with Health.
func (e *Engine) Warnings() []Fault {
	var s StorageStats
	e.describeWarnings(&s)
	return s.Faults()
}

// FaultsOf returns the faults of a node of the cluster, which may be this node; a single node ignores node. It returns
// an error if the node cannot be reached, does not answer before ctx ends, or is of a version that does not know the
// request.
func (e *Engine) FaultsOf(ctx context.Context, node replicate.NodeID) ([]Fault, error) {
	if !e.members.others() || node == e.members.node().ID {
		s := e.Storage()
		return s.Faults(), nil
	}
	answer, err := e.cluster.ops.Ask(ctx, node, wire.Operation{Kind: wire.OpFaults})
	if err != nil {
		return nil, err
	}
	var faults []Fault
	if err := wire.DecodeResult(answer, &faults); err != nil {
		return nil, fmt.Errorf("engine: node %d answers something else than its faults: %w", node, err)
	}
	return faults, nil
}
