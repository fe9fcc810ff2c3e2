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
		"Time for which this process was not given a processor, in spans of 50 ms or more: it has too little of one, or it "+
			"was stopped.")
	truncated = define(ofNode, gauge, "metrics_truncated",
		"1 since topics or channels have more series than metrics-max-series: their families show sums over all of them.")
	age = define(ofNode, gauge, "metrics_age_seconds",
		"Age of the numbers of topics and channels in this scrape; above 0 only while reading them takes long.")
)

// Of the commit log, the segments and the memory.
var (
	commitGroups = define(ofStorage, counter, "commit_groups_total",
		"Groups of batches written to the commit log; each write includes a flush.")
	commitRecords = define(ofStorage, counter, "commit_records_total",
		"Batches that these groups held.")
	commitBytes = define(ofStorage, counter, "commit_bytes_total",
		"Bytes written to the commit log, with headers and padding.")
	commitZeroed = define(ofStorage, counter, "commit_zeroed_bytes_total",
		"Zeros written to new files of the commit log, until it has grown to its size.")
	commitFlush = define(ofStorage, histogram, "commit_flush_duration_seconds",
		"Time of a group from its submission to the disk until it is durable.")
	slowCommits = define(ofStorage, counter, "slow_commits_total",
		"Groups that took slow-commit or longer to become durable.")
	commitStalls = define(ofStorage, counter, "commit_stalls_total",
		"Times that the commit log had to wait: buffers (none was free), files (none was prepared), room (commit-live-bytes "+
			"was reached).", "reason")
	commitLive = define(ofStorage, gauge, "commit_live_bytes",
		"Bytes of the commit log that a restart would replay.")
	commitRoom = define(ofStorage, gauge, "commit_room_bytes",
		"Bytes that fit into the commit log before it has to wait for the segments.")
	inflatingBytes = define(ofStorage, gauge, "inflating_bytes",
		"Bytes to which compressed batches above 64 KiB grow that are being verified.")
	inflationRefused = define(ofStorage, counter, "inflation_refused_total",
		"Compressed batches of native clients that were refused because of max-inflation-ratio or max-inflated-bytes.")
	inboxBytes = define(ofStorage, gauge, "inbox_bytes",
		"Bytes of publishes that wait to be stored.")
	stateBytes = define(ofStorage, gauge, "state_bytes",
		"What deferred messages and confirmations out of order cost in memory, also of partitions that the node "+
			"follows.")
	stateLimit = define(ofStorage, gauge, "state_limit_bytes",
		"At this state_bytes delayed messages and new channels are refused (max-state-bytes).")
	listedPartitions = define(ofStorage, gauge, "listed_partitions",
		"Partitions of all topics that this node lists, wherever their copies are.")
	partitionLimit = define(ofStorage, gauge, "listed_partitions_limit",
		"At this many listed_partitions new topics and more partitions are refused (max-partitions).")
	tokenTopics = define(ofStorage, gauge, "token_topics",
		"Topics that count for a token, of the 20 tokens that take the most.", "token")
	tokenPartitions = define(ofStorage, gauge, "token_partitions",
		"Partitions of these topics.", "token")
	tokenState = define(ofStorage, gauge, "token_state_bytes",
		"What deferred messages and confirmations out of order of these topics cost in memory.", "token")
	tokenStored = define(ofStorage, gauge, "token_stored_bytes",
		"Bytes that the logs of these topics have on this node; publishing is refused above token-share of a disk nine "+
			"tenths full.", "token")
	tokenOfLimit = define(ofStorage, gauge, "token_limit_ratio",
		"The largest part, 0 to 1, that these topics take of max-topics, max-partitions or the room for delayed messages.",
		"token")
	listedTopics = define(ofStorage, gauge, "listed_topics",
		"Topics that this node lists, wherever their copies are.")
	topicLimit = define(ofStorage, gauge, "listed_topics_limit",
		"At this many listed_topics new ones are refused (max-topics).")
	logDropped = define(ofStorage, counter, "log_lines_dropped_total",
		"Lines of the log that were dropped, because the logger did not take them in time.")
	heapLimit = define(ofStorage, gauge, "heap_limit_bytes",
		"What the process may use besides its buffers, by the limit that it found at its start; 0: none is known.")
	copies = define(ofStorage, gauge, "copies",
		"Copies on this node that are not whole: damaged (a range cannot be read), contested (an operator has to choose), "+
			"short (its leader saw that it forgot), shortened (it may lack what this node acknowledged).", "state")
	olderDirectory = define(ofStorage, gauge, "older_directory",
		"1 since a start on an older state of the data directory, or on the original of a copy that ran on.")
	unknownTopics = define(ofStorage, gauge, "unknown_topics",
		"Topics of the data directory that the cluster does not know: their messages are kept and not served.")
	asideCuts = define(ofStorage, gauge, "aside_cuts",
		"Cuts of copies whose messages are kept aside, for seven days.")
	asideMessages = define(ofStorage, gauge, "aside_messages",
		"Messages that cuts took from copies and that are kept aside.")
	asideBytes = define(ofStorage, gauge, "aside_bytes",
		"Bytes of the batches that cuts took from copies and that are kept aside; at most 1 GiB.")
	buffersFree = define(ofStorage, gauge, "buffers_free",
		"Buffers of 1 MiB that are free for groups and the newest messages.")
	buffers = define(ofStorage, gauge, "buffers",
		"Buffers of 1 MiB that there are: see buffer-bytes.")
	segmentWritten = define(ofStorage, counter, "segment_written_bytes_total",
		"Bytes written to segments.")
	trashEntries = define(ofStorage, gauge, "trash_entries",
		"Deleted files and folders that are still to be removed, and whose space is not free yet.")
	openSegments = define(ofStorage, gauge, "open_segments",
		"Partitions that have segment files open, because they were written and not synced; at most max-open-segments.")
	mappedSegments = define(ofStorage, gauge, "mapped_segments",
		"Segments that are mapped into memory; without those that are being read at most max-mapped-segments.")
	retentionRemoved = define(ofStorage, counter, "retention_removed_bytes_total",
		"Bytes of segments that retention has removed.")
	diskFree = define(ofStorage, gauge, "disk_free_bytes",
		"Bytes that this process may still write to the file system of the data directory.")
	diskFull = define(ofStorage, gauge, "disk_full",
		"1 while publishes are refused because the disk is full.")
	diskInodes = define(ofStorage, gauge, "disk_free_inodes",
		"Files and folders that may still be made on the file system of the data directory; missing where only space limits "+
			"them.")
	diskTransient = define(ofStorage, gauge, "disk_transient",
		"1 if the data directory does not last: it is in memory (tmpfs), or in the own layer of a container (overlay).")
	diskState = define(ofStorage, gauge, "disk_state",
		"1 for the state that the disk is in: good, slow, hung or failed.", "state")
	clockAhead = define(ofStorage, gauge, "clock_ahead_seconds",
		"How far the wall clock is ahead of the engine's clock, which does not follow its steps; below 0: behind.")
	storageFailed = define(ofStorage, gauge, "storage_failed",
		"1 since a write of the commit log failed, or the start found it damaged, which no restart ends: nothing more is "+
			"stored.")
	logForgotten = define(ofStorage, gauge, "commit_log_forgotten",
		"1 since a start that found that files of the commit log were gone, or that an older state of the disk had come "+
			"back.")
	groundLost = define(ofStorage, gauge, "ground_lost",
		"1 since files of the data directory were removed, replaced or covered under the running node: nothing more is "+
			"answered OK.")
	readOnlyTopics = define(ofStorage, gauge, "read_only_topics",
		"Topics of which partitions store nothing new here, because a part of their logs is missing, damaged or of a newer "+
			"version.")
	corruptions = define(ofStorage, gauge, "corruptions",
		"Damaged data: in copies (cannot be read now), found by recovery, in segments and commit_log (found by the scrub "+
			"since the start).", "where")
)

