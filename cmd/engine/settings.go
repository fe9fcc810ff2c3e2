package main

import (
	"time"

	"penstock/internal/node"
	"penstock/internal/server"
)

// options holds all options of `penstock serve`. The settings table below is the only place that gives its fields names
// for users: flags, PENSTOCK_* variables, TOML keys, defaults, help texts, `penstock config` and GET /config/<name> all
// come from it.
type options struct {
	engine          node.Options
	nsq             server.Options
	offers          offers
	cluster         clusterSettings
	config          string
	addressNames    string // what sets its addresses, for a sentence about one that is in use; "": the flags of serve
	logFormat       string
	logLevel        string
	shutdownTimeout time.Duration

	latencyPercentiles []float64
	latencyWindow      time.Duration
}

// offers holds values of nsq.Options that the settings express differently: a setting says what is enabled, where the
// option says what is disabled, or uses another notation.
type offers struct {
	snappy, deflate bool
	authAddresses   string
	authFile        string   // has further addresses
	authServers     []string // all of them, see readSecretFiles
}

// setting is one row of the table. Its name in kebab-case is the flag. The TOML key has underscores instead of dashes,
// and the environment variable is PENSTOCK_ and the key in capitals.
type setting struct {
	name   string
	group  string
	preset string // the default, in the notation of a flag
	help   string
	value  value

	// secret: the value must not leave the process. It is not shown, not served at /config, and refused on a command line.
	secret bool
}

const (
	groupNode      = "Node"
	groupCluster   = "Cluster"
	groupStorage   = "Storage"
	groupRetention = "Retention"
	groupMemory    = "Memory and queues"
	groupMessages  = "Messages and channels"
	groupClients   = "NSQ clients"
	groupSecurity  = "Security"
	groupMetrics   = "Metrics"
)

// settings returns the table bound to n: setting a row's value sets the field in n.
func settings(n *options) []*setting {
	var all []*setting
	add := func(group string, rows ...*setting) {
		for _, r := range rows {
			r.group = group
			all = append(all, r)
		}
	}
	add(groupNode, nodeSettings(n)...)
	add(groupCluster, clusterRows(&n.cluster)...)
	add(groupStorage, storageSettings(&n.engine)...)
	add(groupRetention, retentionSettings(&n.engine)...)
	add(groupMemory, memorySettings(&n.engine)...)
	add(groupMessages, messageSettings(&n.engine)...)
	add(groupClients, clientSettings(&n.nsq, &n.offers)...)
	add(groupClients, latencySettings(n)...)
	add(groupSecurity, securitySettings(&n.nsq, &n.offers)...)
	add(groupMetrics, metricSettings(n)...)
	return all
}

// kept returns the row as that of a secret.
func (s *setting) kept() *setting {
	s.secret, s.value = true, secretValue{s.value}
	return s
}

func row(name, preset string, v value, help string) *setting {
	return &setting{name: name, preset: preset, value: v, help: help}
}

