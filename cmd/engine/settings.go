package main

import (
	"time"

	"penstock/engine"
	"penstock/nsq"
)

// node holds all options of `engine serve`. The settings table below is the only place that gives its fields names for
// users: flags, ENGINE_* variables, TOML keys, defaults, help texts, `engine config` and GET /config/<name> all come
// from it.
type node struct {
	engine          engine.Options
	nsq             nsq.Options
	offers          offers
	cluster         clusterSettings
	config          string
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
}

// setting is one row of the table. Its name in kebab-case is the flag. The TOML key has underscores instead of dashes,
// and the environment variable is ENGINE_ and the key in capitals.
type setting struct {
	name    string
	group   string
	preset  string // the default, in the notation of a flag
	help    string
	value   value
	fromEnv bool // true for every row; nothing reads it
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
)

// settings returns the table bound to n: setting a row's value sets the field in n.
func settings(n *node) []*setting {
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
	return all
}

func row(name, preset string, v value, help string) *setting {
	return &setting{name: name, preset: preset, value: v, help: help, fromEnv: true}
}

func nodeSettings(n *node) []*setting {
	return []*setting{
		row("data-path", "./data", text(&n.engine.DataPath), "data directory; created if missing"),
		row("nsq-address", "127.0.0.1:4150", text(&n.nsq.TCPAddress), "HOST:PORT of the NSQ protocol"),
		row("http-address", "127.0.0.1:4151", text(&n.nsq.HTTPAddress), "HOST:PORT of nsqd's HTTP API"),
		row("https-address", "off", text(&n.nsq.HTTPSAddress),
			"HOST:PORT of the same API over TLS (nsqd's is 4152); off: none"),
		row("lookup-address", "127.0.0.1:4161", text(&n.nsq.LookupAddress), "HOST:PORT of nsqlookupd's HTTP API; off: none"),
		row("lookup-tcp-address", "", text(&n.nsq.LookupTCPAddress),
			"HOST:PORT where stock nsqds register, as at nsqlookupd's TCP port, without authentication; empty: 127.0.0.1:4160 "+
				"if lookup-address is its default, else off"),
		row("inactive-producer-timeout", "5m", duration(&n.nsq.InactiveProducerTimeout, time.Millisecond),
			"an nsqd that registered and is silent for longer is in no lookup"),
		row("lookupd-tcp-address", "", addresses(&n.nsq.LookupdTCPAddresses),
			"HOST:PORT of a stock nsqlookupd at which this node registers, as nsqd does; several with commas, or the flag "+
				"several times"),
		row("broadcast-address", "", text(&n.nsq.BroadcastAddress),
			"host name or address that clients are told; empty: this machine's name"),
		row("node-id", "", text(&n.engine.NodeID),
			"identity of the node; empty: the one in the data directory, or a new one"),
		row("log-format", "text", choice(&n.logFormat, "text", "json"), "text or json"),
		row("log-level", "info", choice(&n.logLevel, "debug", "info", "warn", "error"), "debug, info, warn or error"),
		row("shutdown-timeout", "10s", duration(&n.shutdownTimeout, time.Millisecond),
			"longest wait for pending answers at SIGTERM before connections are cut"),
	}
}

func storageSettings(o *engine.Options) []*setting {
	return []*setting{
		row("io", "auto", choice(&o.IO, "auto", "uring", "pwrite"),
			"auto, uring or pwrite; uring falls back to pwrite where the kernel refuses it"),
		row("lock-wait", "3s", duration(&o.LockWait, 0), "how long to wait for another process to leave the data directory"),
		row("commit-file-bytes", "32MiB", size64(&o.CommitFileBytes, 1<<20), "size of one commit log file"),
		row("commit-live-bytes", "256MiB", size64(&o.CommitLiveBytes, 1<<20),
			"most bytes of commit log that a restart has to read"),
		row("disk-patience", "5s", duration(&o.DiskPatience, 100*time.Millisecond),
			"writes wait for the disk and none comes back for this long: leaderships go to replicas whose disks are good"),
		row("disk-failed-after", "30s", duration(&o.DiskFailedAfter, 100*time.Millisecond),
			"and after this the disk counts as failed: /ping says so"),
		row("scrub-interval", "168h", duration(&o.ScrubInterval, 0),
			"how often everything in segments is read and verified, at 16 MiB/s at most, and the commit log each hour, or as "+
				"often; 0s: never"),
		row("groups-in-flight", "2", count(&o.GroupsInFlight, 1), "commit groups on the disk at once"),
		row("min-segment-bytes", "1MiB", size64(&o.MinSegmentBytes, 4096), "first segment of a partition; later ones double"),
		row("max-segment-bytes", "128MiB", size64(&o.MaxSegmentBytes, 4096), "largest segment of a partition"),
		row("read-ahead-bytes", "256KiB", size(&o.ReadAheadBytes, 4096), "most bytes that one read of a segment pins"),
	}
}

