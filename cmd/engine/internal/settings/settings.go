package settings

import (
	"time"

	"penstock/cmd/engine/internal/cli"
	"penstock/cmd/engine/internal/values"
	"penstock/internal/node"
	"penstock/internal/server"
)

// Options holds all options of `penstock serve`. The settings table below is the only place that gives its fields names
// for users, and says what becomes of a new value while the node runs: flags, PENSTOCK_* variables, TOML keys,
// defaults, help texts, `penstock config` and GET /config all come from it.
type Options struct {
	Engine          node.Options
	NSQ             server.Options
	Offers          Offers
	Cluster         Cluster
	Version         string // of the program
	config          string
	AddressNames    string // what sets its addresses, for a sentence about one that is in use; "": the flags of serve
	LogFormat       string
	LogLevel        string
	ShutdownTimeout time.Duration

	LatencyPercentiles []float64
	LatencyWindow      time.Duration
}

// Offers holds values of nsq.Options that the settings express differently: a setting says what is enabled, where the
// option says what is disabled, or uses another notation.
type Offers struct {
	Snappy, Deflate bool
	authAddresses   string
	AuthFile        string   // has further addresses
	AuthServers     []string // all of them, see ReadSecretFiles
}

// Setting is one row of the table. Its name in kebab-case is the flag. The TOML key has underscores instead of dashes,
// and the environment variable is PENSTOCK_ and the key in capitals.
type Setting struct {
	Name   string
	Group  string
	Preset string // the default, in the notation of a flag
	Help   string
	Value  values.Value

	// WhileRunning says what becomes of a new value while the node runs: one of NeedsRestart and the constants beside it.
	WhileRunning string
	because      string // why a limit or an interval needs a restart
}

// Running is WhileRunning, with the reason of what needs a restart.
func (s *Setting) Running() string {
	if s.because != "" {
		return s.WhileRunning + ": " + s.because
	}
	return s.WhileRunning
}

// changes says whether the setting changes while a node runs.
func (s *Setting) changes() bool {
	return s.WhileRunning == ChangesAtOnce || s.WhileRunning == NewConnections
}

// Table returns the table bound to n: setting a row's value sets the field in n.
func Table(n *Options) []*Setting {
	var all []*Setting
	add := func(group string, rows ...*Setting) {
		for _, r := range rows {
			r.Group = group
			all = append(all, r)
		}
	}
	add(cli.GroupNode, nodeSettings(n)...)
	add(cli.GroupCluster, clusterRows(&n.Cluster)...)
	add(cli.GroupStorage, storageSettings(&n.Engine)...)
	add(cli.GroupRetention, retentionSettings(&n.Engine)...)
	add(cli.GroupMemory, memorySettings(&n.Engine)...)
	add(cli.GroupMessages, messageSettings(&n.Engine)...)
	add(cli.GroupClients, clientSettings(&n.NSQ, &n.Offers)...)
	add(cli.GroupClients, latencySettings(n)...)
	add(cli.GroupSecurity, securitySettings(&n.NSQ, &n.Offers)...)
	add(cli.GroupMetrics, metricSettings(n)...)
	return all
}

func row(name, preset string, v values.Value, help string) *Setting {
	return &Setting{Name: name, Preset: preset, Value: v, Help: help, WhileRunning: NeedsRestart}
}

// live, fresh and content make rows of settings whose new values hold at once, for new connections, or not at all: of
// these only what is in the file that they name.
func live(name, preset string, v values.Value, help string) *Setting {
	return row(name, preset, v, help).with(ChangesAtOnce)
}

func fresh(name, preset string, v values.Value, help string) *Setting {
	return row(name, preset, v, help).with(NewConnections)
}

func content(name string, v values.Value, help string) *Setting {
	return row(name, "", v, help).with(ContentOnly)
}

// until gives a limit, a size or an interval that needs a restart its reason.
func (s *Setting) until(because string) *Setting {
	s.because = because
	return s
}

func (s *Setting) with(whileRunning string) *Setting {
	s.WhileRunning = whileRunning
	return s
}