// Of the clients of this node.
var (
	refused = define(ofClients, counter, "publishes_refused_total",
		"Publishes that were not answered OK; unknown: they may have been stored.", "reason")
	publishDuration = define(ofClients, histogram, "publish_duration_seconds",
		"Time from a publish until it is answered OK, measured for one in 16 of them; of native clients a batch counts as "+
			"one publish.", "protocol")
	connections = define(ofClients, gauge, "connections",
		"Open connections of clients: nsq, http, https, lookup (HTTP), lookup_tcp (of nsqds that register), native.", "kind")
	descriptorsRefused = define(ofClients, counter, "connections_without_descriptor_total",
		"Connections of clients that were closed at once, because only descriptors were left that are the node's own: see "+
			"docs/operate/security.md.")
	strangers = define(ofClients, gauge, "unauthenticated_connections",
		"Open NSQ connections that must send AUTH and have not; the limit is max-unauthenticated-connections.")
	knownConns = define(ofClients, gauge, "known_connections",
		"Open connections of NSQ's and native clients whose token has a share of them (token-share).")
	unprovenClosed = define(ofClients, counter, "unproven_connections_closed_total",
		"Connections that had proved nothing and were closed for newer ones, at all ports.")
	strangersRefused = define(ofClients, counter, "unauthenticated_refused_total",
		"NSQ connections that were closed before AUTH: connections (too many), bytes (a body was too large), time.", "reason")
	largeInput = define(ofClients, gauge, "large_input_bytes",
		"Bytes of commands above 64 KiB and HTTP bodies above 16 KiB that are under way; the limit is max-large-input-bytes.")
	largeInputWaits = define(ofClients, counter, "large_input_waits_total",
		"Commands that waited because max-large-input-bytes, or their client's quarter of it, was reached.")
	moderatedReads = define(ofClients, counter, "moderated_reads_total",
		"Reads for which the commands of some 50 µs were gathered: from consumers that have many messages in flight, and "+
			"from crowds of publishers.")
	polledPublishers = define(ofClients, gauge, "polled_publishers",
		"Connections of publishers that are one of a crowd, so that one goroutine reads them all.")
	authFailures = define(ofClients, counter, "auth_failures_total",
		"Requests and commands that were refused because their client proved nothing, or may not do that.")
	credentialsStale = define(ofClients, gauge, "credentials_stale",
		"1: the certificates, keys, tokens or the secret on the disk cannot be used, and what was read before holds on.")
	certificateExpiry = define(ofClients, gauge, "certificate_expiry_seconds",
		"Time until the certificate ends that a setting names (of several authorities, the next one); below 0: it has "+
			"ended.", "setting")
	certificateValid = define(ofClients, gauge, "certificate_valid",
		"0: the certificate that a setting names has ended, or is not valid yet by this machine's clock.", "setting")
	handshakesWaiting = define(ofClients, gauge, "tls_handshakes_waiting",
		"TLS clients, of all protocols, that wait until their handshake is computed: for a second at most.")
	handshakesComputed = define(ofClients, counter, "tls_handshakes_total",
		"Signatures for TLS handshakes; clients that come back with a session ticket need none.")
	handshakesRefused = define(ofClients, counter, "tls_handshakes_refused_total",
		"TLS clients that were refused before anything was computed for them, because more came than this node can compute.")
	authSilent = define(ofClients, gauge, "auth_servers_silent_seconds",
		"How long no auth server has answered; 0: they do, or none is configured.")
	authHeld = define(ofClients, gauge, "auth_grants_held",
		"Clients that go on with a grant that has expired, because no auth server answers: auth-hold-time.")
	httpRequests = define(ofClients, counter, "http_requests_total",
		"Answers to HTTP requests, by the pattern of the route and the status.", "route", "code")
	httpPanics = define(ofClients, counter, "http_panics_total",
		"HTTP requests that a fault of this program has ended; the log has the stack.")
	logLeftOut = define(ofClients, counter, "log_lines_left_out_total",
		"Lines that clients, or connections to the port for nodes, caused, and of which the log has only the number, once a "+
			"minute.", "by")
	unreadAnswers = define(ofClients, gauge, "unread_answer_bytes",
		"Statistics, metrics and traces that clients have not read yet.")
	answersRefused = define(ofClients, counter, "costly_answers_refused_total",
		"Requests for statistics, metrics and traces that were answered 503: late (no turn came), unread (clients do not "+
			"read).", "reason")
	auditNotWritten = define(ofClients, counter, "audit_not_written_total",
		"Entries of the audit that the disk did not take: they are in memory, changes also in the log, and a restart "+
			"forgets them.")
	nativeRequests = define(ofClients, counter, "native_requests_total",
		"Answers to requests of native clients, by their type and status; other: a type of a later version.",
		"request", "status")
	nativeBytes = define(ofClients, counter, "native_bytes_total",
		"Bytes of the frames of native clients, by direction: received, sent.", "direction")
	nativeInFlight = define(ofClients, gauge, "native_in_flight_bytes",
		"Bytes of requests of native clients that have not been answered yet.")
	nativeOutput = define(ofClients, gauge, "native_output_bytes",
		"Bytes of batches and messages for native clients that are not written to their connections yet.")
	nativeReaders = define(ofClients, gauge, "native_readers",
		"Open readers of native clients.")
	nativeSubscriptions = define(ofClients, gauge, "native_subscriptions",
		"Open subscriptions of native clients to channels.")
	nativeStrangers = define(ofClients, gauge, "native_unauthenticated_connections",
		"Open native connections that must send Auth and have not; the limit is max-unauthenticated-connections.")
	nativeTurnedAway = define(ofClients, counter, "native_connections_refused_total",
		"Native connections that were refused or ended: handshake, unauthenticated (too many), time (no Auth came in time).",
		"reason")
)

