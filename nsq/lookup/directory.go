package lookup

import (
	"cmp"
	"context"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	"penstock/engine"
	"penstock/engine/meta"
	"penstock/replicate"
)

// Directory is where the answers about our own topics come from; the engine is one. Methods are safe for concurrent
// use. That there is no such topic or channel is reported as engine.ErrNoTopic, engine.ErrNoChannel or
// meta.ErrNotFound.
type Directory interface {
	// Snapshot is the newest state that the cluster agreed on, the same on every node but for the time it takes to
	// arrive. nil: this node is alone, and the only producer of every topic.
	Snapshot() *meta.Snapshot
	// TopicNames are sorted. Only a lone node is asked: a Snapshot has the names.
	TopicNames() []string
	// ChannelNames are the channels of a topic, sorted; in a cluster also of a topic of which this node has no replica.
	ChannelNames(ctx context.Context, topic string) ([]string, error)

	// The following return when the change is made and this node's next Snapshot, TopicNames and ChannelNames show it.
	// Creating what is there already is no error.
	CreateTopic(ctx context.Context, topic string, partitions int) error // 0: the default
	DeleteTopic(ctx context.Context, topic string) error
	CreateChannel(ctx context.Context, topic, channel string) error // creates the topic as well
	DeleteChannel(ctx context.Context, topic, channel string) error
	// Tombstone hides a node from the lookups of a topic. It is called only with a Snapshot.
	Tombstone(ctx context.Context, key meta.TombstoneKey, until time.Time) error
}

// engineDirectory is an Engine as a Directory.
type engineDirectory struct {
	e *engine.Engine
	// create is Service.CreateTopic: a topic begins with the channels that other lookup services know.
	create func(ctx context.Context, topic string, partitions int) (*engine.Topic, error)
}

func (d engineDirectory) Snapshot() *meta.Snapshot { return d.e.Snapshot() }

func (d engineDirectory) TopicNames() []string {
	topics := d.e.Topics()
	names := make([]string, len(topics))
	for i, t := range topics {
		names[i] = t.Name()
	}
	return names
}

func (d engineDirectory) ChannelNames(ctx context.Context, topic string) ([]string, error) {
	t, ok := d.e.LookupTopic(topic)
	if !ok {
		return nil, engine.ErrNoTopic
	}
	return t.ReadChannelNames(ctx)
}

func (d engineDirectory) CreateTopic(ctx context.Context, topic string, partitions int) error {
	_, err := d.create(ctx, topic, partitions)
	return err
}

func (d engineDirectory) DeleteTopic(ctx context.Context, topic string) error {
	return d.e.DeleteTopic(ctx, topic)
}

func (d engineDirectory) CreateChannel(ctx context.Context, topic, channel string) error {
	t, err := d.create(ctx, topic, 0)
	if err != nil {
		return err
	}
	_, err = t.CreateChannel(ctx, channel)
	return err
}

func (d engineDirectory) DeleteChannel(ctx context.Context, topic, channel string) error {
	t, ok := d.e.LookupTopic(topic)
	if !ok {
		return engine.ErrNoTopic
	}
	return t.DeleteChannel(ctx, channel)
}

func (d engineDirectory) Tombstone(ctx context.Context, key meta.TombstoneKey, until time.Time) error {
	return d.e.Tombstone(ctx, key, until)
}

// Producer is how nsqlookupd describes an nsqd, and an nsqd itself. Clients connect to BroadcastAddress and TCPPort.
type Producer struct {
	RemoteAddress    string `json:"remote_address"`
	Hostname         string `json:"hostname"`
	BroadcastAddress string `json:"broadcast_address"`
	TCPPort          int    `json:"tcp_port"`
	HTTPPort         int    `json:"http_port"`
	Version          string `json:"version"`
}

// endpoint is where clients connect to.
func (p *Producer) endpoint() string {
	return net.JoinHostPort(p.BroadcastAddress, strconv.Itoa(p.TCPPort))
}

// named says whether node, the HOST:HTTPPORT that a tombstone is for, means this producer. nsqadmin puts brackets
// around an IPv6 address, nsqlookupd does not.
func (p *Producer) named(node string) bool {
	port := strconv.Itoa(p.HTTPPort)
	return node == net.JoinHostPort(p.BroadcastAddress, port) || node == p.BroadcastAddress+":"+port
}

// producerOf describes a node of the cluster to clients. Every node must describe it in the same words, so all comes
// from n, but for the NSQ version that both behave like. NSQ's tools compare versions, and call one below 1.0.0 out of
// date.
func producerOf(n *meta.Node, nsqVersion string) Producer {
	host, tcpPort := n.Host, portOf(n.NSQ)
	if host == "" {
		host, _, _ = net.SplitHostPort(n.NSQ) // an address without a host leaves it empty
	}
	version := n.Version
	base, _, _ := strings.Cut(nsqVersion, "+")
	switch {
	case version == "":
		version = base + "+engine"
	case !strings.HasPrefix(version, base):
		version = base + "+engine." + version
	}
	return Producer{
		RemoteAddress: net.JoinHostPort(host, strconv.Itoa(tcpPort)), Hostname: host, BroadcastAddress: host,
		TCPPort: tcpPort, HTTPPort: portOf(n.HTTP), Version: version,
	}
}

// portOf is the port of HOST:PORT, or 0: the service is off.
func portOf(address string) int {
	_, text, err := net.SplitHostPort(address)
	if err != nil {
		return 0
	}
	p, err := strconv.ParseUint(text, 10, 16)
	if err != nil {
		return 0
	}
	return int(p)
}

// leader is a node that leads at least one partition of a topic.
type leader struct {
	Producer
	node   replicate.NodeID // 0: this lone node
	live   bool             // its lease has not ended, and it is the process that was elected: clients can use it
	hidden time.Time        // a tombstone hides it until then
}

func (l *leader) tombstoned(now time.Time) bool { return now.Before(l.hidden) }

// leadersOf lists the nodes that lead a partition of the topic, each once, by id, whether they are live or tombstoned
// or neither.
func leadersOf(s *meta.Snapshot, t *meta.Topic, nsqVersion string) []leader {
	var out []leader
	for number := range t.Partitions {
		p := s.Partitions[meta.PartitionID{Topic: t.ID, Partition: uint32(number)}]
		if p == nil {
			continue
		}
		n := s.Nodes[p.State.Leader]
		if n == nil {
			continue // an election is under way
		}
		// A process that was started again does not lead what the process before it was elected for.
		live := n.Live && n.Boot == p.State.Boot
		if i := slices.IndexFunc(out, func(l leader) bool { return l.node == n.ID }); i >= 0 {
			out[i].live = out[i].live || live
			continue
		}
		out = append(out, leader{
			Producer: producerOf(n, nsqVersion), node: n.ID, live: live,
			hidden: s.Tombstones[meta.TombstoneKey{Topic: t.Name, Node: n.ID}],
		})
	}
	slices.SortFunc(out, func(a, b leader) int { return cmp.Compare(a.node, b.node) })
	return out
}