func retentionSettings(o *engine.Options) []*setting {
	return []*setting{
		row("retention-bytes", "0", size64(&o.RetentionBytes, 0),
			"most bytes kept per partition, unconfirmed messages included; 0: no limit"),
		row("retention-count", "0", count(&o.RetentionCount, 0),
			"most messages kept per partition, unconfirmed ones included; 0: no limit"),
		row("retention-age", "0s", duration(&o.RetentionAge, 0),
			"longest time a message is kept, unconfirmed ones included; 0s: no limit"),
		row("retention-interval", "5s", duration(&o.RetentionInterval, time.Millisecond), "how often retention runs"),
	}
}

func memorySettings(o *engine.Options) []*setting {
	return []*setting{
		row("buffer-bytes", "64MiB", size64(&o.BufferBytes, 4<<20),
			"memory outside the Go heap for commit groups and the newest messages"),
		row("max-inbox-bytes", "32MiB", size64(&o.MaxInboxBytes, 1<<20), "most bytes waiting to be stored per partition"),
		row("max-node-inbox-bytes", "128MiB", size64(&o.MaxNodeInboxBytes, 1<<20),
			"most bytes waiting to be stored on the node"),
		row("admit-timeout", "800ms", duration(&o.AdmitTimeout, time.Millisecond),
			"longest wait for room among the bytes waiting to be stored"),
		row("publish-timeout", "5s", duration(&o.PublishTimeout, time.Millisecond),
			"longest wait of a publish before it is refused"),
		row("max-deliveries-at-once", "4096", count(&o.MaxDeliveriesAtOne, 1),
			"messages delivered in one turn of a channel before other callers get theirs"),
	}
}

func messageSettings(o *engine.Options) []*setting {
	return []*setting{
		row("max-message-bytes", "1MiB", size(&o.MaxMessageBytes, 1), "largest message"),
		row("max-batch-bytes", "6MiB", size(&o.MaxBatchBytes, 1),
			"largest batch as stored: the bodies of one MPUB and a few bytes for each"),
		row("max-header-bytes", "32KiB", size(&o.MaxHeaderBytes, 1), "names and values of the headers of one message"),
		row("max-topics", "20000", count(&o.MaxTopics, 1), "most topics"),
		row("max-channels", "1000", count(&o.MaxChannels, 1), "most channels per topic"),
		row("max-consumers", "0", count(&o.MaxConsumers, 0), "most consumers per channel; 0: no limit"),
		row("max-ranges", "262144", count(&o.MaxRanges, 1),
			"most confirmed ranges per channel and partition above the first unconfirmed message"),
		row("max-deferred", "1048576", count(&o.MaxDeferred, 1), "most deferred messages per channel and partition"),
		row("max-state-bytes", "128MiB", size64(&o.MaxStateBytes, 64<<10),
			"deferred messages and confirmed ranges of this node, about 12 bytes each, beyond which nothing more is deferred"),
		row("max-defer", "1h", duration(&o.MaxDefer, time.Millisecond), "longest delay of a deferred publish"),
		row("msg-timeout", "1m", duration(&o.MsgTimeout, time.Millisecond),
			"redelivery after this without FIN or TOUCH, unless the client asks otherwise"),
		row("max-msg-timeout", "15m", duration(&o.MaxMsgTimeout, time.Millisecond),
			"longest timeout a client may ask for, and the bound of TOUCH"),
		row("max-req-timeout", "1h", duration(&o.MaxReqTimeout, time.Millisecond),
			"longest delay of REQ; longer ones are cut to it"),
		row("confirm-interval", "5ms", duration(&o.ConfirmInterval, time.Millisecond),
			"confirmations are stored together, at most this late"),
		row("default-partitions", "1", count(&o.DefaultPartitions, 1), "partitions of a new topic"),
		row("disable-auto-create", "false", boolean(&o.DisableAutoCreate),
			"refuse topics and channels that were not created before"),
	}
}

