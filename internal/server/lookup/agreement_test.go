package lookup

import (
	"context"
	"fmt"
	"maps"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"

	"penstock/internal/meta"
	"penstock/internal/node"
	"penstock/replicate"
)

// agreement is a Directory over a snapshot that the test changes directly. Its methods are safe for concurrent use.
type agreement struct {
	mu       sync.Mutex // guards the following
	snapshot *meta.Snapshot
	channels map[string][]string // by topic
	deaf     error               // error of ChannelNames, as when no leader answers
	refusal  error               // error of every change requested of the Directory
	asked    []string            // the changes requested since TakeAsked, as text
}

// newAgreement returns the agreement of a cluster of these nodes, without topics.
func newAgreement(nodes ...*meta.Node) *agreement {
	a := &agreement{channels: map[string][]string{}, snapshot: &meta.Snapshot{
		Nodes: map[replicate.NodeID]*meta.Node{}, Topics: map[uuid.UUID]*meta.Topic{}, Names: map[string]*meta.Topic{},
		Tombstones: map[meta.TombstoneKey]time.Time{},
	}}
	for _, n := range nodes {
		a.snapshot.Nodes[n.ID] = n
	}
	return a
}

// Change publishes a new snapshot: a copy of the current one, as modified by f.
func (a *agreement) Change(f func(s *meta.Snapshot)) {
	a.mu.Lock()
	defer a.mu.Unlock()
	old := a.snapshot
	s := &meta.Snapshot{
		Revision: old.Revision + 1, Nodes: maps.Clone(old.Nodes), Topics: maps.Clone(old.Topics),
		Names:      maps.Clone(old.Names),
		Partitions: old.Partitions, Tombstones: maps.Clone(old.Tombstones),
	}
	f(s)
	a.snapshot = s
}

// Lead sets the leaders of the topic's partitions, and creates the topic if necessary.
func (a *agreement) Lead(topic string, leaders ...replicate.NodeID) {
	a.Change(func(s *meta.Snapshot) {
		t := s.Names[topic]
		if t == nil {
			t = &meta.Topic{ID: uuid.New(), Name: topic, Partitions: len(leaders)}
			s.Topics[t.ID], s.Names[topic] = t, t
		}
		for i, id := range leaders {
			p := &meta.Partition{ID: meta.PartitionID{Topic: t.ID, Partition: uint32(i)}}
			p.State.Leader = id
			if n := s.Nodes[id]; n != nil {
				p.State.Boot = n.Boot
			}
			s.Partitions = s.Partitions.With(p.ID, p)
		}
	})
}

// Alter publishes a modified description of a node.
func (a *agreement) Alter(id replicate.NodeID, f func(n *meta.Node)) {
	a.Change(func(s *meta.Snapshot) {
		n := *s.Nodes[id]
		f(&n)
		s.Nodes[id] = &n
	})
}

func (a *agreement) Snapshot() *meta.Snapshot {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.snapshot
}

func (a *agreement) TopicNames() []string { panic("BUG: asked although there is a snapshot") }

func (a *agreement) ChannelNames(_ context.Context, topic string) ([]string, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.snapshot.Names[topic] == nil {
		return nil, meta.ErrNotFound
	}
	return a.channels[topic], a.deaf
}

func (a *agreement) ask(format string, args ...any) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.asked = append(a.asked, fmt.Sprintf(format, args...))
	return a.refusal
}

// TakeAsked returns the changes that were requested of the Directory since the last call.
func (a *agreement) TakeAsked() string {
	a.mu.Lock()
	defer a.mu.Unlock()
	asked := strings.Join(a.asked, ", ")
	a.asked = nil
	return asked
}

func (a *agreement) CreateTopic(_ context.Context, topic string, o node.TopicOptions) error {
	if o.Replicas != 0 {
		return a.ask("create %s %d of %d", topic, o.Partitions, o.Replicas)
	}
	return a.ask("create %s %d", topic, o.Partitions)
}

func (a *agreement) DeleteTopic(_ context.Context, topic string) error {
	return a.ask("delete %s", topic)
}

func (a *agreement) CreateChannel(_ context.Context, topic, channel string, _ node.TopicOptions) error {
	return a.ask("create %s/%s", topic, channel)
}

func (a *agreement) DeleteChannel(_ context.Context, topic, channel string) error {
	return a.ask("delete %s/%s", topic, channel)
}

func (a *agreement) Tombstone(_ context.Context, key meta.TombstoneKey, until time.Time) error {
	if err := a.ask("tombstone %s %d", key.Topic, key.Node); err != nil {
		return err
	}
	a.Change(func(s *meta.Snapshot) { s.Tombstones[key] = until })
	return nil
}

// threeNodes returns three live nodes, at whose addresses nothing listens.
func threeNodes() []*meta.Node {
	var out []*meta.Node
	for id := replicate.NodeID(1); id <= 3; id++ {
		host := fmt.Sprintf("n%d.example", id)
		out = append(out, &meta.Node{
			ID: id, Name: fmt.Sprint("node-", id), Boot: uuid.New(), Version: "0.1.0", Live: true,
			Host: host, NSQ: fmt.Sprintf("0.0.0.0:%d", 4150+10*id), HTTP: fmt.Sprintf("0.0.0.0:%d", 4151+10*id),
		})
	}
	return out
}

// SetChannels sets the channels that ChannelNames returns for a topic.
func (a *agreement) SetChannels(topic string, names ...string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.channels[topic] = names
}

// Refuse makes every requested change fail with err; nil: changes succeed.
func (a *agreement) Refuse(err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.refusal = err
}

// Deafen makes ChannelNames fail with err.
func (a *agreement) Deafen(err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.deaf = err
}
