package cluster

import (
	"errors"
	"maps"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"

	"penstock/internal/meta"
	"penstock/replicate"
)

// Replicas go to no node that the controller does not reach, whatever they go there for.
func TestPlansOfWhoIsApart(t *testing.T) {
	runPlans(t, []planCase{
		{"a topic that wants one more replica gets it where it is reached", `
			node 1
			node 2 apart
			node 3
			part 0 lead 1 of 1 isr 1 min 1
			topic 2 min 2`, `towards the replicas that the topic wants: part 0 epoch 5 lead 1 of 1 3 isr 1 min 1`, 0},
		{"or waits", `
			node 1
			node 2 apart
			part 0 lead 1 of 1 isr 1 min 1
			topic 2 min 2`, ``, 0},
		{"a drain goes where it is reached", `
			node 1 draining
			node 2
			node 3 apart
			node 4
			part 0 lead 2 of 2 1 isr 1 2 min 2
			topic 2 min 2`, `move away from a draining node put /moves/t/000000 {"from":1,"to":4,"drain":true}`, 0},
		{"a rebalance does not begin", `
			node 1
			node 2 apart
			part 0 lead 1 of 1 isr 1 min 1
			part 1 lead 1 of 1 isr 1 min 1
			topic 1 min 1
			rebalance wanted`, ``, 0},
		{"an operator's move waits", `
			node 1
			node 2
			node 3 apart
			part 0 lead 1 of 1 2 isr 1 2 min 2
			topic 2 min 2
			move 0 2 3`, ``, 0},
		{"the controller's own is forgotten before it begins", `
			node 1
			node 2
			node 3 apart
			part 0 lead 1 of 1 2 isr 1 2 min 2
			topic 2 min 2
			move 0 2 3 drain`, `a move is over drop /moves/t/000000`, 0},
		{"one that has begun goes on: the leader may reach the node", `
			node 1
			node 2
			node 3 apart
			part 0 lead 1 of 1 3 2 isr 1 2 3 min 2
			topic 2 min 2
			move 0 2 3`, `remove the replica that goes: part 0 epoch 5 lead 1 of 1 3 isr 1 3 min 2 drop /moves/t/000000`, 0},
	})
}

// A process counts as apart from when it is seen alive without a connection, until it has one or is gone; another
// process of its name begins anew.
func TestUnreached(t *testing.T) {
	const patience = 3 * time.Second
	start := time.Unix(0, 0)
	u := unreached{}
	for _, step := range []struct {
		name    string
		at      time.Duration
		nodes   string // of them, those that are reached have a plus, the dead a minus
		boot    byte
		apart   []replicate.NodeID
		pending bool
	}{
		{"all are reached", 0, "1 2+ 3+", 0, nil, false},
		{"3 loses its connection", time.Second, "1 2+ 3", 0, []replicate.NodeID{3}, true},
		{"for a while", 3 * time.Second, "1 2+ 3", 0, []replicate.NodeID{3}, true},
		{"for long", 4 * time.Second, "1 2+ 3", 0, []replicate.NodeID{3}, false},
		{"another process of it", 5 * time.Second, "1 2+ 3", 1, []replicate.NodeID{3}, true},
		{"that one is reached", 6 * time.Second, "1 2+ 3+", 1, nil, false},
		{"and not again", 20 * time.Second, "1 2 3", 1, []replicate.NodeID{2, 3}, true},
		{"2 dies, 3 is removed", 21 * time.Second, "1 2-", 1, nil, false},
	} {
		s := &meta.Snapshot{Nodes: map[replicate.NodeID]*meta.Node{}}
		reaches := map[replicate.NodeID]bool{}
		for _, word := range strings.Fields(step.nodes) {
			id := numbers(t, []string{word[:1]})[0]
			s.Nodes[id] = &meta.Node{ID: id, Live: !strings.HasSuffix(word, "-"), Boot: uuid.UUID{step.boot}}
			reaches[id] = strings.HasSuffix(word, "+")
		}
		now := start.Add(step.at)
		u.observe(s, 1, now, func(id replicate.NodeID) bool { return reaches[id] })
		got := slices.Sorted(maps.Keys(u.apart()))
		if !slices.Equal(got, step.apart) || u.pending(now, patience) != step.pending {
			t.Errorf("%s: apart %v, pending %v", step.name, got, u.pending(now, patience))
		}
	}
}

