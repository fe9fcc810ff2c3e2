package metrics

import (
	"cmp"
	"slices"

	"github.com/prometheus/client_golang/prometheus"
)

// family is one metric: its name without the prefix, what it says, its type and its labels.
type family struct {
	name, help string
	kind       kind
	labels     []string
	sorted     []int // indices of labels, in the order of their names, which is that of the format
	section    section
	desc       *prometheus.Desc
}

// kind is the type of a metric.
type kind uint8

const (
	counter kind = iota
	gauge
	histogram
)

func (k kind) String() string { return [...]string{"counter", "gauge", "histogram"}[k] }

// section is where docs/operate/metrics.md lists a metric.
type section uint8

const (
	ofNode section = iota
	ofStorage
	ofClients
	ofCluster
	ofTopics
	ofChannels
)

// prefix begins the name of every metric.
const prefix = "penstock_"

// families lists every metric, in the order of its definition.
var families []*family

func define(s section, k kind, name, help string, labels ...string) *family {
	f := &family{
		name: prefix + name, help: help, kind: k, labels: labels, section: s,
		desc: prometheus.NewDesc(prefix+name, help, labels, nil),
	}
	for i := range labels {
		f.sorted = append(f.sorted, i)
	}
	slices.SortFunc(f.sorted, func(a, b int) int { return cmp.Compare(labels[a], labels[b]) })
	families = append(families, f)
	return f
}

// Of the node.
var (
	buildInfo = define(ofNode, gauge, "build_info",
		"Always 1; the labels say which version runs.", "version", "goversion")
	storageInfo = define(ofNode, gauge, "storage_info",
		"Always 1; the labels say how this node writes and to what.", "io", "filesystem", "device_cache", "direct")
	startTime = define(ofNode, gauge, "start_time_seconds",
		"When this process began to serve, in seconds since 1970.")
	ready = define(ofNode, gauge, "ready",
		"1 while a check of /readyz is passed; the node is ready if all are.", "check")
	unscheduled = define(ofNode, counter, "unscheduled_seconds_total",
		"Time in which this process was given no processor, in spans of 50 ms or more: it has too little of one, or was "+
			"stopped.")
	truncated = define(ofNode, gauge, "metrics_truncated",
		"1 since topics or channels have more series than metrics-max-series, and their families show sums.")
	age = define(ofNode, gauge, "metrics_age_seconds",
		"Age of the numbers of topics and channels; above 0 only while reading them takes long.")
)