func clientSettings(o *nsq.Options, on *offers) []*setting {
	return []*setting{
		row("max-connections", "65536", count(&o.MaxConnections, 1), "most client connections"),
		row("max-body-bytes", "5MiB", size(&o.MaxBodyBytes, 1), "largest body of one command: an MPUB or an IDENTIFY"),
		row("max-rdy-count", "2500", count(&o.MaxRdyCount, 1), "largest RDY of a client"),
		row("max-conn-in-flight-bytes", "16MiB", size(&o.MaxConnInFlightBytes, 4096),
			"published bytes of one connection that wait for the disk before it is not read any more"),
		row("max-conn-in-flight-count", "65536", count(&o.MaxConnInFlightCount, 1),
			"answers of one connection that wait for the disk before it is not read any more"),
		row("max-in-flight-bytes", "0", size64(&o.MaxInFlightBytes, 0),
			"delivered and unfinished bytes of one consumer, however large its RDY; 0: no limit"),
		row("max-conn-output-bytes", "256KiB", size(&o.MaxConnOutputBytes, 4096), "output that waits for one client to read"),
		row("max-output-buffer-bytes", "64KiB", size(&o.MaxOutputBufferBytes, 64),
			"largest output_buffer_size a client may ask for"),
		row("max-output-buffer-timeout", "30s", duration(&o.MaxOutputBufferTimeout, time.Millisecond),
			"largest output_buffer_timeout a client may ask for; it delays nothing"),
		row("heartbeat-interval", "30s", duration(&o.HeartbeatInterval, time.Second),
			"time between heartbeats; a client that is silent for two of them is closed"),
		row("max-heartbeat-interval", "1m", duration(&o.MaxHeartbeatInterval, time.Second),
			"longest heartbeat interval a client may ask for"),
		row("max-command-time", "1m", duration(&o.MaxCommandTime, time.Millisecond),
			"a command that began must be complete after this"),
		row("write-timeout", "30s", duration(&o.WriteTimeout, time.Millisecond),
			"a client that reads nothing for this long is closed"),
		row("snappy", "true", boolean(&on.snappy), "let clients compress with snappy"),
		row("deflate", "true", boolean(&on.deflate),
			"let clients compress with deflate; it takes about 1 MiB per connection"),
		row("max-deflate-level", "6", count(&o.MaxDeflateLevel, 1), "highest deflate level a client gets, of 1 to 9"),
		row("max-inflation-ratio", "256", count(&o.MaxInflationRatio, 1),
			"a client's compressed input may become this many times as large"),
	}
}

func latencySettings(n *node) []*setting {
	return []*setting{
		row("e2e-processing-latency-percentile", "", percentiles(&n.latencyPercentiles),
			"percentile of the time from publish to FIN that /stats shows for each channel, such as 0.99; several with "+
				"commas, or the flag several times; empty: not measured"),
		row("e2e-processing-latency-window-time", "10m", duration(&n.latencyWindow, time.Millisecond),
			"how far back it is measured"),
	}
}

func securitySettings(o *nsq.Options, on *offers) []*setting {
	t, a := &o.TLS, &o.Auth
	return []*setting{
		row("tls-cert", "", text(&t.CertFile),
			"PEM file of the certificate for clients; empty: no TLS. SIGHUP reads it again"),
		row("tls-key", "", text(&t.KeyFile), "PEM file of its key"),
		row("tls-root-ca-file", "", text(&t.RootCAFile),
			"PEM file of the authorities that client certificates must come from; empty: this machine's"),
		row("tls-client-auth-policy", "", choice(&t.ClientAuth, "", "require", "require-verify"),
			"require a certificate of clients, or require-verify one; either makes TLS required"),
		row("tls-required", "false", choice(&t.Required, "false", "tcp-https", "true"),
			"true: refuse clients without TLS; tcp-https: refuse them on the NSQ protocol only"),
		row("tls-min-version", "1.2", choice(&t.MinVersion, "1.2", "1.3"), "oldest version of TLS, 1.2 or 1.3"),
		row("tls-handshake-timeout", "5s", duration(&o.HandshakeTimeout, time.Millisecond),
			"longest TLS handshake of an NSQ connection"),
		row("max-tls-handshakes", "1024", count(&o.MaxHandshakes, 1),
			"most TLS handshakes of NSQ connections at once; further ones wait"),
		row("auth-file", "", text(&a.File), "TOML file of tokens and what they may do; SIGHUP reads it again"),
		row("auth-http-address", "", urls(&on.authAddresses),
			"HOST:PORT or URL of a server of NSQ's auth protocol, or several with commas"),
		row("auth-http-request-method", "GET", choice(&a.HTTPMethod, "GET", "POST"), "how to ask it: GET or POST"),
		row("auth-http-timeout", "5s", duration(&a.RequestTimeout, time.Millisecond), "longest wait for one server's answer"),
	}
}