func nodeSettings(n *options) []*setting {
	return []*setting{
		row("data-path", "./data", text(&n.engine.DataPath), "data directory; created if missing"),
		row("backup-path", "", text(&n.nsq.BackupPath),
			"directory below which backups may be written; / means anywhere; empty means the name of data-path with -backups "+
				"behind it"),
		row("nsq-address", "127.0.0.1:4150", text(&n.nsq.TCPAddress), "HOST:PORT to listen on for the NSQ protocol"),
		row("http-address", "127.0.0.1:4151", text(&n.nsq.HTTPAddress),
			"HOST:PORT to listen on for nsqd's HTTP API; off disables it"),
		row("https-address", "off", text(&n.nsq.HTTPSAddress),
			"HOST:PORT to listen on for the same API over TLS (nsqd uses port 4152); off disables it"),
		row("lookup-address", "127.0.0.1:4161", text(&n.nsq.LookupAddress),
			"HOST:PORT to listen on for nsqlookupd's HTTP API; off disables it"),
		row("lookup-tcp-address", "", text(&n.nsq.LookupTCPAddress),
			"HOST:PORT for stock nsqds that register, without a proof; off disables it; empty means 127.0.0.1:4160 if "+
				"lookup-address is its default and clients need no tokens, otherwise off"),
		row("native-address", "", text(&n.nsq.NativeAddress),
			"HOST:PORT for native clients; off disables it; empty means 127.0.0.1:4250 if nsq-address is its default, "+
				"otherwise off"),
		row("inactive-producer-timeout", "5m", duration(&n.nsq.InactiveProducerTimeout, time.Millisecond),
			"omit a registered nsqd from lookups when it has been silent for longer than this"),
		row("lookupd-tcp-address", "", addresses(&n.nsq.LookupdTCPAddresses),
			"HOST:PORT of a stock nsqlookupd to register this node with, as nsqd does; separate several with commas or "+
				"repeat the flag"),
		row("broadcast-address", "", announced(&n.nsq.BroadcastAddress),
			"host name or IP address that is announced to clients; empty means this machine's host name"),
		row("broadcast-tcp-port", "0", port(&n.nsq.Announced.TCP),
			"port that is announced to NSQ clients, where one of another machine is mapped to nsq-address; 0 means the port "+
				"of nsq-address"),
		row("broadcast-http-port", "0", port(&n.nsq.Announced.HTTP),
			"likewise for HTTP; 0 means the port of http-address"),
		row("broadcast-native-port", "0", port(&n.nsq.Announced.Native),
			"likewise for native clients; 0 means the port of native-address"),
		row("node-id", "", nodeID(&n.engine.NodeID),
			"ID of the node; empty means the ID stored in the data directory, or a new one"),
		row("log-format", "text", choice(&n.logFormat, "text", "json"), "log format: text or json"),
		row("log-level", "info", choice(&n.logLevel, "debug", "info", "warn", "error"),
			"log level: debug, info, warn or error"),
		row("shutdown-timeout", "10s", duration(&n.shutdownTimeout, time.Millisecond),
			"after SIGTERM, maximum time to answer pending requests before connections are cut"),
	}
}

func storageSettings(o *node.Options) []*setting {
	return []*setting{
		row("io", "auto", choice(&o.IO, "auto", "uring", "pwrite"),
			"how to write files: auto, uring or pwrite; where io_uring does not work, pwrite is used in any case"),
		row("lock-wait", "3s", duration(&o.LockWait, 0),
			"maximum time to wait for another process to release the data directory"),
		row("commit-file-bytes", "32MiB", size64(&o.CommitFileBytes, 1<<20), "size of a commit log file"),
		row("commit-live-bytes", "256MiB", size64(&o.CommitLiveBytes, 1<<20),
			"maximum size of the part of the commit log that a restart has to read"),
		row("disk-patience", "5s", duration(&o.DiskPatience, 100*time.Millisecond),
			"when writes are pending and none completes for this long, hand leaderships over to replicas with a healthy disk"),
		row("disk-failed-after", "30s", duration(&o.DiskFailedAfter, 100*time.Millisecond),
			"when writes are pending and none completes for this long, treat the disk as failed and report it at /ping"),
		row("scrub-interval", "168h", duration(&o.ScrubInterval, 0),
			"how often to verify all segments, at 16 MiB/s at most; the commit log at least every hour; 0s disables both"),
		row("groups-in-flight", "2", count(&o.GroupsInFlight, 1),
			"maximum number of commit groups being written to disk at once"),
		row("min-segment-bytes", "1MiB", size64(&o.MinSegmentBytes, 4096),
			"size of a partition's first segment; each further one is twice as large, up to max-segment-bytes"),
		row("max-segment-bytes", "128MiB", size64(&o.MaxSegmentBytes, 4096), "maximum size of a segment"),
		row("max-open-segments", "2048", count(&o.MaxOpenSegments, 64),
			"maximum number of partitions with segment files open; beyond it, written ones are synced and closed earlier"),
		row("max-mapped-segments", "16384", count(&o.MaxMappedSegments, 64),
			"maximum number of segments that stay mapped into memory while nobody reads them"),
		row("read-ahead-bytes", "256KiB", size(&o.ReadAheadBytes, 4096),
			"maximum number of bytes to read from a segment at once"),
	}
}

func retentionSettings(o *node.Options) []*setting {
	return []*setting{
		row("retention-bytes", "0", size64(&o.RetentionBytes, 0),
			"maximum bytes to keep per partition, including unconfirmed messages; 0 means no limit"),
		row("retention-count", "0", count(&o.RetentionCount, 0),
			"maximum number of messages to keep per partition, including unconfirmed ones; 0 means no limit"),
		row("retention-age", "0s", duration(&o.RetentionAge, 0),
			"maximum time to keep a message, even if it is unconfirmed; 0s means no limit"),
		row("retention-interval", "5s", duration(&o.RetentionInterval, time.Millisecond), "how often to apply retention"),
	}
}