// Of the commit log, the segments and the memory.
var (
	commitGroups = define(ofStorage, counter, "commit_groups_total",
		"Groups of batches written to the commit log, each with a flush.")
	commitRecords = define(ofStorage, counter, "commit_records_total",
		"Batches in these groups.")
	commitBytes = define(ofStorage, counter, "commit_bytes_total",
		"Bytes written to the commit log, with headers and padding.")
	commitZeroed = define(ofStorage, counter, "commit_zeroed_bytes_total",
		"Zeros written to new files of the commit log.")
	commitFlush = define(ofStorage, histogram, "commit_flush_duration_seconds",
		"Time of a group from its submission until it is durable.")
	slowCommits = define(ofStorage, counter, "slow_commits_total",
		"Groups that took slow-commit or longer.")
	commitStalls = define(ofStorage, counter, "commit_stalls_total",
		"Times that the commit log waited: for buffers, files, or room (commit-live-bytes was reached).", "reason")
	commitLive = define(ofStorage, gauge, "commit_live_bytes",
		"Bytes of the commit log that a restart would read.")
	commitRoom = define(ofStorage, gauge, "commit_room_bytes",
		"Bytes that fit into the commit log before it waits for the segments.")
	inflatingBytes = define(ofStorage, gauge, "inflating_bytes",
		"Bytes to which compressed batches above 64 KiB grow while they are verified.")
	inflationRefused = define(ofStorage, counter, "inflation_refused_total",
		"Compressed batches refused because of max-inflation-ratio or max-inflated-bytes.")
	inboxBytes = define(ofStorage, gauge, "inbox_bytes",
		"Bytes of publishes that wait to be stored.")
	stateBytes = define(ofStorage, gauge, "state_bytes",
		"Memory of deferred messages and confirmations out of order, also of partitions that the node follows.")
	stateLimit = define(ofStorage, gauge, "state_limit_bytes",
		"At this state_bytes delays and new channels are refused (max-state-bytes).")
	listedPartitions = define(ofStorage, gauge, "listed_partitions",
		"Partitions of all topics, wherever their copies are.")
	partitionLimit = define(ofStorage, gauge, "listed_partitions_limit",
		"At this many listed_partitions more are refused (max-partitions).")
	tokenTopics = define(ofStorage, gauge, "token_topics",
		"Topics that count for a token, of the 20 tokens that take the most.", "token")
	tokenPartitions = define(ofStorage, gauge, "token_partitions",
		"Partitions of these topics.", "token")
	tokenState = define(ofStorage, gauge, "token_state_bytes",
		"Memory of their deferred messages and confirmations out of order.", "token")
	tokenStored = define(ofStorage, gauge, "token_stored_bytes",
		"Bytes of their logs on this node; publishing is refused above token-share of a disk nine tenths full.", "token")
	tokenOfLimit = define(ofStorage, gauge, "token_limit_ratio",
		"The largest part, 0 to 1, that they take of max-topics, max-partitions or max-state-bytes.",
		"token")
	listedTopics = define(ofStorage, gauge, "listed_topics",
		"Topics, wherever their copies are.")
	topicLimit = define(ofStorage, gauge, "listed_topics_limit",
		"At this many listed_topics more are refused (max-topics).")
	logDropped = define(ofStorage, counter, "log_lines_dropped_total",
		"Lines of the log that the logger did not take in time.")
	heapLimit = define(ofStorage, gauge, "heap_limit_bytes",
		"What the process may use besides its buffers; 0: no limit is known.")
	copies = define(ofStorage, gauge, "copies",
		"Copies on this node that are not whole, by what they are: damaged, contested, short or shortened.", "state")
	olderDirectory = define(ofStorage, gauge, "older_directory",
		"1 since a start on an older state of the data directory, or on the original of a copy that ran on.")
	unknownTopics = define(ofStorage, gauge, "unknown_topics",
		"Topics of the data directory that the cluster does not know: they are kept and not served.")
	asideCuts = define(ofStorage, gauge, "aside_cuts",
		"Cuts of copies whose messages are kept aside.")
	asideMessages = define(ofStorage, gauge, "aside_messages",
		"Messages that are kept aside.")
	asideBytes = define(ofStorage, gauge, "aside_bytes",
		"Bytes of the batches that are kept aside.")
	buffersFree = define(ofStorage, gauge, "buffers_free",
		"Buffers of 1 MiB that are free for groups and the newest messages.")
	buffers = define(ofStorage, gauge, "buffers",
		"Buffers of 1 MiB that there are (buffer-bytes).")
	segmentWritten = define(ofStorage, counter, "segment_written_bytes_total",
		"Bytes written to segments.")
	trashEntries = define(ofStorage, gauge, "trash_entries",
		"Deleted files and folders that are not removed yet, and whose space is not free.")
	openSegments = define(ofStorage, gauge, "open_segments",
		"Partitions with open segment files, written and not synced; at most max-open-segments.")
	mappedSegments = define(ofStorage, gauge, "mapped_segments",
		"Segments mapped into memory; without those being read at most max-mapped-segments.")
	retentionRemoved = define(ofStorage, counter, "retention_removed_bytes_total",
		"Bytes of segments removed by retention.")
	diskFree = define(ofStorage, gauge, "disk_free_bytes",
		"Bytes that this process may still write to the data directory's file system.")
	diskFull = define(ofStorage, gauge, "disk_full",
		"1 while publishes are refused because the disk is full.")
	diskInodes = define(ofStorage, gauge, "disk_free_inodes",
		"Files that may still be made there; missing where only space limits them.")
	diskTransient = define(ofStorage, gauge, "disk_transient",
		"1 if the data directory is in memory (tmpfs), or in the own layer of a container (overlay).")
	diskState = define(ofStorage, gauge, "disk_state",
		"1 for the state of the disk: good, slow, hung or failed.", "state")
	clockAhead = define(ofStorage, gauge, "clock_ahead_seconds",
		"How far the wall clock is ahead of the engine's clock, which does not follow its steps.")
	storageFailed = define(ofStorage, gauge, "storage_failed",
		"1 since a write of the commit log failed, or the start found it damaged: nothing more is stored.")
	logForgotten = define(ofStorage, gauge, "commit_log_forgotten",
		"1 since a start to which files of the commit log were missing, or an older state of the disk had come back.")
	groundLost = define(ofStorage, gauge, "ground_lost",
		"1 since files were removed, replaced or covered under the running node: nothing more is answered OK.")
	readOnlyTopics = define(ofStorage, gauge, "read_only_topics",
		"Topics that store nothing new in partitions whose logs are in part missing, damaged or of a newer version.")
	corruptions = define(ofStorage, gauge, "corruptions",
		"Damaged data: in copies (now), found by recovery, in segments and commit_log (found by the scrub since the start).",
		"where")
)