// A node that is alive by its lease and that nobody reaches gets no replica of a new topic or partition, and no move;
// whoever asks for one by name learns why. One that has just joined is waited for.
func TestTopicsAvoidWhoIsApart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorldWith(t, 0, quickLeases)
		var reached atomic.Bool // n3
		for _, name := range []string{"n1", "n2", "n3"} {
			n := w.prepare(name, uuid.New())
			n.reg.Reaches = func(id replicate.NodeID) bool { return id != 3 || reached.Load() }
			w.join(n)
		}
		n := w.nodes[0]
		for _, n := range w.nodes {
			w.until(n, "all nodes", func(s *meta.Snapshot) bool { return len(s.Nodes) == 3 })
		}
		has := func(name string) bool {
			s := n.Snapshot()
			id := s.Names[name].ID
			for i := range s.Topics[id].Partitions {
				p := s.Partitions.Get(meta.PartitionID{Topic: id, Partition: uint32(i)})
				if slices.Contains(p.State.Replicas, 3) {
					return true
				}
			}
			return false
		}
		create := func(name string, replicas int) error {
			_, err := n.CreateTopic(ctx(t), meta.Topic{
				Name: name, Settings: meta.TopicSettings{}, Partitions: 4,
				Replicas: replicas,
			})
			return err
		}
		if err := create("usual", 0); err != nil || has("usual") {
			t.Fatalf("n3 has a replica, %v", err)
		}
		if err := create("three", 3); !errors.Is(err, meta.ErrTooFewNodes) || !strings.Contains(err.Error(), "[n3]") {
			t.Errorf("three replicas: %v", err)
		}
		if err := create("one", 1); err != nil || has("one") {
			t.Fatalf("n3 has a replica, %v", err)
		}
		id := n.Snapshot().Names["one"].ID
		if err := n.ExpandTopic(ctx(t), id, 8); err != nil || has("one") {
			t.Errorf("n3 has a replica, %v", err)
		}
		p := n.Snapshot().Partitions.Get(meta.PartitionID{Topic: id})
		err := n.MovePartition(ctx(t), p.ID, p.State.Replicas[0], 3)
		if !errors.Is(err, meta.ErrTooFewNodes) || !strings.Contains(err.Error(), "no connection") {
			t.Errorf("a move: %v", err)
		}
		time.Sleep(10 * quickLeases.LeaseTTL)
		if has("usual") {
			t.Error("the controller gave n3 a replica")
		}

		reached.Store(true)
		w.until(n, "n3 has what the topic wants", func(*meta.Snapshot) bool { return has("usual") })
		if err := create("three", 3); err != nil || !has("three") {
			t.Errorf("three replicas: %v", err)
		}
	})
}

// Who makes a topic at the moment when a node has just joined waits until that node is connected.
func TestTopicWaitsForConnections(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorldWith(t, 0, quickLeases)
		joined := time.Now()
		for _, name := range []string{"n1", "n2"} {
			n := w.prepare(name, uuid.New())
			n.reg.Reaches = func(replicate.NodeID) bool { return time.Since(joined) > quickLeases.LeaseTTL/2 }
			w.join(n)
		}
		n := w.nodes[0]
		w.until(n, "all nodes", func(s *meta.Snapshot) bool { return len(s.Nodes) == 2 })
		if _, err := n.CreateTopic(ctx(t), meta.Topic{Name: "t", Partitions: 1, Replicas: 2}); err != nil {
			t.Fatal(err)
		}
	})
}
