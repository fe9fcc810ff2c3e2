package engine

import "time"

// StorageStats is what the commit log, the buffers and the segments are doing: counts since Open, and what holds now.
type StorageStats struct {
	Groups          uint64  `json:"commit_groups"`            // writes with a flush
	BatchesPerGroup float64 `json:"batches_per_group"`        // partitions served by one flush, on average
	CommitBytes     uint64  `json:"commit_bytes"`             // written to the commit log, padding included
	FlushMeanMicros float64 `json:"commit_mean_microseconds"` // from submission to durable
	FlushP50Micros  int64   `json:"commit_p50_microseconds"`  // at most; powers of two
	FlushP99Micros  int64   `json:"commit_p99_microseconds"`  // at most; powers of two
	Marks           uint64  `json:"commit_marks"`             // promises of a commit log at rest, and others
	TornGroups      uint64  `json:"commit_torn_groups"`       // cut off the commit log's end at the start: whether they were answered OK is not known on this node
	TornBytes       int64   `json:"commit_torn_bytes"`        // of these
	Shortened       int     `json:"shortened_copies"`         // that have not made up yet for what recovery cut: they compare before they lead
	Yielded         uint64  `json:"shortened_copies_yielded"` // leaderships that such copies gave to one that had more
	ComparingWaits  uint64  `json:"shortened_copies_waited"`  // times that a partition waited for another replica of such a copy for long
	DamagedCopies   int     `json:"damaged_copies"`           // of partitions, that hold something that does not read back
	UnreadCopies    int     `json:"unread_copies"`            // of partitions, that hold entries of a newer version
	Dropped         uint64  `json:"copies_dropped"`           // that were damaged beyond repair in place, and fetched anew
	Losses          uint64  `json:"shortened_copies_lost"`    // partitions that went on although no replica could show that nothing acknowledged is missing
	Blocked         int     `json:"shortened_copies_blocked"` // partitions led here that wait for a damaged replica which may have more
	StallsBuffer    uint64  `json:"stalls_for_buffers"`       // the flusher was behind
	StallsFile      uint64  `json:"stalls_for_commit_files"`  // no file was prepared
	StallsFull      uint64  `json:"stalls_for_commit_room"`   // commit-live-bytes was reached
	CommitLiveBytes int64   `json:"commit_live_bytes"`        // what a restart would replay
	CommitRoomBytes int64   `json:"commit_room_bytes"`        // until commit-live-bytes is reached
	CommitFileBytes int64   `json:"commit_file_bytes"`        // size of its files now: commit-file-bytes, or more if the state needs it
	StateBytes      int64   `json:"state_bytes"`              // deferred messages and confirmed ranges; at max-state-bytes see ErrStateFull
	FreeBuffers     int     `json:"buffers_free"`             // of buffers
	Buffers         int     `json:"buffers"`                  // 1 MiB each
	WaitingBytes    int64   `json:"inbox_bytes"`              // accepted, not on the disk yet; to 16 KiB per partition
	Overloaded      uint64  `json:"puts_refused_overloaded"`  // see ErrOverloaded
	SegmentBytes    uint64  `json:"segment_bytes"`            // written to segments
	SegmentSyncs    uint64  `json:"segment_syncs"`            // fdatasync calls of partitions
	TrimmedBytes    uint64  `json:"retention_removed_bytes"`  // removed by retention
	ISRChanges      uint64  `json:"isr_changes"`              // of the in-sync replicas of what this node leads
	ISRHeldBack     uint64  `json:"isr_changes_held_back"`    // because a replica came and went too often
	AbsentReplicas  uint64  `json:"absent_replicas"`          // answers of other nodes that they have no copy of what this node leads
	Stranded        uint64  `json:"stranded_hand_overs"`      // times that a leader here gave up because too few in-sync replicas answered
	FramesNoCopy    uint64  `json:"frames_without_copy"`      // of leaders, for partitions that this node has no copy of
	RemoteExpired   uint64  `json:"remote_expired"`           // ordered messages that came here too late for a client, and were given back to their leaders
	RemoteStale     uint64  `json:"remote_stale"`             // ordered messages of a leader that another had followed: dropped
	RemoteLateFence uint64  `json:"remote_late_fences"`       // leaderships whose ordered channels waited 2 s at first, because a node did not answer
	ClockSteps      uint64  `json:"clock_steps"`              // of the wall clock since the start
	DelaysCorrected uint64  `json:"delays_corrected"`         // messages that waited by the clock of a leader that was ahead of this node's
	ClockAheadMs    int64   `json:"clock_ahead_ms"`           // how far the wall clock is ahead of the engine's, which does not follow its steps
	Partitions      int     `json:"partitions"`               // served
	DiskFull        bool    `json:"disk_full"`                // see ErrNoSpace
	Failed          bool    `json:"failed"`                   // see ErrDisk
	DiskState       string  `json:"disk_state"`               // good, slow, hung or failed, see core.DiskWatch
	DiskWaitedMs    int64   `json:"disk_waited_ms"`           // since writes wait and none came back
	DiskProbes      uint64  `json:"disk_probes"`              // writes that only asked whether the disk answers
	DiskHangs       uint64  `json:"disk_hangs"`               // times that nothing came back for disk-patience
	DiskHandOvers   uint64  `json:"disk_hand_overs"`          // leaderships given away because of that
	ScrubRounds     uint64  `json:"scrub_rounds"`             // times that all segments were read and verified
	ScrubBytes      uint64  `json:"scrub_bytes"`              // read for that
	ScrubDamaged    uint64  `json:"scrub_damaged"`            // ranges that did not read back
	ScrubMended     uint64  `json:"scrub_mended"`             // damaged batches, headers, indexes and small files that were written again from what the node knew
	ScrubLogDamaged uint64  `json:"scrub_commit_damaged"`     // commit log files that did not read back: what they held went to segments
	ReadsRecovered  uint64  `json:"reads_recovered"`          // ranges that the device could not read for a while; on a single node, see retryReads
	ScrubPartitions int64   `json:"scrub_partitions"`         // read in the present round
	ScrubRunning    bool    `json:"scrub_running"`            // a round is under way
}

