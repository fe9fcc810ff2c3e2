package stats

import (
	"cmp"
	"encoding/json"
	"runtime"
	"slices"
	"time"

	"penstock/internal/node"
	"penstock/internal/node/health"
	"penstock/internal/node/message"
)

// Reply is what /stats answers. Its field names are a public contract: nsqadmin, nsq_stat and exporters read them.
type Reply struct {
	Version   string   `json:"version"`
	Health    string   `json:"health"`
	StartTime int64    `json:"start_time"`
	Topics    []Topic  `json:"topics"`
	Memory    *Memory  `json:"memory,omitempty"`
	Producers []Client `json:"producers"`
	// Storage is an addition to nsqd's reply; readers of nsqd's format ignore unknown fields.
	Storage node.StorageStats `json:"storage"`
}

// Topic is a topic, with what this node leads of it.
type Topic struct {
	Name         string    `json:"topic_name"`
	Channels     []Channel `json:"channels"`
	Depth        int64     `json:"depth"`
	BackendDepth int64     `json:"backend_depth"`
	MessageCount uint64    `json:"message_count"`
	Published    uint64    `json:"published_count"` // ever; the others count since the start
	MessageBytes uint64    `json:"message_bytes"`
	StoredBytes  int64     `json:"stored_bytes"`       // of the logs of the partitions led here, now
	Producers    int       `json:"producer_count"`     // that number their messages, in the partitions led here
	MaxProducers int       `json:"max_producer_count"` // in the partition that knows the most
	// Connected counts the open connections of both protocols that have published to the topic.
	Connected  int   `json:"connected_producer_count"`
	Partitions int   `json:"partition_count"`   // on any node
	Served     []int `json:"served_partitions"` // whose channels deliver from here; the rest is elsewhere
	Paused     bool  `json:"paused"`
	OverQuota  bool  `json:"over_quota"` // see node.TopicStats
	// DelaysRefused: see node.TopicStats.
	DelaysRefused int     `json:"delays_refused"`
	ReadOnly      int     `json:"read_only_partitions"` // see node.TopicStats
	MadeBy        string  `json:"made_by"`              // see node.Topic.MadeBy
	Latency       Latency `json:"e2e_processing_latency"`
}

// Channel is a channel, with what this node leads of it.
type Channel struct {
	Name          string   `json:"channel_name"`
	Depth         int64    `json:"depth"`
	BackendDepth  int64    `json:"backend_depth"`
	InFlightCount int      `json:"in_flight_count"`
	DeferredCount int      `json:"deferred_count"`
	MessageCount  uint64   `json:"message_count"`
	RequeueCount  uint64   `json:"requeue_count"`
	TimeoutCount  uint64   `json:"timeout_count"`
	ClientCount   int      `json:"client_count"`
	Clients       []Client `json:"clients"`
	Paused        bool     `json:"paused"`
	Latency       Latency  `json:"e2e_processing_latency"`
	Trouble                // in addition to nsqd's reply
}

// Trouble is what keeps the messages of a channel from its consumers: see node.ChannelStats.
type Trouble struct {
	OutboxCount    int    `json:"outbox_count"`
	AsideCount     int    `json:"aside_count"`
	AsideWhy       string `json:"aside_why"`
	FullPartitions int    `json:"full_partitions"`
	DroppedCount   uint64 `json:"dropped_count"`
	Dropping       bool   `json:"dropping"`
	SkippedCount   uint64 `json:"skipped_count"`
	Starved        bool   `json:"starved"`
	Skipping       bool   `json:"skipping"`
	SkippingSince  string `json:"skipping_since,omitempty"` // RFC 3339, see node.ChannelStats
	SkippedBefore  bool   `json:"skipped_before"`
}

// Latency is always present, with two percentiles: nsqadmin and nsq_stat crash without the object, and one exporter
// indexes p99 and p95.
type Latency struct {
	Count       int          `json:"count"`
	Percentiles []Percentile `json:"percentiles"`
	Measured    bool         `json:"-"`
}

// Percentile is one value of a Latency.
type Percentile struct {
	Quantile float64 `json:"quantile"`
	Value    float64 `json:"value"` // ns
}

// Unmeasured returns the latency of a channel that is not measured.
func Unmeasured() Latency {
	return Latency{Percentiles: []Percentile{{Quantile: 0.99}, {Quantile: 0.95}}}
}

