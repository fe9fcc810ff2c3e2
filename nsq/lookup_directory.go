package nsq

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

// Directory is where the lookup service has its answers from. Methods are safe for concurrent use; an error of the kind
// "there is none" is engine.ErrNoTopic, engine.ErrNoChannel or meta.ErrNotFound.
type Directory interface {
	// Snapshot is the newest that the cluster agreed on, the same on every node but for the time it takes to arrive. nil: this node is
	// alone and the only producer of every topic.
	Snapshot() *meta.Snapshot
	// TopicNames are sorted. They are asked for only without a Snapshot, which has them.
	TopicNames() []string
	// ChannelNames are the channels of a topic, sorted; in a cluster also of one of which this node has no replica.
	ChannelNames(ctx context.Context, topic string) ([]string, error)

	// The following return when it is done and this node's next Snapshot, TopicNames and ChannelNames show it. What is there
	// already is no error.
	CreateTopic(ctx context.Context, topic string, partitions int) error // 0: the default
	DeleteTopic(ctx context.Context, topic string) error
	CreateChannel(ctx context.Context, topic, channel string) error // and the topic, if there is none
	DeleteChannel(ctx context.Context, topic, channel string) error
	// Tombstone hides a node from the lookups of a topic. It is called only with a Snapshot.
	Tombstone(ctx context.Context, key meta.TombstoneKey, until time.Time) error
}

// engineDirectory is an Engine as a Directory.
type engineDirectory struct {
	e *engine.Engine
	// create is Server.createTopic: a topic begins with the channels that nsqlookupds know.
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

// peer is how nsqlookupd describes an nsqd; clients connect to BroadcastAddress and TCPPort.
type peer struct {
	RemoteAddress    string `json:"remote_address"`
	Hostname         string `json:"hostname"`
	BroadcastAddress string `json:"broadcast_address"`
	TCPPort          int    `json:"tcp_port"`
	HTTPPort         int    `json:"http_port"`
	Version          string `json:"version"`
}

// named says whether a tombstone that names this HOST:HTTPPORT means the peer. nsqadmin puts brackets around an
// IPv6 address, nsqlookupd does not.
func (p *peer) named(node string) bool {
	port := strconv.Itoa(p.HTTPPort)
	return node == net.JoinHostPort(p.BroadcastAddress, port) || node == p.BroadcastAddress+":"+port
}

// peerOf is a cluster's node as clients are told of it. They must be told the same by every node, so it has nothing of this one but
// the NSQ version that both behave like: NSQ's tools compare versions, and what is not above 1.0.0 is out of date to them.
func peerOf(n *meta.Node, nsqVersion string) peer {
	host, tcpPort := n.Host, portOf(n.NSQ)
	if host == "" {
		host, _, _ = net.SplitHostPort(n.NSQ) // no host: none can be told
	}
	version := n.Version
	base, _, _ := strings.Cut(nsqVersion, "+")
	switch {
	case version == "":
		version = base + "+engine"
	case !strings.HasPrefix(version, base):
		version = base + "+engine." + version
	}
	return peer{
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
	peer
	node   replicate.NodeID // 0: this node, which is alone
	live   bool             // clients can use it: its lease lives, and it is the process that was elected
	hidden time.Time        // by a tombstone until then
}

func (l *leader) tombstoned(now time.Time) bool { return now.Before(l.hidden) }

// leadersOf lists each node once, by its id, also those that are not live or tombstoned.
func leadersOf(s *meta.Snapshot, t *meta.Topic, nsqVersion string) []leader {
	var out []leader
	for number := range t.Partitions {
		p := s.Partitions[meta.PartitionID{Topic: t.ID, Partition: uint32(number)}]
		if p == nil {
			continue
		}
		n := s.Nodes[p.State.Leader]
		if n == nil {
			continue // nobody leads it just now
		}
		// A process that was started again does not lead what the one before was elected for.
		live := n.Live && n.Boot == p.State.Boot
		if i := slices.IndexFunc(out, func(l leader) bool { return l.node == n.ID }); i >= 0 {
			out[i].live = out[i].live || live
			continue
		}
		out = append(out, leader{
			peer: peerOf(n, nsqVersion), node: n.ID, live: live,
			hidden: s.Tombstones[meta.TombstoneKey{Topic: t.Name, Node: n.ID}],
		})
	}
	slices.SortFunc(out, func(a, b leader) int { return cmp.Compare(a.node, b.node) })
	return out
}