func nodeSettings(n *Options) []*Setting {
	return []*Setting{
		row("data-path", "./data", values.Text(&n.Engine.DataPath), "data directory; created if missing"),
		row("backup-path", "", values.Text(&n.NSQ.BackupPath),
			"directory below which backups may be written; / means anywhere; empty: the name of data-path with -backups "+
				"behind it"),
		row("nsq-address", "127.0.0.1:4150", values.Text(&n.NSQ.TCPAddress), "HOST:PORT for the NSQ protocol"),
		row("http-address", "127.0.0.1:4151", values.Text(&n.NSQ.HTTPAddress), "HOST:PORT for the HTTP API; off disables it"),
		row("https-address", "off", values.Text(&n.NSQ.HTTPSAddress),
			"HOST:PORT for the same over TLS (nsqd uses port 4152); off disables it"),
		row("lookup-address", "127.0.0.1:4161", values.Text(&n.NSQ.LookupAddress),
			"HOST:PORT for nsqlookupd's HTTP API; off disables it"),
		row("lookup-tcp-address", "", values.Text(&n.NSQ.LookupTCPAddress),
			"HOST:PORT for stock nsqds that register, without a proof; off disables it; empty: 127.0.0.1:4160 if "+
				"lookup-address is its default and clients need no tokens, otherwise off"),
		row("native-address", "", values.Text(&n.NSQ.NativeAddress),
			"HOST:PORT for native clients; off disables it; empty: 127.0.0.1:4250 if nsq-address is its default, otherwise off"),
		live("inactive-producer-timeout", "5m", values.Duration(&n.NSQ.InactiveProducerTimeout, time.Millisecond),
			"leave a registered nsqd out of lookups when it has been silent for this long"),
		live("lookupd-tcp-address", "", values.Addresses(&n.NSQ.LookupdTCPAddresses),
			"HOST:PORT of a stock nsqlookupd at which this node registers, as nsqd does; separate several with commas or "+
				"repeat the flag"),
		row("broadcast-address", "", values.Announced(&n.NSQ.BroadcastAddress),
			"host name or IP address that clients are told; empty: this machine's host name"),
		row("broadcast-tcp-port", "0", values.Port(&n.NSQ.Announced.TCP),
			"port that NSQ clients are told, where one of another machine is mapped to nsq-address; 0: that of nsq-address"),
		row("broadcast-http-port", "0", values.Port(&n.NSQ.Announced.HTTP), "likewise for HTTP; 0: that of http-address"),
		row("broadcast-native-port", "0", values.Port(&n.NSQ.Announced.Native),
			"likewise for native clients; 0: that of native-address"),
		row("node-id", "", values.NodeID(&n.Engine.NodeID),
			"ID of the node; empty: the one in the data directory, or a new one"),
		row("log-format", "text", values.Choice(&n.LogFormat, "text", "json"), "log format"),
		live("log-level", "info", values.Choice(&n.LogLevel, "debug", "info", "warn", "error"), "log level"),
		live("shutdown-timeout", "10s", values.Duration(&n.ShutdownTimeout, time.Millisecond),
			"after SIGTERM, maximum time to answer what is pending"),
	}
}