func memorySettings(o *node.Options) []*setting {
	return []*setting{
		row("buffer-bytes", "64MiB", size64(&o.BufferBytes, 4<<20),
			"memory outside the Go heap for commit groups and the newest messages"),
		row("max-inbox-bytes", "32MiB", size64(&o.MaxInboxBytes, 1<<20),
			"maximum bytes waiting to be stored in one partition"),
		row("max-node-inbox-bytes", "128MiB", size64(&o.MaxNodeInboxBytes, 1<<20),
			"maximum bytes waiting to be stored on the whole node"),
		row("admit-timeout", "800ms", duration(&o.AdmitTimeout, time.Millisecond),
			"maximum time a publish waits for room when too many bytes are waiting to be stored"),
		row("publish-timeout", "5s", duration(&o.PublishTimeout, time.Millisecond),
			"maximum time a publish waits to be stored before it fails"),
		row("max-deliveries-at-once", "4096", count(&o.MaxDeliveriesAtOne, 1),
			"maximum number of messages a channel delivers in one go before it serves other requests"),
	}
}

func messageSettings(o *node.Options) []*setting {
	return []*setting{
		row("max-message-bytes", "1MiB", size(&o.MaxMessageBytes, 1), "maximum size of a message"),
		row("max-batch-bytes", "6MiB", size(&o.MaxBatchBytes, 1),
			"maximum size of a stored batch: the bodies of one MPUB and a few bytes for each"),
		row("max-inflation-ratio", "256", count(&o.MaxInflationRatio, 1),
			"maximum factor by which compressed input may grow, beyond 4 MiB of an NSQ connection and 64 KiB of a native "+
				"batch"),
		row("max-inflated-bytes", "64MiB", size64(&o.MaxInflatedBytes, 1<<20),
			"maximum memory for what native clients' compressed batches above 64 KiB grow to while they are verified"),
		row("max-header-bytes", "32KiB", size(&o.MaxHeaderBytes, 1),
			"maximum total size of the names and values of a message's headers"),
		row("max-topics", "20000", count(&o.MaxTopics, 1), "maximum number of topics"),
		row("max-partitions", "25000", count(&o.MaxPartitions, 1),
			"maximum number of partitions of all topics together, also of those that other nodes store: each costs every "+
				"node some KiB"),
		row("max-channels", "1000", count(&o.MaxChannels, 1), "maximum number of channels per topic"),
		row("max-consumers", "0", count(&o.MaxConsumers, 0), "maximum number of consumers per channel; 0 means no limit"),
		row("max-ranges", "262144", count(&o.MaxRanges, 1),
			"maximum number of confirmed ranges per channel and partition; at the limit, no new messages are delivered"),
		row("max-deferred", "1048576", count(&o.MaxDeferred, 1),
			"maximum number of deferred messages per channel and partition"),
		row("max-state-bytes", "0", size64(&o.MaxStateBytes, 0),
			"maximum memory for the node's deferred messages and confirmed ranges; 0 means a third of what the process may "+
				"use besides its buffers"),
		row("token-share", "50", count(&o.TokenShare, 1),
			"percent of max-topics, max-partitions, max-state-bytes and a nearly full disk for the topics of one token; 100 "+
				"means no shares"),
		row("max-defer", "1h", duration(&o.MaxDefer, time.Millisecond),
			"maximum delay of a deferred publish; at most 1176h, which are 49 days"),
		row("msg-timeout", "1m", duration(&o.MsgTimeout, time.Millisecond),
			"deliver a message again when its consumer sends no FIN, REQ or TOUCH for this long; clients may request "+
				"another timeout"),
		row("max-msg-timeout", "15m", duration(&o.MaxMsgTimeout, time.Millisecond),
			"maximum timeout that a client may request; TOUCH cannot keep a message in flight for longer either"),
		row("max-req-timeout", "1h", duration(&o.MaxReqTimeout, time.Millisecond),
			"maximum delay of a REQ; longer delays are reduced to it"),
		row("confirm-interval", "5ms", duration(&o.ConfirmInterval, time.Millisecond),
			"maximum time a confirmation waits to be stored together with others"),
		row("default-partitions", "1", count(&o.DefaultPartitions, 1), "number of partitions of a new topic"),
		row("default-quota-bytes", "0", size64(&o.DefaultQuotaBytes, 0),
			"quota-bytes of topics that publishing or subscribing makes; 0 means no quota"),
		row("disable-auto-create", "false", boolean(&o.DisableAutoCreate),
			"do not create topics and channels on first use"),
	}
}

