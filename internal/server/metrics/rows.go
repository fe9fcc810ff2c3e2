package metrics

import (
	"cmp"
	"runtime"
	"strconv"
	"time"

	"penstock/clog"
	"penstock/internal/descriptors"
	"penstock/internal/node"
	"penstock/internal/node/health"
	unproven "penstock/internal/strangers"
)

// snapshot is what a scrape has read of a node. The tables below say which metric shows which part of it; those of an
// empty snapshot define the metrics.
type snapshot struct {
	now, started time.Time
	version      string
	info         node.Info
	counters     *node.Counters
	verdict      health.Verdict
	commit       clog.Stats
	storage      node.StorageStats
	certificates []health.Certificate
	tokens       []node.TokenUse // the first maxTokens
	server       ServerMeter
	cluster      *node.ClusterMeter // nil: a single node

	// Of the last round; nil: it has not ended yet, or does not say it.
	age, truncated, freeBytes, freeInodes any
}

// maxTokens bounds the tokens that have series.
const maxTokens = 20

// nodeRows are of the node.
func nodeRows(s *snapshot) []row {
	return []row{
		def("build_info", "Always 1; the labels say which version runs.",
			info("version", s.version, "goversion", runtime.Version())),
		def("storage_info", "Always 1; the labels say how this node writes and to what.",
			info("io", s.info.IOEngine, "filesystem", s.info.FileSystem, "device_cache", s.info.DeviceCache,
				"direct", strconv.FormatBool(s.info.Direct))),
		def("start_time_seconds", "When this process began to serve, in seconds since 1970.",
			float64(s.started.UnixNano())/1e9),
		def("ready", "1 while a check of /readyz is passed; the node is ready if all are.",
			each("check", s.verdict.Checks, func(c *health.Check) (string, any) { return c.Name, c.OK })),
		def("unscheduled_seconds_total",
			"Time in which this process was given no processor, in spans of 50 ms or more: it has too little of one, or was "+
				"stopped.",
			time.Duration(s.counters.UnscheduledNanos.Load())),
		def("metrics_truncated",
			"1 since topics or channels have more series than metrics-max-series, and their families show sums.", s.truncated),
		def("metrics_age_seconds", "Age of the numbers of topics and channels; above 0 only while reading them takes long.",
			s.age),
	}
}

// commitRows are of the commit log and of what waits for it.
func commitRows(s *snapshot) []row {
	st := &s.storage
	return []row{
		def("commit_groups_total", "Groups of batches written to the commit log, each with a flush.", s.commit.Groups),
		def("commit_records_total", "Batches in these groups.", s.commit.Records),
		def("commit_bytes_total", "Bytes written to the commit log, with headers and padding.", s.commit.Bytes),
		def("commit_zeroed_bytes_total", "Zeros written to new files of the commit log.", s.commit.ZeroedBytes),
		def("commit_flush_duration_seconds", "Time of a group from its submission until it is durable.",
			durations{s.commit.Flush[:], s.commit.FlushNanos}),
		def("slow_commits_total", "Groups that took slow-commit or longer.", s.commit.Slow),
		def("commit_stalls_total",
			"Times that the commit log waited: for buffers, files, or room (commit-live-bytes was reached).",
			pairs("reason", "buffers", s.commit.StallsBuffer, "files", s.commit.StallsSpare, "room", s.commit.StallsFull)),
		def("commit_live_bytes", "Bytes of the commit log that a restart would read.", s.commit.LiveBytes),
		def("commit_room_bytes", "Bytes that fit into the commit log before it waits for the segments.", st.CommitRoomBytes),
		def("inflating_bytes", "Bytes to which compressed batches above 64 KiB grow while they are verified.",
			st.InflatingBytes),
		def("inflation_refused_total", "Compressed batches refused because of max-inflation-ratio or max-inflated-bytes.",
			st.InflationRefused),
		def("inbox_bytes", "Bytes of publishes that wait to be stored.", st.WaitingBytes),
	}
}