func storageSettings(o *node.Options) []*Setting {
	return []*Setting{
		row("io", "auto", values.Choice(&o.IO, "auto", "uring", "pwrite"),
			"how to write files; where io_uring does not work, pwrite is used in any case"),
		row("lock-wait", "3s", values.Duration(&o.LockWait, 0),
			"maximum time to wait for another process to release the data directory; 0s: none").until("only a start uses it"),
		row("commit-file-bytes", "32MiB", values.Size64(&o.CommitFileBytes, 1<<20), "size of a commit log file").
			until("its files have this size"),
		row("commit-live-bytes", "256MiB", values.Size64(&o.CommitLiveBytes, 1<<20),
			"maximum size of what a restart has to read of the commit log").until("the log's files are divided by it"),
		live("disk-patience", "5s", values.Duration(&o.DiskPatience, 100*time.Millisecond),
			"when writes are pending and none completes for this long, hand leaderships over"),
		live("disk-failed-after", "30s", values.Duration(&o.DiskFailedAfter, 100*time.Millisecond),
			"when writes are pending and none completes for this long, report the disk as failed at /ping"),
		live("scrub-interval", "168h", values.Duration(&o.ScrubInterval, 0),
			"how often to verify all segments, at 16 MiB/s at most; the commit log at least every hour; 0s disables both; a "+
				"new value holds within a minute"),
		row("groups-in-flight", "2", values.Count(&o.GroupsInFlight, 1),
			"maximum number of commit groups on their way to the disk").until("it sizes memory"),
		row("min-segment-bytes", "1MiB", values.Size64(&o.MinSegmentBytes, 4096),
			"size of a partition's first segment; each further one is twice as large, up to max-segment-bytes").
			until("its files have this size"),
		row("max-segment-bytes", "128MiB", values.Size64(&o.MaxSegmentBytes, 4096), "maximum size of a segment").
			until("its files have this size"),
		live("max-open-segments", "2048", values.Count(&o.MaxOpenSegments, 64),
			"maximum number of partitions with segment files open; those beyond it are closed when one is opened"),
		live("max-mapped-segments", "16384", values.Count(&o.MaxMappedSegments, 64),
			"maximum number of segments that stay mapped into memory while nobody reads them; those beyond it are unmapped "+
				"when one is mapped"),
		live("read-ahead-bytes", "256KiB", values.Size(&o.ReadAheadBytes, 4096),
			"maximum number of bytes to read from a segment at once"),
	}
}

func retentionSettings(o *node.Options) []*Setting {
	return []*Setting{
		live("retention-bytes", "0", values.Size64(&o.RetentionBytes, 0),
			"maximum bytes to keep per partition, confirmed or not; 0 means no limit"),
		live("retention-count", "0", values.Count(&o.RetentionCount, 0),
			"maximum number of messages to keep per partition, confirmed or not; 0 means no limit"),
		live("retention-age", "0s", values.Duration(&o.RetentionAge, 0),
			"maximum time to keep a message, confirmed or not; 0s means no limit"),
		live("retention-interval", "5s", values.Duration(&o.RetentionInterval, time.Millisecond), "how often to apply "+
			"retention"),
	}
}

func memorySettings(o *node.Options) []*Setting {
	return []*Setting{
		row("buffer-bytes", "64MiB", values.Size64(&o.BufferBytes, 4<<20),
			"memory outside the Go heap for commit groups and the newest messages").until("it is mapped at the start"),
		live("max-inbox-bytes", "32MiB", values.Size64(&o.MaxInboxBytes, 1<<20),
			"maximum bytes waiting to be stored in one partition"),
		live("max-node-inbox-bytes", "128MiB", values.Size64(&o.MaxNodeInboxBytes, 1<<20),
			"maximum bytes waiting to be stored on the whole node"),
		live("admit-timeout", "800ms", values.Duration(&o.AdmitTimeout, time.Millisecond),
			"maximum time a publish waits for room when too many bytes are waiting"),
		live("publish-timeout", "5s", values.Duration(&o.PublishTimeout, time.Millisecond),
			"maximum time a publish waits to be stored before it fails"),
		live("max-deliveries-at-once", "4096", values.Count(&o.MaxDeliveriesAtOne, 1),
			"maximum number of messages a channel delivers before it serves other requests"),
	}
}