func clientSettings(o *server.Options, on *offers) []*setting {
	return []*setting{
		row("max-connections", "65536", count(&o.MaxConnections, 1),
			"maximum number of client connections, of each protocol"),
		row("max-body-bytes", "5MiB", size(&o.MaxBodyBytes, 1), "maximum size of the body of an MPUB or IDENTIFY command"),
		row("max-rdy-count", "2500", count(&o.MaxRdyCount, 1),
			"maximum RDY count of an NSQ client, which is told it"),
		row("max-conn-in-flight-bytes", "16MiB", size(&o.MaxConnInFlightBytes, 4096),
			"stop reading from a connection while more than this many bytes it has published are waiting to be stored"),
		row("max-conn-in-flight-count", "65536", count(&o.MaxConnInFlightCount, 1),
			"stop reading from a connection while more than this many of its commands are waiting for an answer"),
		row("max-in-flight-bytes", "0", size64(&o.MaxInFlightBytes, 0),
			"maximum bytes in flight to one consumer, regardless of its RDY count; 0 means no limit"),
		row("max-conn-output-bytes", "256KiB", size(&o.MaxConnOutputBytes, 4096),
			"maximum bytes of output waiting for one client to read them"),
		row("max-output-buffer-bytes", "64KiB", size(&o.MaxOutputBufferBytes, 64),
			"maximum output_buffer_size that a client may request"),
		row("min-output-buffer-timeout", "25ms", duration(&o.MinOutputBufferTimeout, time.Millisecond),
			"minimum output_buffer_timeout that a client may request; output is never delayed, whatever the value"),
		row("max-output-buffer-timeout", "30s", duration(&o.MaxOutputBufferTimeout, time.Millisecond),
			"maximum output_buffer_timeout that a client may request; output is never delayed, whatever the value"),
		row("heartbeat-interval", "30s", duration(&o.HeartbeatInterval, time.Second),
			"time between heartbeats; a client that is silent for two intervals is disconnected"),
		row("max-heartbeat-interval", "1m", duration(&o.MaxHeartbeatInterval, time.Second),
			"maximum heartbeat interval that a client may request"),
		row("max-command-time", "1m", duration(&o.MaxCommandTime, time.Millisecond),
			"disconnect a client that takes longer than this to send a complete command"),
		row("max-large-input-bytes", "256MiB", size64(&o.MaxLargeInputBytes, 1<<20),
			"maximum memory for large NSQ commands and HTTP bodies that are arriving, on all connections together"),
		row("write-timeout", "30s", duration(&o.WriteTimeout, time.Millisecond),
			"disconnect a client that reads none of its output for this long, or half as long again"),
		row("snappy", "true", boolean(&on.snappy), "allow clients to use snappy compression"),
		row("deflate", "true", boolean(&on.deflate),
			"allow clients to use deflate compression, which takes about 1 MiB per connection"),
		row("max-deflate-level", "6", count(&o.MaxDeflateLevel, 1), "maximum deflate level a client gets, 1 to 9"),
	}
}

func latencySettings(n *options) []*setting {
	return []*setting{
		row("e2e-processing-latency-percentile", "", percentiles(&n.latencyPercentiles),
			"percentile, such as 0.99, of the time from publish to FIN to show per channel in /stats; empty means not "+
				"measured"),
		row("e2e-processing-latency-window-time", "10m", duration(&n.latencyWindow, time.Millisecond),
			"time window that e2e-processing-latency-percentile covers"),
	}
}