// Client is a connection, as a consumer or as a publisher. The protocols fill it in; Consume adds a subscription.
type Client struct {
	ClientID      string     `json:"client_id"`
	Hostname      string     `json:"hostname"`
	Version       string     `json:"version"`
	RemoteAddress string     `json:"remote_address"`
	State         int        `json:"state"`
	ReadyCount    int        `json:"ready_count"`
	InFlightCount int        `json:"in_flight_count"`
	MessageCount  uint64     `json:"message_count"`
	FinishCount   uint64     `json:"finish_count"`
	RequeueCount  uint64     `json:"requeue_count"`
	ConnectTime   int64      `json:"connect_ts"`
	SampleRate    int        `json:"sample_rate"`
	Deflate       bool       `json:"deflate"`
	Snappy        bool       `json:"snappy"`
	UserAgent     string     `json:"user_agent"`
	PubCounts     []PubCount `json:"pub_counts,omitempty"`

	TLS                bool   `json:"tls"`
	CipherSuite        string `json:"tls_cipher_suite"`
	TLSVersion         string `json:"tls_version"`
	NegotiatedProtocol string `json:"tls_negotiated_protocol"`
	NegotiatedIsMutual bool   `json:"tls_negotiated_protocol_is_mutual"`

	Authed          bool   `json:"authed,omitempty"`
	AuthIdentity    string `json:"auth_identity,omitempty"`
	AuthIdentityURL string `json:"auth_identity_url,omitempty"`

	Started time.Time `json:"-"` // of the connection
}

// PubCount is how many messages of a connection to a topic were answered OK.
type PubCount struct {
	Topic string `json:"topic"`
	Count uint64 `json:"count"`
}

// Memory has numbers of memory and garbage collection.
type Memory struct {
	HeapObjects       uint64 `json:"heap_objects"`
	HeapIdleBytes     uint64 `json:"heap_idle_bytes"`
	HeapInUseBytes    uint64 `json:"heap_in_use_bytes"`
	HeapReleasedBytes uint64 `json:"heap_released_bytes"`
	GCPauseUsec100    uint64 `json:"gc_pause_usec_100"`
	GCPauseUsec99     uint64 `json:"gc_pause_usec_99"`
	GCPauseUsec95     uint64 `json:"gc_pause_usec_95"`
	NextGCBytes       uint64 `json:"next_gc_bytes"`
	GCTotalRuns       uint32 `json:"gc_total_runs"`
}

// The states of a client, with nsqd's numbers.
const (
	StateInit       = 0
	StateSubscribed = 3
	stateClosing    = 4
)

// Health returns the state that /ping and /stats report: NOK if nothing can be served, as in nsqd.
func Health(e *node.Engine) (string, bool) {
	if v := e.Verdict(); !v.Serves {
		return "NOK - " + v.Why, false
	}
	return "OK", true
}

// Collector collects the statistics of a node, for /stats and statsd. It is immutable; any goroutine may use it. It
// takes the lock of each channel for a moment, and so waits for a channel that reads from a slow disk.
type Collector struct {
	Engine  *node.Engine
	Version string
	Started time.Time
	// Publishers describes the open connections of all protocols that have published to the topic; "": to any.
	Publishers func(topic string) []Client
	// Connected returns how many open connections of all protocols have published to each topic.
	Connected func() map[string]int
}

// Collect returns a snapshot of the topic and channel; "" selects all. It never waits for a client.
func (c *Collector) Collect(topic, channel string, clients bool) *Reply {
	state, _ := Health(c.Engine)
	r := &Reply{
		Version: c.Version, Health: state, StartTime: c.Started.Unix(), Producers: []Client{},
		Storage: c.Engine.Storage(),
	}
	now := time.Now()
	connected := c.Connected()
	for _, t := range c.Engine.Stats(topic, channel) {
		out := Topic{
			Name: t.Name, Channels: []Channel{}, Depth: t.Depth, BackendDepth: t.BackendDepth,
			MessageCount: t.MessageCount, Published: t.Published, MessageBytes: t.MessageBytes, Paused: t.Paused,
			OverQuota: t.OverQuota, StoredBytes: t.LedBytes, Producers: t.Producers, MaxProducers: t.MaxProducers,
			Connected:  connected[t.Name],
			Partitions: t.Partitions, Served: t.Served, DelaysRefused: t.DelaysRefused,
			ReadOnly: t.ReadOnly, MadeBy: t.MadeBy,
		}
		var latencies []message.LatencyRecorder
		for i := range t.Channels {
			out.Channels = append(out.Channels, ChannelOf(&t.Channels[i], clients, now))
			latencies = append(latencies, t.Channels[i].Latencies)
		}
		out.Latency = latencyOf(now, latencies...)
		r.Topics = append(r.Topics, out)
	}
	if clients {
		r.Producers = append(r.Producers, c.Publishers(topic)...)
		slices.SortFunc(r.Producers, func(a, b Client) int { return cmp.Compare(a.RemoteAddress, b.RemoteAddress) })
	}
	return r
}

// MaxConnections bounds the clients of each kind that Connections lists.
const MaxConnections = 500

// Connections are the clients of a node: those that publish there, and those to which it delivers, which may be
// connected to another node.
type Connections struct {
	Producers     []Client   `json:"producers"`
	Consumers     []Consumer `json:"consumers"`
	ProducerCount int        `json:"producer_count"` // also of those beyond MaxConnections
	ConsumerCount int        `json:"consumer_count"`
}

// Consumer is a subscription of a client.
type Consumer struct {
	Topic   string `json:"topic"`
	Channel string `json:"channel"`
	Client
}