// stateRows are of what fills the memory, and of limits.
func stateRows(s *snapshot) []row {
	st := &s.storage
	tokens := func(of func(*node.TokenUse) any) series {
		return each("token", s.tokens, func(u *node.TokenUse) (string, any) { return u.Token, of(u) })
	}
	return []row{
		def("state_bytes",
			"Memory of deferred messages and confirmations out of order, also of partitions that the node follows.",
			st.StateBytes),
		def("state_limit_bytes", "At this state_bytes delays and new channels are refused (max-state-bytes).",
			st.StateLimitBytes),
		def("listed_partitions", "Partitions of all topics, wherever their copies are.", st.ListedPartitions),
		def("listed_partitions_limit",
			"At this many listed_partitions more are refused (max-partitions).", st.PartitionLimit),
		def("token_topics", "Topics that count for a token, of the 20 tokens that take the most.",
			tokens(func(u *node.TokenUse) any { return u.Topics })),
		def("token_partitions", "Partitions of these topics.", tokens(func(u *node.TokenUse) any { return u.Partitions })),
		def("token_state_bytes", "Memory of their deferred messages and confirmations out of order.",
			tokens(func(u *node.TokenUse) any { return u.StateBytes })),
		def("token_stored_bytes",
			"Bytes of their logs on this node; publishing is refused above token-share of a disk nine tenths full.",
			tokens(func(u *node.TokenUse) any { return u.StoredBytes })),
		def("token_limit_ratio", "The largest part, 0 to 1, that they take of max-topics, max-partitions or max-state-bytes.",
			tokens(func(u *node.TokenUse) any { return u.OfLimit })),
		def("listed_topics", "Topics, wherever their copies are.", st.ListedTopics),
		def("listed_topics_limit", "At this many listed_topics more are refused (max-topics).", st.TopicLimit),
		def("log_lines_dropped_total", "Lines of the log that the logger did not take in time.", st.LogLinesDropped),
		def("heap_limit_bytes", "What the process may use besides its buffers; 0: no limit is known.", st.HeapLimitBytes),
	}
}

// diskRows are of the copies, the segments and the disk.
func diskRows(s *snapshot) []row {
	st := &s.storage
	return []row{
		def("copies", "Copies on this node that are not whole, by what they are: damaged, contested, short or shortened.",
			pairs("state", "damaged", st.DamagedCopies, "contested", st.Contested, "short", st.Short,
				"shortened", st.Shortened)),
		def("older_directory",
			"1 since a start on an older state of the data directory, or on the original of a copy that ran on.",
			st.OlderDirectory),
		def("unknown_topics", "Topics of the data directory that the cluster does not know: they are kept and not served.",
			st.UnknownTopics),
		def("aside_cuts", "Cuts of copies whose messages are kept aside.", st.AsideCuts),
		def("aside_messages", "Messages that are kept aside.", st.AsideMessages),
		def("aside_bytes", "Bytes of the batches that are kept aside.", st.AsideBytes),
		def("buffers_free", "Buffers of 1 MiB that are free for groups and the newest messages.", st.FreeBuffers),
		def("buffers", "Buffers of 1 MiB that there are (buffer-bytes).", st.Buffers),
		def("segment_written_bytes_total", "Bytes written to segments.", st.SegmentBytes),
		def("trash_entries", "Deleted files and folders that are not removed yet, and whose space is not free.",
			st.TrashEntries),
		def("open_segments", "Partitions with open segment files, written and not synced; at most max-open-segments.",
			st.OpenSegments),
		def("mapped_segments", "Segments mapped into memory; without those being read at most max-mapped-segments.",
			st.MappedSegments),
		def("retention_removed_bytes_total", "Bytes of segments removed by retention.", st.TrimmedBytes),
		def("disk_free_bytes", "Bytes that this process may still write to the data directory's file system.", s.freeBytes),
		def("disk_full", "1 while publishes are refused because the disk is full.", st.DiskFull),
		def("disk_free_inodes", "Files that may still be made there; missing where only space limits them.", s.freeInodes),
		def("disk_transient", "1 if the data directory is in memory (tmpfs), or in the own layer of a container (overlay).",
			st.Transient),
		def("disk_state", "1 for the state of the disk: good, slow, hung or failed.",
			each("state", []string{"good", "slow", "hung", "failed"}, func(d *string) (string, any) {
				return *d, *d == st.DiskState
			})),
		def("clock_ahead_seconds", "How far the wall clock is ahead of the engine's clock, which does not follow its steps.",
			time.Duration(st.ClockAheadMs)*time.Millisecond),
		def("storage_failed",
			"1 since a write of the commit log failed, or the start found it damaged: nothing more is stored.",
			st.Failed),
		def("commit_log_forgotten",
			"1 since a start to which files of the commit log were missing, or an older state of the disk had come back.",
			st.Forgotten),
		def("ground_lost",
			"1 since files were removed, replaced or covered under the running node: nothing more is answered OK.",
			st.GroundLost),
		def("read_only_topics",
			"Topics that store nothing new in partitions whose logs are in part missing, damaged or of a newer version.",
			st.ReadOnlyTopics),
		def("corruptions",
			"Damaged data: in copies (now), found by recovery, in segments and commit_log (found by the scrub since the start).",
			pairs("where", "copies", st.DamagedCopies, "recovery", len(s.info.CorruptionsAtRecover),
				"segments", st.ScrubDamaged, "commit_log", st.ScrubLogDamaged)),
	}
}