func messageSettings(o *node.Options) []*Setting {
	return []*Setting{
		fresh("max-message-bytes", "1MiB", values.Size(&o.MaxMessageBytes, 1), "maximum size of a message"),
		live("max-batch-bytes", "6MiB", values.Size(&o.MaxBatchBytes, 1),
			"maximum size of a stored batch: the bodies of one MPUB and a few bytes for each"),
		fresh("max-inflation-ratio", "256", values.Count(&o.MaxInflationRatio, 1),
			"maximum factor by which compressed input may grow, beyond 4 MiB of an NSQ connection and 64 KiB of a native "+
				"batch"),
		live("max-inflated-bytes", "64MiB", values.Size64(&o.MaxInflatedBytes, 1<<20),
			"maximum memory for what native batches above 64 KiB grow to while they are verified"),
		live("max-header-bytes", "32KiB", values.Size(&o.MaxHeaderBytes, 1),
			"maximum size of the names and values of a message's headers together"),
		live("max-topics", "20000", values.Count(&o.MaxTopics, 1), "maximum number of topics"),
		live("max-partitions", "25000", values.Count(&o.MaxPartitions, 1),
			"maximum number of partitions of all topics, also of those that other nodes store"),
		live("max-channels", "1000", values.Count(&o.MaxChannels, 1), "maximum number of channels per topic"),
		live("max-consumers", "0", values.Count(&o.MaxConsumers, 0), "maximum number of consumers per channel; 0 "+
			"means no limit; those that there are stay"),
		live("max-ranges", "262144", values.Count(&o.MaxRanges, 1),
			"maximum number of confirmed ranges per channel and partition; at it no new messages are delivered, and all that "+
				"were confirmed stay so"),
		live("max-deferred", "1048576", values.Count(&o.MaxDeferred, 1),
			"maximum number of deferred messages per channel and partition; those that wait stay"),
		live("max-state-bytes", "0", values.Size64(&o.MaxStateBytes, 0),
			"maximum memory for deferred messages and confirmed ranges, of which what there is stays; 0: a third of what the "+
				"process may use besides its buffers"),
		live("token-share", "50", values.Count(&o.TokenShare, 1),
			"percent of max-topics, max-partitions, max-state-bytes and a nearly full disk for the topics of one token; "+
				"100: no shares"),
		fresh("max-defer", "1h", values.Duration(&o.MaxDefer, time.Millisecond),
			"maximum delay of a deferred publish; at most 1176h, which are 49 days"),
		fresh("msg-timeout", "1m", values.Duration(&o.MsgTimeout, time.Millisecond),
			"deliver a message again after this long without FIN, REQ or TOUCH; clients may request another timeout"),
		fresh("max-msg-timeout", "15m", values.Duration(&o.MaxMsgTimeout, time.Millisecond),
			"maximum timeout that a client may request, and at once the time for which TOUCH keeps a message in flight; no "+
				"deadline comes earlier"),
		live("max-req-timeout", "1h", values.Duration(&o.MaxReqTimeout, time.Millisecond),
			"maximum delay of a REQ; longer delays are reduced to it; what waits keeps its time"),
		live("confirm-interval", "5ms", values.Duration(&o.ConfirmInterval, time.Millisecond),
			"maximum time a confirmation waits to be stored together with others"),
		live("default-partitions", "1", values.Count(&o.DefaultPartitions, 1), "number of partitions of a new topic"),
		live("default-quota-bytes", "0", values.Size64(&o.DefaultQuotaBytes, 0),
			"quota-bytes of topics that publishing or subscribing makes; 0 means no quota"),
		live("disable-auto-create", "false", values.Boolean(&o.DisableAutoCreate),
			"do not create topics and channels on first use"),
	}
}