// Connections returns the clients of the node, of each kind the first MaxConnections.
func (c *Collector) Connections() *Connections {
	r := c.Collect("", "", true)
	out := &Connections{Producers: r.Producers, Consumers: []Consumer{}, ProducerCount: len(r.Producers)}
	out.Producers = out.Producers[:min(len(out.Producers), MaxConnections)]
	for i := range r.Topics {
		for _, ch := range r.Topics[i].Channels {
			out.ConsumerCount += len(ch.Clients)
			for _, cl := range ch.Clients[:min(len(ch.Clients), MaxConnections-len(out.Consumers))] {
				out.Consumers = append(out.Consumers, Consumer{Topic: r.Topics[i].Name, Channel: ch.Name, Client: cl})
			}
		}
	}
	return out
}

// Describer is the label of a consumer that has a connection (message.ConsumerStats.Label).
type Describer interface{ Describe() Client }

// Add adds another node's trouble of the same channel.
func (t *Trouble) Add(o *Trouble) {
	t.OutboxCount += o.OutboxCount
	t.AsideCount += o.AsideCount
	t.AsideWhy = cmp.Or(t.AsideWhy, o.AsideWhy)
	t.FullPartitions += o.FullPartitions
	t.DroppedCount += o.DroppedCount
	t.Dropping = t.Dropping || o.Dropping
	t.SkippedCount += o.SkippedCount
	t.Skipping = t.Skipping || o.Skipping
	t.Starved = t.Starved || o.Starved
	t.SkippingSince = health.Earlier(t.SkippingSince, o.SkippingSince)
	t.SkippedBefore = t.SkippedBefore || o.SkippedBefore
}

// TroubleOf returns the trouble of a channel.
func TroubleOf(ch *node.ChannelStats) Trouble {
	return Trouble{
		OutboxCount: ch.OutboxCount, AsideCount: ch.AsideCount, AsideWhy: ch.AsideWhy, FullPartitions: ch.FullPartitions,
		DroppedCount: ch.DroppedCount, Dropping: ch.Dropping, SkippedCount: ch.SkippedCount, Skipping: ch.Skipping,
		SkippingSince: health.Since(ch.SkippingSince), SkippedBefore: ch.SkippedBefore, Starved: ch.Starved,
	}
}

// ChannelOf returns the statistics of a channel, with its clients if they are wanted.
func ChannelOf(ch *node.ChannelStats, clients bool, now time.Time) Channel {
	out := Channel{
		Name: ch.Name, Depth: ch.Depth, BackendDepth: ch.BackendDepth, InFlightCount: ch.InFlightCount,
		DeferredCount: ch.DeferredCount, MessageCount: ch.MessageCount, RequeueCount: ch.RequeueCount,
		TimeoutCount: ch.TimeoutCount, ClientCount: len(ch.Consumers), Clients: []Client{}, Paused: ch.Paused,
		Latency: latencyOf(now, ch.Latencies), Trouble: TroubleOf(ch),
	}
	if !clients {
		return out
	}
	for _, cons := range ch.Consumers {
		cs := Client{Version: "V2"} // a consumer within this process has no connection
		switch client := cons.Label.(type) {
		case Describer:
			cs = client.Describe()
		case node.RemoteLabel:
			if err := json.Unmarshal(client.Client, &cs); err != nil {
				cs.Hostname = client.Node // a consumer within that node's process
			}
			cs.Started = time.Unix(cs.ConnectTime, 0)
		}
		cs.Consume(cons)
		out.Clients = append(out.Clients, cs)
	}
	return out
}

// Consume adds the numbers of a subscription.
func (cs *Client) Consume(st message.ConsumerStats) {
	cs.State = StateSubscribed
	if st.Stopped {
		cs.State = stateClosing
	}
	cs.ReadyCount, cs.InFlightCount = st.ReadyCount, st.InFlightCount
	cs.MessageCount, cs.FinishCount, cs.RequeueCount = st.MessageCount, st.FinishCount, st.RequeueCount
}

// ReadMemory returns the numbers of now. It stops the process for a moment.
func ReadMemory() *Memory {
	var ms runtime.MemStats
	runtime.ReadMemStats(&ms)
	pauses := slices.Clone(ms.PauseNs[:min(int(ms.NumGC), len(ms.PauseNs))])
	slices.Sort(pauses)
	at := func(q float64) uint64 {
		if len(pauses) == 0 {
			return 0
		}
		return pauses[min(int(q*float64(len(pauses))), len(pauses)-1)] / 1000
	}
	return &Memory{
		HeapObjects: ms.HeapObjects, HeapIdleBytes: ms.HeapIdle,
		HeapInUseBytes: ms.HeapInuse, HeapReleasedBytes: ms.HeapReleased,
		GCPauseUsec100: at(1), GCPauseUsec99: at(0.99), GCPauseUsec95: at(0.95),
		NextGCBytes: ms.NextGC, GCTotalRuns: ms.NumGC,
	}
}
