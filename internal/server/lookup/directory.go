package lookup

import (
	"cmp"
	"context"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	"penstock/internal/meta"
	"penstock/internal/node"
	"penstock/internal/node/errs"
	"penstock/replicate"
)

// Directory is the source of the answers about our own topics; the engine is one. Methods are safe for concurrent use.
// They report a missing topic or channel as errs.ErrNoTopic, errs.ErrNoChannel or meta.ErrNotFound.
type Directory interface {
	// Snapshot returns the newest state of the cluster that has reached this node; every node sees the same states,
	// sooner or later. nil: this node is alone, and the only producer of every topic.
	Snapshot() *meta.Snapshot
	// TopicNames returns the names of all topics, sorted. It is called only on a lone node: in a cluster the Snapshot
	// has the names.
	TopicNames() []string
	// ChannelNames returns the channels of a topic, sorted. In a cluster it also knows topics of which this node has no
	// replica.
	ChannelNames(ctx context.Context, topic string) ([]string, error)

	// The following return when the change is made and this node's next Snapshot, TopicNames and ChannelNames show it.
	// Creating a topic or channel that exists is no error.
	CreateTopic(ctx context.Context, topic string, o node.TopicOptions) error
	DeleteTopic(ctx context.Context, topic string) error
	// CreateChannel creates the topic if necessary; o is that topic's.
	CreateChannel(ctx context.Context, topic, channel string, o node.TopicOptions) error
	DeleteChannel(ctx context.Context, topic, channel string) error
	// Tombstone hides a node from the lookups of a topic. It is called only with a Snapshot.
	Tombstone(ctx context.Context, key meta.TombstoneKey, until time.Time) error
}

// engineDirectory makes the Engine a Directory.
type engineDirectory struct {
	e *node.Engine
	// create is Service.CreateTopic, which gives a new topic the channels that other lookup services know.
	create func(ctx context.Context, topic string, o node.TopicOptions) (*node.Topic, error)
}

func (d engineDirectory) Snapshot() *meta.Snapshot { return d.e.Snapshot() }

func (d engineDirectory) TopicNames() []string {
	topics := d.e.Catalog().Topics()
	names := make([]string, len(topics))
	for i, t := range topics {
		names[i] = t.Name()
	}
	return names
}

func (d engineDirectory) ChannelNames(ctx context.Context, topic string) ([]string, error) {
	t, ok := d.e.Catalog().LookupTopic(topic)
	if !ok {
		return nil, errs.ErrNoTopic
	}
	return t.ReadChannelNames(ctx)
}

func (d engineDirectory) CreateTopic(ctx context.Context, topic string, o node.TopicOptions) error {
	_, err := d.create(ctx, topic, o)
	return err
}

func (d engineDirectory) DeleteTopic(ctx context.Context, topic string) error {
	return d.e.DeleteTopic(ctx, topic)
}

func (d engineDirectory) CreateChannel(
	ctx context.Context, topic, channel string, o node.TopicOptions,
) error {
	t, err := d.create(ctx, topic, o)
	if err != nil {
		return err
	}
	_, err = t.CreateChannel(ctx, channel)
	return err
}

func (d engineDirectory) DeleteChannel(ctx context.Context, topic, channel string) error {
	t, ok := d.e.Catalog().LookupTopic(topic)
	if !ok {
		return errs.ErrNoTopic
	}
	return t.DeleteChannel(ctx, channel)
}

func (d engineDirectory) Tombstone(ctx context.Context, key meta.TombstoneKey, until time.Time) error {
	return d.e.Tombstone(ctx, key, until)
}

// Producer describes an nsqd, in the form in which nsqlookupd and an nsqd itself do. Clients connect to
// BroadcastAddress and TCPPort.
type Producer struct {
	RemoteAddress    string `json:"remote_address"`
	Hostname         string `json:"hostname"`
	BroadcastAddress string `json:"broadcast_address"`
	TCPPort          int    `json:"tcp_port"`
	HTTPPort         int    `json:"http_port"`
	Version          string `json:"version"`
}

// endpoint returns the address to which clients connect.
func (p *Producer) endpoint() string {
	return net.JoinHostPort(p.BroadcastAddress, strconv.Itoa(p.TCPPort))
}

// named reports whether node, the HOST:HTTPPORT in a request for a tombstone, means this producer. nsqadmin puts
// brackets around an IPv6 address; nsqlookupd does not.
func (p *Producer) named(node string) bool {
	port := strconv.Itoa(p.HTTPPort)
	return node == net.JoinHostPort(p.BroadcastAddress, port) || node == p.BroadcastAddress+":"+port
}

// producerOf describes a node of the cluster to clients. All nodes must describe it identically. So the description
// comes from n alone, except for nsqVersion, the version of NSQ that all nodes behave like. NSQ's tools compare
// versions, and report a version below 1.0.0 as out of date.
func producerOf(n *meta.Node, nsqVersion string) Producer {
	host, tcpPort := n.Host, portOf(n.NSQ)
	if host == "" {
		host, _, _ = net.SplitHostPort(n.NSQ) // host stays empty if the address has none
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

// portOf returns the port of a HOST:PORT, or 0 if the service is off.
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
	live   bool             // clients can use it: its lease has not ended, and it is still the process that was elected
	hidden time.Time        // until when a tombstone hides the node from lookups
}

func (l *leader) tombstoned(now time.Time) bool { return now.Before(l.hidden) }

// leadersOf lists the nodes that lead a partition of the topic, each of them once, sorted by id. It includes nodes that
// are not live and nodes with a tombstone.
func leadersOf(s *meta.Snapshot, t *meta.Topic, nsqVersion string) []leader {
	var out []leader
	for number := range t.Partitions {
		p := s.Partitions.Get(meta.PartitionID{Topic: t.ID, Partition: uint32(number)})
		if p == nil {
			continue
		}
		n := s.Nodes[p.State.Leader]
		if n == nil {
			continue // an election is under way
		}
		// A restarted process does not lead the partitions that its predecessor was elected for.
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