func clientSettings(o *server.Options, on *Offers) []*Setting {
	return []*Setting{
		live("max-connections", "65536", values.Count(&o.MaxConnections, 1),
			"maximum number of client connections, of each protocol"),
		fresh("max-body-bytes", "5MiB", values.Size(&o.MaxBodyBytes, 1), "maximum size of the body of an MPUB or IDENTIFY "+
			"command"),
		fresh("max-rdy-count", "2500", values.Count(&o.MaxRdyCount, 1),
			"maximum RDY count of an NSQ client, which is told it"),
		live("max-conn-in-flight-bytes", "16MiB", values.Size(&o.MaxConnInFlightBytes, 4096),
			"stop reading from a connection while more bytes of it are waiting to be stored; a native one that is open keeps "+
				"what it was told"),
		live("max-conn-in-flight-count", "65536", values.Count(&o.MaxConnInFlightCount, 1),
			"stop reading from a connection while more of its commands are waiting for an answer"),
		fresh("max-in-flight-bytes", "0", values.Size64(&o.MaxInFlightBytes, 0),
			"maximum bytes in flight to one consumer, whatever its RDY count; 0 means no limit"),
		fresh("max-conn-output-bytes", "256KiB", values.Size(&o.MaxConnOutputBytes, 4096),
			"maximum bytes of output waiting for one client to read them"),
		fresh("max-output-buffer-bytes", "64KiB", values.Size(&o.MaxOutputBufferBytes, 64),
			"maximum output_buffer_size that a client may request"),
		fresh("min-output-buffer-timeout", "25ms", values.Duration(&o.MinOutputBufferTimeout, time.Millisecond),
			"minimum output_buffer_timeout that a client may request; it delays nothing"),
		fresh("max-output-buffer-timeout", "30s", values.Duration(&o.MaxOutputBufferTimeout, time.Millisecond),
			"maximum output_buffer_timeout that a client may request"),
		fresh("heartbeat-interval", "30s", values.Duration(&o.HeartbeatInterval, time.Second),
			"time between heartbeats; a client that is silent for two intervals is disconnected"),
		fresh("max-heartbeat-interval", "1m", values.Duration(&o.MaxHeartbeatInterval, time.Second),
			"maximum heartbeat interval that a client may request"),
		live("max-command-time", "1m", values.Duration(&o.MaxCommandTime, time.Millisecond),
			"disconnect a client that takes longer to send a complete command"),
		live("max-large-input-bytes", "256MiB", values.Size64(&o.MaxLargeInputBytes, 1<<20),
			"maximum memory for large NSQ commands and HTTP bodies that are arriving; what has its room keeps it"),
		fresh("write-timeout", "30s", values.Duration(&o.WriteTimeout, time.Millisecond),
			"disconnect a client that reads nothing for this long, or half as long again"),
		fresh("snappy", "true", values.Boolean(&on.Snappy), "allow clients to use snappy compression"),
		fresh("deflate", "true", values.Boolean(&on.Deflate),
			"allow clients to use deflate compression, which takes about 1 MiB per connection"),
		fresh("max-deflate-level", "6", values.Count(&o.MaxDeflateLevel, 1), "maximum deflate level a client gets, 1 to 9"),
	}
}

func latencySettings(n *Options) []*Setting {
	return []*Setting{
		row("e2e-processing-latency-percentile", "", values.Percentiles(&n.LatencyPercentiles),
			"percentile, such as 0.99, of the time from publish to FIN to show per channel in /stats; empty: not measured"),
		row("e2e-processing-latency-window-time", "10m", values.Duration(&n.LatencyWindow, time.Millisecond),
			"time window that e2e-processing-latency-percentile covers").until("channels are made with it"),
	}
}