// Of the cluster, as this node sees it.
var (
	storeUp = define(ofCluster, gauge, "store_up",
		"1 while the metadata store extends this node's lease; 0: this node leads nothing and does not know who does.")
	storeFull = define(ofCluster, gauge, "store_full",
		"1 while the metadata store is full and takes no changes: nothing can be elected, moved or created.")
	storeApart = define(ofCluster, gauge, "store_members_apart",
		"Members of the embedded metadata store that the one on this node cannot reach; nodes that do not run count.")
	storeFault = define(ofCluster, gauge, "store_member_failed",
		"1 while the member of the embedded metadata store on this node has stopped or is not reached: the node goes on.")
	leaseLeft = define(ofCluster, gauge, "lease_remaining_seconds",
		"Time until this node's lease ends unless the metadata store extends it.")
	controller = define(ofCluster, gauge, "controller",
		"1 on the node that decides about elections and replicas.")
	partitions = define(ofCluster, gauge, "partitions",
		"Copies on this node by the state of their partition: led here in_sync, under_replicated or below_min_isr; "+
			"following; leaderless.", "state")
	partitionsLed = define(ofCluster, gauge, "partitions_led",
		"Partitions that this node leads.")
	isrChanges = define(ofCluster, counter, "isr_changes_total",
		"Changes of in-sync replicas that leaders on this node asked for.")
	leaderChanges = define(ofCluster, counter, "leader_changes_total",
		"Times that this node began to lead a partition.")
	lagSeconds = define(ofCluster, gauge, "replica_lag_seconds",
		"Time for which another node has lacked something of a partition that this node leads: the longest.", "peer")
	lagBytes = define(ofCluster, gauge, "replica_lag_bytes",
		"Bytes that another node lacks of the partitions that this node leads.", "peer")
	peerUp = define(ofCluster, gauge, "peer_up",
		"1 while this node is connected to another node.", "peer")
	unconnected = define(ofCluster, gauge, "nodes_unconnected",
		"Living nodes to which this node has had no connection for longer than a lease.")
	clockDiffers = define(ofCluster, gauge, "clock_differs_seconds",
		"How far this node's engine clock is ahead of that of another node, measured within five minutes; below 0: behind.",
		"peer")
	nodeConnsRefused = define(ofCluster, counter, "node_connections_refused_total",
		"Connections to the node port that came to nothing: unproven (no proof of the cluster), crowded (newer ones came), "+
			"incomplete (anything else).", "reason")
	framesRefused = define(ofCluster, counter, "frames_refused_total",
		"Frames of other nodes that were dropped: no_copy (about a partition of which this node has no copy).", "reason")
)