// Of the clients of this node.
var (
	refused = define(ofClients, counter, "publishes_refused_total",
		"Publishes that were not answered OK; unknown: they may have been stored.", "reason")
	publishDuration = define(ofClients, histogram, "publish_duration_seconds",
		"Time from a publish until its OK, measured for one in 16; a batch of a native client counts as one.", "protocol")
	connections = define(ofClients, gauge, "connections",
		"Open connections of clients: nsq, http, https, lookup (HTTP), lookup_tcp (nsqds that register), native.", "kind")
	descriptorsRefused = define(ofClients, counter, "connections_without_descriptor_total",
		"Connections that were closed at once, because only the node's own descriptors were left.")
	strangers = define(ofClients, gauge, "unauthenticated_connections",
		"Open NSQ connections that must send AUTH and have not (max-unauthenticated-connections).")
	knownConns = define(ofClients, gauge, "known_connections",
		"Open connections of NSQ's and native clients whose token has a share of them.")
	unprovenClosed = define(ofClients, counter, "unproven_connections_closed_total",
		"Connections that had proved nothing and were closed for newer ones, at all ports.")
	strangersRefused = define(ofClients, counter, "unauthenticated_refused_total",
		"NSQ connections closed before AUTH: connections (too many), bytes (a body was too large), time.", "reason")
	largeInput = define(ofClients, gauge, "large_input_bytes",
		"Bytes of commands above 64 KiB and HTTP bodies above 16 KiB that are arriving (max-large-input-bytes).")
	largeInputWaits = define(ofClients, counter, "large_input_waits_total",
		"Commands that waited for room in max-large-input-bytes, or in their client's quarter.")
	moderatedReads = define(ofClients, counter, "moderated_reads_total",
		"Reads for which the commands of some 50 µs were gathered, of busy consumers and crowds of publishers.")
	polledPublishers = define(ofClients, gauge, "polled_publishers",
		"Connections of publishers that one goroutine reads as a crowd.")
	authFailures = define(ofClients, counter, "auth_failures_total",
		"Requests and commands refused because their client proved nothing, or lacks the right.")
	credentialsStale = define(ofClients, gauge, "credentials_stale",
		"1: credentials on the disk cannot be used, and what was read before holds on.")
	certificateExpiry = define(ofClients, gauge, "certificate_expiry_seconds",
		"Time until the certificate of a setting ends (of several authorities, the next one).", "setting")
	certificateValid = define(ofClients, gauge, "certificate_valid",
		"0: the certificate of a setting has ended, or is not valid yet by this machine's clock.", "setting")
	handshakesWaiting = define(ofClients, gauge, "tls_handshakes_waiting",
		"TLS clients, of all protocols, whose handshake waits: for a second at most.")
	handshakesComputed = define(ofClients, counter, "tls_handshakes_total",
		"Signatures for TLS handshakes; clients with a session ticket need none.")
	handshakesRefused = define(ofClients, counter, "tls_handshakes_refused_total",
		"TLS clients refused unseen, because more came than this node can compute.")
	authSilent = define(ofClients, gauge, "auth_servers_silent_seconds",
		"How long no auth server has answered; 0: they do, or none is configured.")
	authHeld = define(ofClients, gauge, "auth_grants_held",
		"Clients that go on with an expired grant, because no auth server answers (auth-hold-time).")
	httpRequests = define(ofClients, counter, "http_requests_total",
		"Answers to HTTP requests, by route and status.", "route", "code")
	httpPanics = define(ofClients, counter, "http_panics_total",
		"HTTP requests ended by a fault of this program; the log has the stack.")
	logLeftOut = define(ofClients, counter, "log_lines_left_out_total",
		"Lines caused by clients, or at the port for nodes, of which the log has only the number, once a minute.", "by")
	unreadAnswers = define(ofClients, gauge, "unread_answer_bytes",
		"Statistics, metrics and traces that clients have not read yet.")
	answersRefused = define(ofClients, counter, "costly_answers_refused_total",
		"Requests for these that were answered 503: late (no turn came), unread (clients do not read).", "reason")
	auditNotWritten = define(ofClients, counter, "audit_not_written_total",
		"Entries of the audit that the disk did not take: a restart forgets them.")
	nativeRequests = define(ofClients, counter, "native_requests_total",
		"Answers to native clients, by request and status; other: a type of a later version.",
		"request", "status")
	nativeBytes = define(ofClients, counter, "native_bytes_total",
		"Bytes of frames of native clients: received, sent.", "direction")
	nativeInFlight = define(ofClients, gauge, "native_in_flight_bytes",
		"Bytes of requests of native clients that are not answered yet.")
	nativeOutput = define(ofClients, gauge, "native_output_bytes",
		"Bytes of batches and messages that are not written to native clients yet.")
	nativeReaders = define(ofClients, gauge, "native_readers",
		"Open readers of native clients.")
	nativeSubscriptions = define(ofClients, gauge, "native_subscriptions",
		"Open subscriptions of native clients.")
	nativeStrangers = define(ofClients, gauge, "native_unauthenticated_connections",
		"Open native connections that must send Auth and have not (max-unauthenticated-connections).")
	nativeTurnedAway = define(ofClients, counter, "native_connections_refused_total",
		"Native connections refused or ended: handshake, unauthenticated (too many), time (no Auth came).",
		"reason")
)