// clientRows are of the clients of this node.
func clientRows(s *snapshot) []row {
	m := &s.server
	return []row{
		def("publishes_refused_total", "Publishes that were not answered OK; unknown: they may have been stored.",
			keyed("reason", m.Refused)),
		def("publish_duration_seconds",
			"Time from a publish until its OK, measured for one in 16; a batch of a native client counts as one.",
			keyed("protocol", m.Publishes)),
		def("connections",
			"Open connections of clients: nsq, http, https, lookup (HTTP), lookup_tcp (nsqds that register), native.",
			keyed("kind", m.Connections)),
		def("connections_without_descriptor_total",
			"Connections that were closed at once, because only the node's own descriptors were left.", descriptors.Refused()),
		def("unauthenticated_connections",
			"Open NSQ connections that must send AUTH and have not (max-unauthenticated-connections).", m.NSQ.Strangers),
		def("known_connections", "Open connections of NSQ's and native clients whose token has a share of them.",
			m.KnownConnections),
		def("unproven_connections_closed_total",
			"Connections that had proved nothing and were closed for newer ones, at all ports.", unproven.Closed()),
		def("unauthenticated_refused_total",
			"NSQ connections closed before AUTH: connections (too many), bytes (a body was too large), time.",
			keyed("reason", m.NSQ.StrangersRefused)),
		def("large_input_bytes",
			"Bytes of commands above 64 KiB and HTTP bodies above 16 KiB that are arriving (max-large-input-bytes).",
			m.LargeInputBytes),
		def("large_input_waits_total",
			"Commands that waited for room in max-large-input-bytes, or in their client's quarter.",
			m.NSQ.LargeInputWaits),
		def("moderated_reads_total",
			"Reads for which the commands of some 50 µs were gathered, of busy consumers and crowds of publishers.",
			m.NSQ.ModeratedReads),
		def("polled_publishers", "Connections of publishers that one goroutine reads as a crowd.", m.NSQ.PolledPublishers),
		def("auth_failures_total", "Requests and commands refused because their client proved nothing, or lacks the right.",
			m.AuthFailures),
		def("credentials_stale", "1: credentials on the disk cannot be used, and what was read before holds on.",
			m.CredentialsStale),
		def("certificate_expiry_seconds",
			"Time until the certificate of a setting ends (of several authorities, the next one).",
			each("setting", s.certificates, func(c *health.Certificate) (string, any) {
				return c.Setting, c.Until.Sub(s.now)
			})),
		def("certificate_valid", "0: the certificate of a setting has ended, or is not valid yet by this machine's clock.",
			each("setting", s.certificates, func(c *health.Certificate) (string, any) {
				return c.Setting, c.At(s.now) < health.CertificateNotYet
			})),
		def("tls_handshakes_waiting", "TLS clients, of all protocols, whose handshake waits: for a second at most.",
			m.Handshakes.Waiting),
		def("tls_handshakes_total", "Signatures for TLS handshakes; clients with a session ticket need none.",
			m.Handshakes.Computed),
		def("tls_handshakes_refused_total", "TLS clients refused unseen, because more came than this node can compute.",
			m.Handshakes.Refused),
		def("auth_servers_silent_seconds", "How long no auth server has answered; 0: they do, or none is configured.",
			m.AuthSilentSeconds),
		def("auth_grants_held", "Clients that go on with an expired grant, because no auth server answers (auth-hold-time).",
			m.AuthHeld),
	}
}