func securitySettings(o *server.Options, on *Offers) []*Setting {
	t, a := &o.TLS, &o.Auth
	return []*Setting{
		live("http-allowed-hosts", "", values.Hosts(&o.AllowedHosts),
			"host names by which browsers may address this node, besides IP addresses, localhost, this machine and "+
				"broadcast-address; * allows all"),
		live("open-pages", "false", values.Boolean(&o.OpenPages),
			"show /stats, /metrics, /info and the lists of lookups to clients without a token, too"),
		row("http-idle-time", "11m", values.Duration(&o.HTTPIdleTime, time.Second),
			"close an HTTP connection on which nothing was asked for this long; more than a balancer's in front of it").
			until("the HTTP server is made with it"),
		live("max-audit-entries", "1000", values.Count(&o.MaxAuditEntries, 1),
			"number of changes and refusals to keep in memory for GET /audit; of more than that the oldest go"),
		live("max-audit-bytes", "16MiB", values.Size64(&o.MaxAuditBytes, 64<<10),
			"how much of the audit to keep in data-path, where a restart finds it; longer files go when the next begin"),
		content("tls-cert", values.Text(&t.CertFile),
			"PEM file with the server's certificate; empty disables TLS"),
		content("tls-key", values.Text(&t.KeyFile), "PEM file with the private key for tls-cert"),
		content("tls-root-ca-file", values.Text(&t.RootCAFile),
			"PEM file with the authorities for client certificates; empty: this machine's"),
		row("tls-client-auth-policy", "", values.Choice(&t.ClientAuth, "", "require", "require-verify"),
			"require: clients must present a certificate; require-verify: one of tls-root-ca-file; both make TLS required"),
		row("tls-required", "false", values.Choice(&t.Required, "false", "tcp-https", "true"),
			"true: refuse clients without TLS; tcp-https: refuse them on the NSQ protocol only"),
		row("tls-min-version", "1.3", values.Choice(&t.MinVersion, "1.2", "1.3"),
			"minimum TLS version, of clients, other nodes and etcd"),
		fresh("tls-handshake-timeout", "5s", values.Duration(&o.HandshakeTimeout, time.Millisecond),
			"maximum duration of the TLS handshake of an NSQ or native connection"),
		live("max-tls-handshakes", "1024", values.Count(&o.MaxHandshakes, 1),
			"maximum number of TLS handshakes, of all protocols, that wait, for 1 s each"),
		content("auth-file", values.Text(&a.File), "TOML file with tokens and their permissions"),
		row("auth-http-address", "", values.URLs(&on.authAddresses),
			"HOST:PORT or URL of a server that speaks NSQ's auth protocol; one with a password is refused on a command line"),
		content("auth-http-address-file", values.Text(&on.AuthFile),
			"file with further addresses like auth-http-address, one on a line, not readable by others"),
		row("readable-secrets", "false", values.Boolean(&a.ReadableFiles),
			"accept files of secrets that everybody on this machine may read, but not change"),
		live("auth-http-request-method", "GET", values.Choice(&a.HTTPMethod, "GET", "POST"),
			"HTTP method for requests to auth-http-address"),
		live("max-unauthenticated-connections", "256", values.Count(&o.MaxStrangers, 1),
			"where AUTH is required, maximum number of NSQ connections, and of native ones, before it"),
		fresh("max-unauthenticated-bytes", "4KiB", values.Size(&o.MaxStrangerBytes, 64),
			"where AUTH is required, maximum size of all bodies (NSQ) or frames (native) before it"),
		fresh("max-unauthenticated-time", "10s", values.Duration(&o.StrangerTime, time.Millisecond),
			"where AUTH is required, disconnect an NSQ or native connection that has not sent it by then"),
		live("auth-http-timeout", "5s", values.Duration(&a.RequestTimeout, time.Millisecond),
			"maximum time to wait for the answer of one auth-http-address"),
		live("auth-hold-time", "5m", values.Duration(&a.HoldTime, time.Second),
			"how long a client goes on with an expired answer while no auth-http-address answers"),
	}
}

func metricSettings(n *Options) []*Setting {
	return []*Setting{
		live("statsd-address", "", values.Text(&n.NSQ.Statsd.Address),
			"HOST:PORT of a statsd to which statistics are pushed over UDP with nsqd's names; empty: none"),
		live("statsd-prefix", "nsq.%s", values.Text(&n.NSQ.Statsd.Prefix),
			"prefix of the names; %s in it stands for broadcast-address and the HTTP port"),
		live("statsd-interval", "1m", values.Duration(&n.NSQ.Statsd.Interval, time.Millisecond),
			"time between two pushes to statsd"),
		live("statsd-mem-stats", "true", values.Boolean(&n.NSQ.Statsd.MemStats),
			"also push numbers of memory and garbage collection"),
		live("statsd-udp-packet-size", "508", values.Count(&n.NSQ.Statsd.PacketBytes, 1),
			"maximum size in bytes of a packet to statsd"),
		live("statsd-exclude-ephemeral", "false", values.Boolean(&n.NSQ.Statsd.ExcludeEphemeral),
			"do not push ephemeral topics and channels"),
		live("slow-commit", "500ms", values.Duration(&n.Engine.SlowCommit, time.Millisecond),
			"count and log groups of the commit log that take this long"),
		live("metrics-max-series", "10000", values.Count(&n.NSQ.MaxMetricSeries, 1),
			"maximum number of series of topics and channels in /metrics; beyond it, each shows one sum"),
	}
}