// Of the cluster, as this node sees it.
var (
	storeUp = define(ofCluster, gauge, "store_up",
		"1 while the metadata store extends this node's lease; 0: the node leads nothing.")
	storeFull = define(ofCluster, gauge, "store_full",
		"1 while the metadata store is full: nothing can be elected, moved or created.")
	storeApart = define(ofCluster, gauge, "store_members_apart",
		"Members of the embedded etcd that this node's cannot reach, also of nodes that do not run.")
	storeFault = define(ofCluster, gauge, "store_member_failed",
		"1 while this node's member of the embedded etcd has stopped or is not reached: the node goes on.")
	leaseLeft = define(ofCluster, gauge, "lease_remaining_seconds",
		"Time until this node's lease ends.")
	controller = define(ofCluster, gauge, "controller",
		"1 on the node that decides about elections and replicas.")
	partitions = define(ofCluster, gauge, "partitions",
		"Copies on this node: led here in_sync, under_replicated or below_min_isr; following; leaderless.", "state")
	partitionsLed = define(ofCluster, gauge, "partitions_led",
		"Partitions that this node leads.")
	isrChanges = define(ofCluster, counter, "isr_changes_total",
		"Changes of the ISR that leaders on this node asked for.")
	leaderChanges = define(ofCluster, counter, "leader_changes_total",
		"Times that this node began to lead a partition.")
	lagSeconds = define(ofCluster, gauge, "replica_lag_seconds",
		"The longest time for which a node has lacked something of a partition that this node leads.", "peer")
	lagBytes = define(ofCluster, gauge, "replica_lag_bytes",
		"Bytes that a node lacks of the partitions that this node leads.", "peer")
	peerUp = define(ofCluster, gauge, "peer_up",
		"1 while this node is connected to another node.", "peer")
	unconnected = define(ofCluster, gauge, "nodes_unconnected",
		"Living nodes without a connection to this one for longer than a lease.")
	clockDiffers = define(ofCluster, gauge, "clock_differs_seconds",
		"How far this node's engine clock is ahead of another's, measured within five minutes.",
		"peer")
	nodeConnsRefused = define(ofCluster, counter, "node_connections_refused_total",
		"Connections to the node port that came to nothing: unproven, crowded (newer ones came), incomplete (anything else).",
		"reason")
	framesRefused = define(ofCluster, counter, "frames_refused_total",
		"Frames of other nodes that were dropped: no_copy (this node has no copy of the partition).", "reason")
)