// httpRows are of HTTP, and of what the log and the audit lack.
func httpRows(s *snapshot) []row {
	m, leftOut := &s.server, pairs("by", "clients", s.server.LogLinesLeftOut)
	if s.cluster != nil {
		leftOut = pairs("by", "clients", s.server.LogLinesLeftOut, "nodes", s.cluster.LinesLeftOut)
	}
	requests := series{[]string{"route", "code"}, func(set setter) {
		for r, n := range m.Requests {
			set(n, r.Route, strconv.Itoa(r.Code))
		}
	}}
	return []row{
		def("http_requests_total", "Answers to HTTP requests, by route and status.", requests),
		def("http_panics_total", "HTTP requests ended by a fault of this program; the log has the stack.", m.HTTPPanics),
		def("log_lines_left_out_total",
			"Lines caused by clients, or at the port for nodes, of which the log has only the number, once a minute.", leftOut),
		def("unread_answer_bytes", "Statistics, metrics and traces that clients have not read yet.", m.Turns.UnreadBytes),
		def("costly_answers_refused_total",
			"Requests for these that were answered 503: late (no turn came), unread (clients do not read).",
			pairs("reason", "late", m.Turns.Late, "unread", m.Turns.Unread)),
		def("audit_not_written_total", "Entries of the audit that the disk did not take: a restart forgets them.",
			m.AuditNotWritten),
	}
}

// nativeRows are of native clients.
func nativeRows(s *snapshot) []row {
	m := &s.server.Native
	requests := series{[]string{"request", "status"}, func(set setter) {
		for r, n := range m.Requests {
			set(n, r.Request, r.Status)
		}
	}}
	return []row{
		def("native_requests_total", "Answers to native clients, by request and status; other: a type of a later version.",
			requests),
		def("native_bytes_total", "Bytes of frames of native clients: received, sent.",
			pairs("direction", "received", m.ReceivedBytes, "sent", m.SentBytes)),
		def("native_in_flight_bytes", "Bytes of requests of native clients that are not answered yet.", m.InFlight),
		def("native_output_bytes", "Bytes of batches and messages that are not written to native clients yet.", m.Output),
		def("native_readers", "Open readers of native clients.", m.Readers),
		def("native_subscriptions", "Open subscriptions of native clients.", m.Subscriptions),
		def("native_unauthenticated_connections",
			"Open native connections that must send Auth and have not (max-unauthenticated-connections).", m.Strangers),
		def("native_connections_refused_total",
			"Native connections refused or ended: handshake, unauthenticated (too many), time (no Auth came).",
			keyed("reason", m.TurnedAway)),
	}
}