// Of topics, of which this node leads at least one partition.
var (
	topicMessages = define(ofTopics, counter, "topic_published_messages_total",
		"Messages that this node has stored as the leader and that are committed.", "topic")
	topicBytes = define(ofTopics, counter, "topic_published_bytes_total",
		"Bytes of the bodies of these messages.", "topic")
	topicDepth = define(ofTopics, gauge, "topic_depth",
		"Messages that no channel can get yet, because the topic has no channel or is paused.", "topic")
	topicPaused = define(ofTopics, gauge, "topic_paused",
		"1 while the topic is paused: its channels get nothing of what is published.", "topic")
	topicOverQuota = define(ofTopics, gauge, "topic_over_quota",
		"1 while publishing is refused because of the topic's quota, and for a minute after that.", "topic")
	topicDelays = define(ofTopics, gauge, "topic_delays_refused_partitions",
		"Partitions that refuse delayed messages, because as many wait as max-ranges, max-state-bytes or token-share allows.",
		"topic")
	topicStored = define(ofTopics, gauge, "topic_stored_bytes",
		"Bytes of the logs of the partitions that this node leads.", "topic")
	topicProducers = define(ofTopics, gauge, "topic_producers",
		"Producers that number their messages, as the partitions know them that this node leads. One that publishes to "+
			"several partitions counts in each.", "topic")
	topicMaxProducers = define(ofTopics, gauge, "topic_max_partition_producers",
		"The same in the partition that knows the most. At 4096 a partition forgets anonymous ones, and refuses further "+
			"named ones.", "topic")
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
		"1 while the channel discards what is published, because somebody made it skip.", "topic", "channel")
	channelStarved = define(ofChannels, gauge, "channel_starved",
		"1 while messages wait and somebody consumes, but no consumer has asked for any for 10 s.", "topic", "channel")
	channelFull = define(ofChannels, gauge, "channel_full_partitions",
		"Partitions of which the channel delivers nothing new, because too many messages wait between finished ones.",
		"topic", "channel")
	channelOutbox = define(ofChannels, gauge, "channel_outbox_messages",
		"Dead letters that wait to be moved to the dead-letter topic.", "topic", "channel")
	channelAside = define(ofChannels, gauge, "channel_aside_messages",
		"Those of them that could not be moved when they were tried last; penstock channel list says why.",
		"topic", "channel")
	channelOldest = define(ofChannels, gauge, "channel_oldest_unfinished_age_seconds",
		"Age of the oldest message that is not finished; 0 if there is none. If the message is only in a segment, the age "+
			"of one somewhat before it.", "topic", "channel")
	channelDelivered = define(ofChannels, counter, "channel_delivered_total",
		"Deliveries to consumers, also repeated ones.", "topic", "channel")
	channelFinished = define(ofChannels, counter, "channel_finished_total",
		"Messages that consumers finished.", "topic", "channel")
	channelRequeued = define(ofChannels, counter, "channel_requeued_total",
		"Messages that consumers gave back.", "topic", "channel")
	channelTimedOut = define(ofChannels, counter, "channel_timed_out_total",
		"Deliveries that no consumer finished in time.", "topic", "channel")
	channelDropped = define(ofChannels, counter, "channel_dropped_total",
		"Messages that retention or a quota removed before consumers had finished them.", "topic", "channel")
	channelSkipped = define(ofChannels, counter, "channel_skipped_total",
		"Messages that the channel discarded, because somebody made it skip.", "topic", "channel")
	channelDeadLettered = define(ofChannels, counter, "channel_dead_lettered_total",
		"Messages that were moved to the dead-letter topic after too many attempts.", "topic", "channel")
)