func securitySettings(o *server.Options, on *offers) []*setting {
	t, a := &o.TLS, &o.Auth
	return []*setting{
		row("http-allowed-hosts", "", hosts(&o.AllowedHosts),
			"host names by which browsers may address this node, besides IP addresses, localhost, this machine and "+
				"broadcast-address; * allows all"),
		row("open-pages", "false", boolean(&o.OpenPages),
			"show /stats, /metrics, /info and the lists of lookups to clients without a token, too"),
		row("http-idle-time", "11m", duration(&o.HTTPIdleTime, time.Second),
			"close an HTTP connection on which nothing was asked for this long; longer than the balancer's in front of it"),
		row("max-audit-entries", "1000", count(&o.MaxAuditEntries, 1),
			"number of changes and refusals to keep in memory for GET /audit"),
		row("max-audit-bytes", "16MiB", size64(&o.MaxAuditBytes, 64<<10),
			"how much of the audit to keep in the folder audit of data-path, where a restart finds it"),
		row("tls-cert", "", text(&t.CertFile),
			"PEM file with the server's certificate; empty disables TLS"),
		row("tls-key", "", text(&t.KeyFile), "PEM file with the private key for tls-cert"),
		row("tls-root-ca-file", "", text(&t.RootCAFile),
			"PEM file with the certificate authorities for client certificates; empty means this machine's"),
		row("tls-client-auth-policy", "", choice(&t.ClientAuth, "", "require", "require-verify"),
			"require: clients must present a certificate; require-verify: one of tls-root-ca-file; both make TLS required"),
		row("tls-required", "false", choice(&t.Required, "false", "tcp-https", "true"),
			"true: refuse clients without TLS; tcp-https: refuse them on the NSQ protocol only"),
		row("tls-min-version", "1.3", choice(&t.MinVersion, "1.2", "1.3"),
			"minimum TLS version, of clients, other nodes and etcd: 1.2 or 1.3"),
		row("tls-handshake-timeout", "5s", duration(&o.HandshakeTimeout, time.Millisecond),
			"maximum duration of the TLS handshake of an NSQ or native connection"),
		row("max-tls-handshakes", "1024", count(&o.MaxHandshakes, 1),
			"maximum number of TLS handshakes, of all protocols, that wait until they are computed, for 1 s each"),
		row("auth-file", "", text(&a.File), "TOML file with tokens and their permissions"),
		row("auth-http-address", "", urls(&on.authAddresses),
			"HOST:PORT or URL of a server that speaks NSQ's auth protocol; one with a password is refused on a command line"),
		row("auth-http-address-file", "", text(&on.authFile),
			"file with further addresses like auth-http-address, one on a line, that others on this machine may not read"),
		row("readable-secrets", "false", boolean(&a.ReadableFiles),
			"accept files of secrets that everybody on this machine may read, but not change: for mounts that only the node "+
				"sees"),
		row("auth-http-request-method", "GET", choice(&a.HTTPMethod, "GET", "POST"),
			"HTTP method for requests to auth-http-address: GET or POST"),
		row("max-unauthenticated-connections", "256", count(&o.MaxStrangers, 1),
			"where AUTH is required, maximum number of NSQ connections, and of native ones, that have not sent it"),
		row("max-unauthenticated-bytes", "4KiB", size(&o.MaxStrangerBytes, 64),
			"maximum size of all bodies (NSQ) or frames (native) that a connection sends before AUTH, where it is required"),
		row("max-unauthenticated-time", "10s", duration(&o.StrangerTime, time.Millisecond),
			"where AUTH is required, disconnect an NSQ or native connection that has not sent it after this time"),
		row("auth-http-timeout", "5s", duration(&a.RequestTimeout, time.Millisecond),
			"maximum time to wait for the answer of one auth-http-address"),
		row("auth-hold-time", "5m", duration(&a.HoldTime, time.Second),
			"how long a client goes on after the last answer about it has expired, while no auth-http-address answers"),
	}
}

func metricSettings(n *options) []*setting {
	return []*setting{
		row("statsd-address", "", text(&n.nsq.Statsd.Address),
			"HOST:PORT of a statsd to which statistics are pushed over UDP with nsqd's names; empty disables it"),
		row("statsd-prefix", "nsq.%s", text(&n.nsq.Statsd.Prefix),
			"prefix of the names; %s in it stands for broadcast-address and the HTTP port"),
		row("statsd-interval", "1m", duration(&n.nsq.Statsd.Interval, time.Millisecond),
			"time between two pushes to statsd"),
		row("statsd-mem-stats", "true", boolean(&n.nsq.Statsd.MemStats),
			"also push numbers of memory and garbage collection"),
		row("statsd-udp-packet-size", "508", count(&n.nsq.Statsd.PacketBytes, 1),
			"maximum size in bytes of a packet to statsd"),
		row("statsd-exclude-ephemeral", "false", boolean(&n.nsq.Statsd.ExcludeEphemeral),
			"do not push ephemeral topics and channels"),
		row("slow-commit", "500ms", duration(&n.engine.SlowCommit, time.Millisecond),
			"count and log groups of the commit log that take this long to become durable"),
		row("metrics-max-series", "10000", count(&n.nsq.MaxMetricSeries, 1),
			"maximum number of series of topics and channels in /metrics; beyond it, each metric shows one sum"),
	}
}
