package faults

// Stats describes the commit log, the buffers, the segments and replication of this node: counts since Open, and
// present values. The JSON names are also those of Fault.Name.
type Stats struct {
	// Groups: groups written to the commit log; each write includes a flush.
	Groups          uint64  `json:"commit_groups"`
	BatchesPerGroup float64 `json:"batches_per_group"`        // batches that one flush made durable, on average
	CommitBytes     uint64  `json:"commit_bytes"`             // written to the commit log, with padding
	FlushMeanMicros float64 `json:"commit_mean_microseconds"` // mean time of a group from submission until durable
	FlushP50Micros  int64   `json:"commit_p50_microseconds"`  // median of that time, rounded up to a power of two
	FlushP99Micros  int64   `json:"commit_p99_microseconds"`  // its 99th percentile, rounded up to a power of two
	// Marks: groups without records, such as the mark of an idle commit log.
	Marks uint64 `json:"commit_marks"`
	// TornGroups: groups that recovery cut off the end of the commit log. This node does not know whether their puts
	// were answered OK.
	TornGroups uint64 `json:"commit_torn_groups"`
	TornBytes  int64  `json:"commit_torn_bytes"` // bytes that recovery cut off
	// Forgotten: at the start, files of the commit log were gone, or an older state of the disk had come back. This node
	// may lack messages that it answered OK; its copies are compared with other replicas and fetched again.
	Forgotten bool `json:"commit_log_forgotten"`
	// Shortened: copies that may still lack batches that recovery cut off. Such a copy compares itself with other
	// replicas before it leads.
	Shortened int `json:"shortened_copies"`
	// Contested: copies of this node that have messages which their leaders' logs lack, and that were probably answered
	// OK. Nothing is cut and they do not follow: an operator has to choose.
	Contested int `json:"contested_copies"`
	// Short: copies of this node whose leaders saw that they ended below what this node had acknowledged. They are not
	// elected until they have caught up.
	Short int `json:"short_copies"`
	// Yielded: leaderships that a shortened copy gave to a replica that had more.
	Yielded uint64 `json:"shortened_copies_yielded"`
	// ComparingWaits: times that a partition waited because a shortened copy could not compare itself with another
	// replica: for more than 10 s, or because that replica cannot lead.
	ComparingWaits uint64 `json:"shortened_copies_waited"`
	// OlderDirectory is 1 if the data directory turned out to be another one than the node ran on last: an older state of
	// it, or the original of a copy that ran on. All its copies were shortened.
	OlderDirectory int `json:"older_directory"`
	// UnknownTopics: topics of the data directory that the cluster does not know. Their messages are kept and not served.
	UnknownTopics int `json:"unknown_topics"`
	// OlderMetadata: partitions whose rows in the metadata store were older than this node's data when it started. They
	// are treated as after a restore.
	OlderMetadata int `json:"older_metadata"`
	// StoreMembersApart: members of the metadata store that the member on this node cannot reach.
	StoreMembersApart int `json:"store_members_apart"`
	// StoreMemberFailed is 1 while the member of the metadata store on this node does not do its part.
	StoreMemberFailed int `json:"store_member_failed"`
	// NodesUnconnected: living nodes to which this node has had no connection for longer than a lease.
	NodesUnconnected int `json:"nodes_unconnected"`
	DamagedCopies    int `json:"damaged_copies"` // copies of partitions with a range that cannot be read
	UnreadCopies     int `json:"unread_copies"`  // copies of partitions with entries of a newer version
	// Dropped: copies that could not be repaired in place, and were fetched anew from another replica.
	Dropped uint64 `json:"copies_dropped"`
	// Losses: partitions that went on although no replica could show that no acknowledged message is missing.
	Losses uint64 `json:"shortened_copies_lost"`
	// AsideCuts: cuts of copies that took messages and are kept aside now; see package aside. AsideMessages and AsideBytes
	// are those messages, and the bytes of their batches.
	AsideCuts     int   `json:"aside_cuts"`
	AsideMessages int64 `json:"aside_messages"`
	AsideBytes    int64 `json:"aside_bytes"`
	// AsideChannels: channels with dead letters that could not be moved to the dead-letter topic. FullChannels: channels
	// that deliver nothing new of a partition; see ChannelStats.FullPartitions. DroppingChannels: channels that lost
	// messages to retention or a quota in the last 10 minutes. SkippingChannels: channels that discard what is published.
	AsideChannels    int `json:"channels_with_dead_letters_aside"`
	FullChannels     int `json:"full_channels"`
	DroppingChannels int `json:"dropping_channels"`
	SkippingChannels int `json:"skipping_channels"`
	// SkippedMessages and SkippingSince are those of the channels that skip now: the sum, and the earliest (RFC 3339);
	// SkippedBefore: they are the least, because one skipped already when it began to be served here.
	SkippedMessages uint64 `json:"skipped_messages"`
	SkippingSince   string `json:"skipping_since,omitempty"`
	SkippedBefore   bool   `json:"skipped_before"`
	PausedChannels  int    `json:"paused_channels"`
	PausedTopics    int    `json:"paused_topics"`
	StarvedChannels int    `json:"starved_channels"`  // see ChannelStats.Starved
	OverQuotaTopics int    `json:"topics_over_quota"` // see TopicStats.OverQuota
	// DelaysRefused: topics of which this node leads a partition that refuses delayed messages; see ErrStateFull.
	DelaysRefused int `json:"delays_refused_topics"`
	// ReadOnlyTopics: topics of which this node leads a partition that stores nothing new; see TopicStats.ReadOnly.
	ReadOnlyTopics int `json:"read_only_topics"`
	// Blocked: partitions led here that wait for a replica that may have more messages and cannot lead.
	Blocked         int    `json:"shortened_copies_blocked"`
	StallsBuffer    uint64 `json:"stalls_for_buffers"`      // times that no buffer was free: the flusher was behind
	StallsFile      uint64 `json:"stalls_for_commit_files"` // times that no commit log file was prepared
	StallsFull      uint64 `json:"stalls_for_commit_room"`  // times that commit-live-bytes was reached
	CommitLiveBytes int64  `json:"commit_live_bytes"`       // bytes that a restart would replay
	CommitRoomBytes int64  `json:"commit_room_bytes"`       // bytes until commit-live-bytes is reached
	// CommitFileBytes: present size of a commit log file: commit-file-bytes, or more if the state needs it.
	CommitFileBytes int64 `json:"commit_file_bytes"`
	// StateBytes: what deferred messages and confirmed ranges cost in memory. At StateLimitBytes, which is
	// Options.MaxStateBytes, requests get ErrStateFull.
	StateBytes      int64 `json:"state_bytes"`
	StateLimitBytes int64 `json:"state_limit_bytes"`
	// ListedPartitions: those of all topics that this node lists. At PartitionLimit, which is Options.MaxPartitions,
	// requests that would make more get ErrTooManyPartitions.
	ListedPartitions int64 `json:"listed_partitions"`
	PartitionLimit   int64 `json:"partition_limit"`
	// ListedTopics: those that this node lists. At TopicLimit, which is Options.MaxTopics, new ones are refused.
	ListedTopics int64 `json:"listed_topics"`
	TopicLimit   int64 `json:"topic_limit"`
	// LogLinesDropped: lines that Options.Logger did not get, because it was too slow.
	LogLinesDropped uint64 `json:"log_lines_dropped"`
	// HeapLimitBytes is Options.MaxHeapBytes.
	HeapLimitBytes int64 `json:"heap_limit_bytes"`
	FreeBuffers    int   `json:"buffers_free"` // of Buffers
	Buffers        int   `json:"buffers"`      // of 1 MiB each
	// WaitingBytes: bytes of puts that wait in the inboxes, accurate to 16 KiB per partition.
	WaitingBytes int64  `json:"inbox_bytes"`
	Overloaded   uint64 `json:"puts_refused_overloaded"` // see ErrOverloaded
	// InflatingBytes: to which the compressed batches grow that are being verified; Options.MaxInflatedBytes at most.
	// InflationRefused: compressed batches refused because of Options.MaxInflationRatio or MaxInflatedBytes.
	InflatingBytes   int64  `json:"inflating_bytes"`
	InflationRefused uint64 `json:"puts_refused_inflation"`

	SegmentBytes   uint64 `json:"segment_bytes"`           // written to segments
	SegmentSyncs   uint64 `json:"segment_syncs"`           // fdatasync calls on segment files
	TrashEntries   int    `json:"trash_entries"`           // deleted files and folders that are still to be removed
	OpenSegments   int    `json:"open_segments"`           // partitions with open segment files; Options.MaxOpenSegments
	MappedSegments int    `json:"mapped_segments"`         // see Options.MaxMappedSegments
	TrimmedBytes   uint64 `json:"retention_removed_bytes"` // removed by retention
	ISRChanges     uint64 `json:"isr_changes"`             // changes of the ISR that leaders on this node proposed
	// ISRHeldBack: changes of the ISR that were not proposed, because a replica joined and left too often.
	ISRHeldBack uint64 `json:"isr_changes_held_back"`
	// AbsentReplicas: answers of other nodes that they have no copy of a partition that this node leads.
	AbsentReplicas uint64 `json:"absent_replicas"`
	// Stranded: leaderships given away because too few in-sync replicas answered.
	Stranded uint64 `json:"stranded_hand_overs"`
	// FramesNoCopy: frames of leaders for partitions that this node has no copy of.
	FramesNoCopy uint64 `json:"frames_without_copy"`
	// MissingCopies: times that a leader went on for 5 s to ask for a copy that this node does not have. The leader of a
	// new topic asks before the copy is opened, so FramesNoCopy alone is no fault.
	MissingCopies uint64 `json:"missing_copies"`
	// ForwardedUnknown: puts of this node's clients that a leader on another node may have stored, and whose answer was
	// lost.
	ForwardedUnknown uint64 `json:"forwarded_unknown"`
	// RemoteExpired: ordered messages that came too late for a client of this node, and were returned to their leaders.
	RemoteExpired uint64 `json:"remote_expired"`
	RemoteStale   uint64 `json:"remote_stale"` // ordered messages that were dropped, because a former leader sent them
	// RemoteLateFence: leaderships whose ordered channels waited 2 s before the first delivery, because a node did not
	// answer the fence.
	RemoteLateFence uint64 `json:"remote_late_fences"`
	ClockSteps      uint64 `json:"clock_steps"` // steps of the wall clock since Open
	// DelaysCorrected: deferred messages whose due time was corrected, because a leader with a clock ahead of this
	// node's had set it.
	DelaysCorrected uint64 `json:"delays_corrected"`
	// FromTheFuture: batches that came from a leader whose clock was ahead of this node's by a second or more.
	FromTheFuture uint64 `json:"batches_from_the_future"`
	// ClockAheadMs: how far the wall clock is ahead of the engine's clock, which does not follow the steps of the wall
	// clock. Negative: behind.
	ClockAheadMs int64 `json:"clock_ahead_ms"`
	// ClockDiffersMs: how far the engine's clock is ahead of the clocks of most other nodes, from which it differs by a
	// second or more; negative: behind. If it differs from those of just half of the nodes, likewise of those. 0: it does
	// not differ.
	ClockDiffersMs int64 `json:"clock_differs_ms"`
	// CertificatesEnding: files of Options.Certificates that end within 30 days. CertificatesRefused: those that have
	// ended, or are not valid yet.
	CertificatesEnding  int `json:"certificates_ending"`
	CertificatesRefused int `json:"certificates_refused"`

	AuthSilentS   int64  `json:"auth_silent_s"`   // seconds for which no auth server has answered; 0: they do
	Partitions    int    `json:"partitions"`      // copies of partitions on this node
	DiskFull      bool   `json:"disk_full"`       // see ErrNoSpace
	NoInodes      bool   `json:"disk_no_inodes"`  // see ErrNoInodes
	Transient     bool   `json:"disk_transient"`  // the data directory is in memory, or in the layer of a container
	Failed        bool   `json:"failed"`          // see ErrDisk
	GroundLost    bool   `json:"ground_lost"`     // files of the data directory were taken away, see groundWatch
	DiskState     string `json:"disk_state"`      // good, slow, hung or failed; see machine.DiskWatch
	DiskWaitedMs  int64  `json:"disk_waited_ms"`  // how long writes have been waiting while none came back
	DiskProbes    uint64 `json:"disk_probes"`     // writes that only ask whether the disk answers
	DiskHangs     uint64 `json:"disk_hangs"`      // times that no write completed for disk-patience while some waited
	DiskHandOvers uint64 `json:"disk_hand_overs"` // leaderships given away because of a hang
	ScrubRounds   uint64 `json:"scrub_rounds"`    // times that all segments were read and verified
	ScrubBytes    uint64 `json:"scrub_bytes"`     // read by the scrub
	ScrubDamaged  uint64 `json:"scrub_damaged"`   // ranges that could not be read
	// ScrubMended: damaged batches, headers, indexes and small files that were rewritten from what the node knew.
	ScrubMended     uint64 `json:"scrub_mended"`
	ScrubLogDamaged uint64 `json:"scrub_commit_damaged"` // damaged commit log files; their content went to segments
	// ReadsRecovered: ranges that the device could not read for a while; see scrub.Scrub.RetryReads.
	ReadsRecovered  uint64 `json:"reads_recovered"`
	ScrubPartitions int64  `json:"scrub_partitions"` // partitions read in the present round
	ScrubRunning    bool   `json:"scrub_running"`    // a round is running
}
