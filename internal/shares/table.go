package shares

// Resource is something of a node of which there is so much, and of which a principal has a share: a token, or the
// address of a client that has shown none. The table in docs/operate/limits.md comes from Table, and tests/attacks
// attacks each of them.
type Resource struct {
	Name    string
	Bound   string // of the node, by default
	Parts   int64  // one principal has one of so many parts of the bound; 0: see Share
	Share   string // of one principal, if Parts is 0
	AtBound string // what happens at the bound, and at the share
	Metric  string // what shows that the bound is near, or was met
	Setting string // of the bound; empty: it cannot be set
}

// Connections, and what clients cost that have proved nothing. See package strangers for whose oldest goes.
var (
	BeforeAuth = Resource{
		Name:  "NSQ connections before AUTH",
		Bound: "256, for 10 s, with 4 KiB of commands", Share: oldest,
		AtBound: goes, Metric: closed, Setting: "max-unauthenticated-connections",
	}
	NativeProofs = Resource{
		Name:  "native connections before Auth",
		Bound: "256, for 10 s, and 1024 in handshakes", Share: oldest,
		AtBound: goes, Metric: closed, Setting: "max-unauthenticated-connections",
	}
	HTTPWaiting = Resource{
		Name: "HTTP connections without a request", Share: oldest, AtBound: goes, Metric: closed,
		Bound:   "4096 at each listener, half of the connections if less",
		Setting: "max-connections",
	}
	NodeProofs = Resource{
		Name: "connections to the port for nodes before their proof", Bound: "64", Share: oldest, AtBound: goes,
		Metric: closed, Setting: "cluster-max-handshakes",
	}
	EtcdConnections = Resource{
		Name: "connections to the embedded etcd", Share: oldest, AtBound: goes, Metric: closed,
		Bound: "16 to 256 without a proof, for 10 s, and 16 to 1024 with one, at each port",
	}
	TLSHandshakes = Resource{
		Name: "TLS handshakes", Bound: "one for each processor, half of the time; 1024 wait", Share: none,
		AtBound: "who has waited 1 s is refused", Metric: "penstock_tls_handshakes_refused_total",
		Setting: "max-tls-handshakes",
	}
	Descriptors = Resource{
		Name:  "file descriptors",
		Bound: "the limit of open files, less a quarter, 1024 at most, for the node",
		Share: "no share", AtBound: "the connection is closed at once",
		Metric: "penstock_connections_without_descriptor_total",
	}
	CostlyAnswers = Resource{
		Name: "statistics and metrics", Bound: "one at a time without a token, two with one", Share: none,
		AtBound: "the request waits 5 s, then 503", Metric: "penstock_costly_answers_refused_total",
	}
	UnreadAnswers = Resource{
		Name: "statistics, metrics and traces that nobody reads", Bound: "128 MiB", Parts: 4, AtBound: "503",
		Metric: "penstock_unread_answer_bytes",
	}
	LogLines = Resource{
		Name: "lines of the log", Share: none, AtBound: "they are counted", Metric: "penstock_log_lines_left_out_total",
		Bound: "of each kind one at once, then one in a minute",
	}
	AuditEntries = Resource{
		Name: "entries of the audit", Bound: "1000", Share: "strangers have a quarter",
		AtBound: "the oldest goes of who has the most",
		Metric:  "penstock_auth_failures_total", Setting: "max-audit-entries",
	}
)

// What clients with a token take.
var (
	LargeInput = Resource{
		Name: "large commands and bodies on their way", Parts: 4, Metric: "penstock_large_input_bytes",
		Bound:   "256 MiB of commands above 64 KiB and bodies above 16 KiB",
		AtBound: "commands wait, bodies are answered 503; who sends less than 16 KiB/s is closed",
		Setting: "max-large-input-bytes",
	}
	Connections = Resource{
		Name: "connections of NSQ's and native clients", Bound: "65,536",
		Share: half, AtBound: "AUTH fails, and the connection is closed", Metric: "penstock_known_connections",
		Setting: "max-connections",
	}
	InflatedBytes = Resource{
		Name: "what compressed batches grow to while they are verified", Bound: "64 MiB; half of the processors", Parts: 4,
		AtBound: "they wait `admit-timeout`, then are refused; one that grows by more than `max-inflation-ratio` at once",
		Metric:  "penstock_inflating_bytes", Setting: "max-inflated-bytes",
	}
	NativeRequests = Resource{
		Name: "native requests without an answer yet", Bound: "256 MiB", Parts: 4, AtBound: "refused, to be repeated later",
		Metric: "penstock_native_in_flight_bytes",
	}
	NativeOutput = Resource{
		Name: "what native clients do not read", Bound: "256 MiB", Parts: 16, AtBound: "they are sent no more",
		Metric: "penstock_native_output_bytes",
	}
	Subscriptions = Resource{
		Name: "native subscriptions", Bound: "16,384", Parts: 8, AtBound: "a new one is refused",
		Metric: "penstock_native_subscriptions",
	}
	Readers = Resource{
		Name: "native readers", Bound: "16,384", Parts: 8, AtBound: "a new one is refused",
		Metric: "penstock_native_readers",
	}
	Traces = Resource{
		Name: "traces and searches", Bound: "one at a time", Share: none, AtBound: "the request waits 5 s, then 503",
		Metric: "penstock_costly_answers_refused_total",
	}
	Topics = Resource{
		Name: "topics", Bound: "20,000", Share: half, AtBound: "the topic is not made: 507; its other topics go on",
		Metric: "penstock_token_topics", Setting: "max-topics",
	}
	Partitions = Resource{
		Name: "partitions", Bound: "25,000", Share: half, AtBound: "the topic is not made: 507; its other topics go on",
		Metric: "penstock_token_partitions", Setting: "max-partitions",
	}
	ChannelState = Resource{
		Name: "delayed messages, channels and producers", Share: half, Metric: "penstock_token_state_bytes",
		Bound:   "a third of the memory, and 128 MiB of checkpoints",
		AtBound: "delays, new channels and new producers are refused in its topics",
		Setting: "max-state-bytes",
	}
	Disk = Resource{
		Name: "the disk", Bound: "what is free, less what the node keeps", Metric: "penstock_token_stored_bytes",
		Share:   "the last tenth is for those who have no more than half (`token-share`)",
		AtBound: "publishing to its topics is refused",
	}
	ProducerNames = Resource{
		Name: "names of producers", Bound: "4096 in a partition", Parts: 4,
		AtBound: "a new name is refused; `penstock producer remove` makes room", Metric: "penstock_topic_producers",
	}
)

// Words that several rows have.
const (
	oldest = "who has the most pays"
	goes   = "its oldest goes"
	closed = "penstock_unproven_connections_closed_total"
	none   = "in turns"
	half   = "half (`token-share`)"
)

// Table is all of them, in the order of the page.
var Table = []*Resource{
	&BeforeAuth, &NativeProofs, &HTTPWaiting, &NodeProofs, &EtcdConnections, &TLSHandshakes, &Descriptors,
	&Connections, &LargeInput, &InflatedBytes, &NativeRequests, &NativeOutput, &Subscriptions, &Readers, &CostlyAnswers,
	&UnreadAnswers, &Traces,
	&Topics, &Partitions, &ChannelState, &Disk, &ProducerNames, &LogLines, &AuditEntries,
}
