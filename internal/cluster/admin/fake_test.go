package admin

import (
	"cmp"
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/google/uuid"

	"penstock/internal/meta"
	"penstock/replicate"
)

// fakeStore shows a snapshot and records its calls. Only the methods that the handler uses work.
type fakeStore struct {
	meta.Store // nil: a call of any other method is a mistake of the handler

	mu    sync.Mutex
	shown *meta.Snapshot
	calls []string
	err   error
	hang  bool // calls hang until the caller gives up
}

func (f *fakeStore) Snapshot() *meta.Snapshot { return f.shown }

func (f *fakeStore) CatchUp(ctx context.Context) error {
	if f.hang {
		<-ctx.Done()
	}
	return ctx.Err()
}

func (f *fakeStore) call(ctx context.Context, format string, args ...any) error {
	f.mu.Lock()
	f.calls = append(f.calls, fmt.Sprintf(format, args...))
	f.mu.Unlock()
	if f.hang {
		<-ctx.Done()
		return fmt.Errorf("asking the store: %w", ctx.Err())
	}
	return f.err
}

func (f *fakeStore) Drain(ctx context.Context, n replicate.NodeID, on bool) error {
	return f.call(ctx, "drain %d %v", n, on)
}

func (f *fakeStore) RaiseLevel(ctx context.Context, level int) error {
	return f.call(ctx, "raise %d", level)
}

func (f *fakeStore) RemoveNode(ctx context.Context, n replicate.NodeID) error {
	return f.call(ctx, "remove %d", n)
}

func (f *fakeStore) MovePartition(ctx context.Context, id meta.PartitionID, from, to replicate.NodeID) error {
	return f.call(ctx, "move %s/%d %d %d", id.Topic, id.Partition, from, to)
}

func (f *fakeStore) ForceLeader(ctx context.Context, id meta.PartitionID, n replicate.NodeID) error {
	return f.call(ctx, "force %s/%d %d", id.Topic, id.Partition, n)
}

func (f *fakeStore) TransferLeader(
	ctx context.Context, id meta.PartitionID, to replicate.NodeID,
) (replicate.NodeID, error) {
	return cmp.Or(to, 2), f.call(ctx, "transfer %s/%d %d", id.Topic, id.Partition, to)
}

func (f *fakeStore) ExpandTopic(ctx context.Context, id uuid.UUID, partitions int) error {
	return f.call(ctx, "expand %s %d", id, partitions)
}

func (f *fakeStore) SetReplicas(ctx context.Context, id uuid.UUID, replicas int) (*meta.Topic, error) {
	return nil, f.call(ctx, "replicas %s %d", id, replicas)
}

func (f *fakeStore) Rebalance(ctx context.Context, order meta.RebalanceOrder) error {
	return f.call(ctx, "rebalance %s", order)
}

func (f *fakeStore) ConfigureTopic(ctx context.Context, id uuid.UUID, s meta.TopicSettings) (*meta.Topic, error) {
	return nil, f.call(ctx, "configure %s %+v", id, s)
}

func testUUID(kind, n byte) uuid.UUID { return uuid.UUID{0: kind, 15: n} }

var ordersID = testUUID('t', 1)

// testSnapshot is a cluster of five nodes in trouble: n3 is dead, n4 was restarted and leads nothing yet, and the node
// named "2" has the number 5. The partitions of topic orders: 0 is fine, 1 under-replicated, 2 below min_isr, 3 led by
// the dead node and damaged, 4 led by a process that is gone, 5 has no row.
func testSnapshot() *meta.Snapshot {
	s := &meta.Snapshot{
		Revision: 77, Cluster: testUUID('c', 1), Controller: 2,
		Nodes: map[replicate.NodeID]*meta.Node{}, Topics: map[uuid.UUID]*meta.Topic{}, Names: map[string]*meta.Topic{},
		Deleted:    map[uuid.UUID]bool{},
		Tombstones: map[meta.TombstoneKey]time.Time{},
	}
	for i, name := range []string{"n1", "n2", "n3", "n4", "2"} {
		n := byte(i + 1)
		s.Nodes[replicate.NodeID(n)] = &meta.Node{
			ID: replicate.NodeID(n), Name: name, Store: testUUID('s', n), Boot: testUUID('b', n), Version: "0.1.0",
			Host: "127.0.0.1",
			Peer: fmt.Sprintf("127.0.0.1:%d4", n), NSQ: fmt.Sprintf("127.0.0.1:%d0", n), HTTP: fmt.Sprintf("127.0.0.1:%d1", n),
			Live: name != "n3",
		}
	}
	s.Nodes[4].Boot = testUUID('b', 44)
	s.Nodes[5].Disk = meta.DiskHung
	topic := &meta.Topic{ID: ordersID, Name: "orders", Partitions: 6, Replicas: 3, MinISR: 2}
	s.Topics[topic.ID], s.Names[topic.Name] = topic, topic
	for i, row := range []struct {
		leader  replicate.NodeID
		isr     []replicate.NodeID
		damaged []replicate.NodeID
	}{
		{1, []replicate.NodeID{1, 2, 3}, nil},
		{2, []replicate.NodeID{2, 1}, nil},
		{1, []replicate.NodeID{1}, nil},
		{3, []replicate.NodeID{3}, []replicate.NodeID{2}},
		{4, []replicate.NodeID{4, 1, 2}, nil},
	} {
		p := &meta.Partition{ID: meta.PartitionID{Topic: topic.ID, Partition: uint32(i)}}
		p.State = replicate.State{
			Epoch: 7, Version: 9, Leader: row.leader, Boot: testUUID('b', byte(row.leader)), MinISR: 2,
			Replicas: []replicate.NodeID{1, 2, 3},
		}
		if i == 4 {
			p.State.Replicas = []replicate.NodeID{4, 1, 2}
		}
		for _, n := range row.isr {
			p.State.ISR = append(p.State.ISR, replicate.Member{Node: n, Store: testUUID('s', byte(n))})
		}
		for _, n := range row.damaged {
			p.Damaged = append(p.Damaged, replicate.Member{Node: n, Store: testUUID('s', byte(n))})
		}
		s.Partitions = s.Partitions.With(p.ID, p)
	}
	return s
}