// clusterRows are of the cluster, as this node sees it.
func clusterRows(s *snapshot) []row {
	m := cmp.Or(s.cluster, new(node.ClusterMeter))
	peers := func(of func(*node.PeerMeter) any) series {
		return each("peer", m.Peers, func(p *node.PeerMeter) (string, any) { return p.Name, of(p) })
	}
	return []row{
		def("store_up", "1 while the metadata store extends this node's lease; 0: the node leads nothing.", m.Leased),
		def("store_full",
			"1 while the metadata store is full: nothing can be elected, moved or created.", m.Store.Full != ""),
		def("store_members_apart",
			"Members of the embedded etcd that this node's cannot reach, also of nodes that do not run.",
			len(m.Store.Apart)),
		def("store_member_failed",
			"1 while this node's member of the embedded etcd has stopped or is not reached: the node goes on.",
			m.Store.Fault != ""),
		def("lease_remaining_seconds", "Time until this node's lease ends.", m.LeaseLeft),
		def("controller", "1 on the node that decides about elections and replicas.", m.Controller),
		def("partitions", "Copies on this node: led here in_sync, under_replicated or below_min_isr; following; leaderless.",
			pairs("state", "in_sync", m.InSync, "under_replicated", m.UnderReplicated,
				"below_min_isr", m.BelowMinISR, "following", m.Following, "leaderless", m.Leaderless)),
		def("partitions_led", "Partitions that this node leads.", m.Led()),
		def("isr_changes_total", "Changes of the ISR that leaders on this node asked for.", s.counters.ISRChanges.Load()),
		def("leader_changes_total", "Times that this node began to lead a partition.", s.counters.LeaderChanges.Load()),
		def("replica_lag_seconds",
			"The longest time for which a node has lacked something of a partition that this node leads.",
			peers(func(p *node.PeerMeter) any { return p.Lag })),
		def("replica_lag_bytes", "Bytes that a node lacks of the partitions that this node leads.",
			peers(func(p *node.PeerMeter) any { return p.LagBytes })),
		def("peer_up", "1 while this node is connected to another node.", peers(func(p *node.PeerMeter) any { return p.Up })),
		def("nodes_unconnected", "Living nodes without a connection to this one for longer than a lease.", m.Unreached),
		def("clock_differs_seconds", "How far this node's engine clock is ahead of another's, measured within five minutes.",
			peers(func(p *node.PeerMeter) any { return p.ClockAhead })),
		def("node_connections_refused_total",
			"Connections to the node port that came to nothing: unproven, crowded (newer ones came), incomplete "+
				"(anything else).",
			pairs("reason", "unproven", m.Unproven, "crowded", m.Crowded, "incomplete", m.Incomplete)),
		def("frames_refused_total",
			"Frames of other nodes that were dropped: no_copy (this node has no copy of the partition).",
			pairs("reason", "no_copy", s.counters.FramesWithoutCopy.Load())),
	}
}

// topicRows are of topics, of which this node leads at least one partition; topicNumbers has their values.
var topicRows = []row{
	def("topic_published_messages_total", "Messages that this node has committed as the leader.", sum),
	def("topic_published_bytes_total", "Bytes of their bodies.", sum),
	def("topic_depth", "Messages that no channel can get yet, because there is none or the topic is paused.", sum),
	def("topic_paused", "1 while the topic is paused.", greatest),
	def("topic_over_quota", "1 while publishing is refused because of the quota, and for a minute after that.", greatest),
	def("topic_delays_refused_partitions",
		"Partitions that refuse delays at max-ranges, max-state-bytes or token-share.", sum),
	def("topic_stored_bytes", "Bytes of the logs of the partitions that this node leads.", sum),
	def("topic_producers",
		"Producers that number their messages; one counts in each partition that it publishes to.", sum),
	def("topic_max_partition_producers",
		"The same in the partition that knows the most. At 4096 it forgets anonymous ones, and refuses new names.", greatest),
}

// channelRows are of channels, in the partitions that this node leads; channelNumbers has their values.
var channelRows = []row{
	def("channel_depth", "Messages that wait for a consumer.", sum),
	def("channel_in_flight", "Messages that consumers have and have not finished.", sum),
	def("channel_deferred", "Messages that wait for their time.", sum),
	def("channel_consumers", "Consumers that this node serves.", sum),
	def("channel_paused", "1 while the channel is paused.", greatest),
	def("channel_skipping", "1 while the channel discards what is published.", greatest),
	def("channel_starved",
		"1 while messages wait and somebody consumes, but no consumer has asked for any for 10 s.", greatest),
	def("channel_full_partitions",
		"Partitions of which the channel delivers nothing new: too many messages wait between finished ones.", sum),
	def("channel_outbox_messages", "Dead letters that wait to be moved.", sum),
	def("channel_aside_messages", "Those that could not be moved when last tried; penstock channel list says why.", sum),
	def("channel_oldest_unfinished_age_seconds",
		"Age of the oldest unfinished message, or of one somewhat before it in a segment; 0: none.", greatest),
	def("channel_delivered_total", "Deliveries, also repeated ones.", sum),
	def("channel_finished_total", "Messages that consumers finished.", sum),
	def("channel_requeued_total", "Messages that consumers gave back.", sum),
	def("channel_timed_out_total", "Deliveries that no consumer finished in time.", sum),
	def("channel_dropped_total", "Messages that retention or a quota removed before they were finished.", sum),
	def("channel_skipped_total", "Messages that a skipping channel discarded.", sum),
	def("channel_dead_lettered_total", "Messages moved to the dead-letter topic.", sum),
}