// Storage is a snapshot of StorageStats.
func (e *Engine) Storage() StorageStats {
	s := e.clog.Stats()
	c := &e.counters
	out := StorageStats{
		Groups: s.Groups, CommitBytes: s.Bytes, FlushP50Micros: quantileMicros(s.Flush[:], 0.5), FlushP99Micros: quantileMicros(s.Flush[:], 0.99),
		Marks: s.Marks, TornGroups: s.Torn, TornBytes: s.TornBytes,
		StallsBuffer: s.StallsBuffer, StallsFile: s.StallsSpare, StallsFull: s.StallsFull,
		CommitLiveBytes: s.LiveBytes, CommitRoomBytes: e.clog.Headroom(), CommitFileBytes: e.clog.FileBytes(), StateBytes: e.stateBytes.Load(),
		FreeBuffers: e.arena.Free(), Buffers: e.arena.Count(), WaitingBytes: max(0, e.waiting.Load()), Overloaded: c.Overloaded.Load(),
		SegmentBytes: c.SegmentBytes.Load(), SegmentSyncs: c.SegmentSyncs.Load(), TrimmedBytes: c.TrimmedBytes.Load(),
		ISRChanges: c.ISRChanges.Load(), ISRHeldBack: c.ISRHeldBack.Load(), AbsentReplicas: c.AbsentReplicas.Load(), FramesNoCopy: c.FramesWithoutCopy.Load(),
		Stranded:        c.Stranded.Load(),
		DelaysCorrected: c.DelaysCorrected.Load(),
		ClockSteps:      e.clock.steps.Load(), ClockAheadMs: e.clock.offset.Load() / int64(time.Millisecond),
		Partitions: len(e.partitionList()), DiskFull: e.noSpace.Load(), Failed: e.poisoned.Load() != nil,
	}
	for _, pt := range e.partitionList() {
		if pt.log.Health() != nil {
			out.DamagedCopies++
		}
		if pt.whyUnread() != nil {
			out.UnreadCopies++
		}
	}
	e.disks.describe(&out)
	if cn := e.cluster; cn != nil {
		out.Shortened, out.Yielded = cn.shortened.count(), cn.yields.Load()
		out.ComparingWaits = cn.comparingWaits.Load()
		out.Dropped, out.Losses, out.Blocked = cn.drops.Load(), cn.losses.Load(), int(cn.blocked.Load())
		r := e.RemoteStats()
		out.RemoteExpired, out.RemoteStale, out.RemoteLateFence = r.Expired, r.Stale, r.LateFences
	}
	e.scrubbed.describe(&out)
	if s.Groups > 0 {
		out.BatchesPerGroup = float64(s.Records) / float64(s.Groups)
		out.FlushMeanMicros = float64(s.FlushNanos) / float64(s.Groups) / float64(time.Microsecond)
	}
	return out
}

// quantileMicros is the upper end of the bucket that holds the quantile; bucket i ends at 1<<i µs.
func quantileMicros(buckets []uint64, q float64) int64 {
	total := uint64(0)
	for _, n := range buckets {
		total += n
	}
	seen := uint64(0)
	for i, n := range buckets {
		if seen += n; total > 0 && float64(seen) >= q*float64(total) {
			return 1 << i
		}
	}
	return 0
}