// Of topics, of which this node leads at least one partition.
var (
	topicMessages = define(ofTopics, counter, "topic_published_messages_total",
		"Messages that this node has committed as the leader.", "topic")
	topicBytes = define(ofTopics, counter, "topic_published_bytes_total",
		"Bytes of their bodies.", "topic")
	topicDepth = define(ofTopics, gauge, "topic_depth",
		"Messages that no channel can get yet, because there is none or the topic is paused.", "topic")
	topicPaused = define(ofTopics, gauge, "topic_paused",
		"1 while the topic is paused.", "topic")
	topicOverQuota = define(ofTopics, gauge, "topic_over_quota",
		"1 while publishing is refused because of the quota, and for a minute after that.", "topic")
	topicDelays = define(ofTopics, gauge, "topic_delays_refused_partitions",
		"Partitions that refuse delays at max-ranges, max-state-bytes or token-share.",
		"topic")
	topicStored = define(ofTopics, gauge, "topic_stored_bytes",
		"Bytes of the logs of the partitions that this node leads.", "topic")
	topicProducers = define(ofTopics, gauge, "topic_producers",
		"Producers that number their messages; one counts in each partition that it publishes to.", "topic")
	topicMaxProducers = define(ofTopics, gauge, "topic_max_partition_producers",
		"The same in the partition that knows the most. At 4096 it forgets anonymous ones, and refuses new names.", "topic")
)

// Of channels, in the partitions that this node leads.
var (
	channelDepth = define(ofChannels, gauge, "channel_depth",
		"Messages that wait for a consumer.", "topic", "channel")
	channelInFlight = define(ofChannels, gauge, "channel_in_flight",
		"Messages that consumers have and have not finished.", "topic", "channel")
	channelDeferred = define(ofChannels, gauge, "channel_deferred",
		"Messages that wait for their time.", "topic", "channel")
	channelConsumers = define(ofChannels, gauge, "channel_consumers",
		"Consumers that this node serves.", "topic", "channel")
	channelPaused = define(ofChannels, gauge, "channel_paused",
		"1 while the channel is paused.", "topic", "channel")
	channelSkipping = define(ofChannels, gauge, "channel_skipping",
		"1 while the channel discards what is published.", "topic", "channel")
	channelStarved = define(ofChannels, gauge, "channel_starved",
		"1 while messages wait and somebody consumes, but no consumer has asked for any for 10 s.", "topic", "channel")
	channelFull = define(ofChannels, gauge, "channel_full_partitions",
		"Partitions of which the channel delivers nothing new: too many messages wait between finished ones.",
		"topic", "channel")
	channelOutbox = define(ofChannels, gauge, "channel_outbox_messages",
		"Dead letters that wait to be moved.", "topic", "channel")
	channelAside = define(ofChannels, gauge, "channel_aside_messages",
		"Those that could not be moved when last tried; penstock channel list says why.",
		"topic", "channel")
	channelOldest = define(ofChannels, gauge, "channel_oldest_unfinished_age_seconds",
		"Age of the oldest unfinished message, or of one somewhat before it in a segment; 0: none.", "topic", "channel")
	channelDelivered = define(ofChannels, counter, "channel_delivered_total",
		"Deliveries, also repeated ones.", "topic", "channel")
	channelFinished = define(ofChannels, counter, "channel_finished_total",
		"Messages that consumers finished.", "topic", "channel")
	channelRequeued = define(ofChannels, counter, "channel_requeued_total",
		"Messages that consumers gave back.", "topic", "channel")
	channelTimedOut = define(ofChannels, counter, "channel_timed_out_total",
		"Deliveries that no consumer finished in time.", "topic", "channel")
	channelDropped = define(ofChannels, counter, "channel_dropped_total",
		"Messages that retention or a quota removed before they were finished.", "topic", "channel")
	channelSkipped = define(ofChannels, counter, "channel_skipped_total",
		"Messages that a skipping channel discarded.", "topic", "channel")
	channelDeadLettered = define(ofChannels, counter, "channel_dead_lettered_total",
		"Messages moved to the dead-letter topic.", "topic", "channel")
)
