package cluster

import (
	"slices"
	"testing"

	"github.com/google/uuid"

	"penstock/internal/meta"
	"penstock/replicate"
	"penstock/segment"
)

// Which partitions' rows are older than the logs of a node.
func TestOlder(t *testing.T) {
	w := newWorld(t, 3)
	topic := w.create(w.nodes[0], meta.Topic{Name: "x", Partitions: 3, Replicas: 2})
	st := w.nodes[0].s.cur.Load()
	self := st.parts.Get(part(topic, 0)).State.Replicas[1]
	var mine, others []meta.PartitionID
	for n := range 3 {
		if id := part(topic, n); slices.Contains(st.parts.Get(id).State.Replicas, self) {
			mine = append(mine, id)
		} else {
			others = append(others, id)
		}
	}
	if len(others) == 0 {
		t.Fatal("the node has a copy of each partition")
	}
	at := func(n uint64, ids ...meta.PartitionID) map[meta.PartitionID]segment.Epoch {
		m := map[meta.PartitionID]segment.Epoch{}
		for _, id := range ids {
			m[id] = segment.Epoch(n)
		}
		return m
	}
	gone := meta.PartitionID{Topic: uuid.New()}
	for _, c := range []struct {
		name   string
		behind bool
		epochs map[meta.PartitionID]segment.Epoch
		want   []meta.PartitionID
	}{
		{"as it should be", false, at(1, mine...), nil},
		{"nothing in the logs", false, nil, nil},
		{"a newer epoch", false, at(2, mine[0]), mine[:1]},
		{"a newer epoch of a copy that the row does not know", false, at(2, others[0]), others[:1]},
		{"a partition that there is not", true, at(9, gone), mine},
		{"an older store", true, at(1, mine...), mine},
		{"an older store, and nothing in the logs", true, nil, mine},
		{"an older store, and a copy that its row does not know", true, at(1, others[0]), append(mine, others[0])},
	} {
		want := slices.SortedFunc(slices.Values(c.want), comparePartitions)
		got := slices.SortedFunc(slices.Values(st.older(self, c.behind, c.epochs)), comparePartitions)
		if !slices.Equal(got, want) {
			t.Errorf("%s: %v, want %v", c.name, got, want)
		}
	}
}

// The row of such a partition: a new epoch above all that is known, all replicas in the ISR with their present disks,
// and the mark that makes a leader compare. A log that the row does not count on is one of the replicas.
func TestDistrusted(t *testing.T) {
	disk := func(n byte) uuid.UUID { return uuid.UUID{n} }
	nodes := map[replicate.NodeID]*meta.Node{1: {ID: 1, Store: disk(1)}, 2: {ID: 2, Store: disk(9)}}
	p := &meta.Partition{State: replicate.State{
		Epoch: 5, Version: 7, Leader: 1, Replicas: []replicate.NodeID{1, 2, 3}, MinISR: 2,
		ISR: []replicate.Member{{Node: 1, Store: disk(1)}},
	}}
	all := []replicate.Member{{Node: 1, Store: disk(1)}, {Node: 2, Store: disk(9)}} // 3 was removed
	for _, c := range []struct {
		name     string
		m        replicate.Member
		epoch    segment.Epoch
		want     segment.Epoch
		replicas []replicate.NodeID
		isr      []replicate.Member
	}{
		{"a replica", all[1], 4, 5 + restoredEpochs, []replicate.NodeID{1, 2, 3}, all},
		{"a newer log", all[1], 8, 8 + restoredEpochs, []replicate.NodeID{1, 2, 3}, all},
		{
			"its disk is new",
			replicate.Member{Node: 2, Store: disk(4)},
			0, 5 + restoredEpochs,
			[]replicate.NodeID{1, 2, 3},
			[]replicate.Member{all[0], {Node: 2, Store: disk(4)}},
		},
		{
			"no replica, with a log",
			replicate.Member{Node: 4, Store: disk(4)},
			4, 5 + restoredEpochs,
			[]replicate.NodeID{1, 2, 3, 4},
			append(slices.Clone(all), replicate.Member{Node: 4, Store: disk(4)}),
		},
	} {
		got := distrusted(p, c.m, c.epoch, nodes).State
		if got.Epoch != c.want || got.Restored != c.want || got.Version != 8 || got.MinISR != 2 || got.Leader != 1 ||
			!slices.Equal(got.Replicas, c.replicas) || !slices.Equal(got.ISR, c.isr) {
			t.Errorf("%s: %+v", c.name, got)
		}
	}
	if p.State.Epoch != 5 || len(p.State.Replicas) != 3 || len(p.State.ISR) != 1 {
		t.Errorf("the row that was given has changed: %+v", p.State)
	}
}

// A node that has seen newer metadata, or whose log has a newer epoch, has the rows of its partitions rewritten before
// it is live, each once. Otherwise they stay.
func TestOlderMetadataAtJoin(t *testing.T) {
	for name, c := range map[string]struct {
		behind  bool
		past    bool
		epoch   segment.Epoch
		ofOther bool
		changes bool
	}{
		"nothing":                 {},
		"the revision that it is": {epoch: 1},
		"seen a newer one":        {behind: true, changes: true},
		"of another cluster":      {behind: true, ofOther: true},
		"an older life":           {past: true, changes: true},
		"a newer epoch":           {epoch: 3, changes: true},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, 2)
			topic := w.create(w.nodes[0], meta.Topic{Name: "x", Partitions: 2, Replicas: 2})
			id, n := part(topic, 0), w.nodes[1]
			w.kill(n)
			next := w.prepare("n2", n.reg.Node.Store)
			snap := w.nodes[0].Snapshot()
			next.reg.Seen = meta.Seen{Cluster: snap.Cluster, Revision: snap.Revision}
			if c.behind {
				next.reg.Seen.Revision += 1000
			}
			if c.ofOther {
				next.reg.Seen.Cluster = uuid.New()
			}
			if c.past {
				next.reg.Life = func(*meta.Node) meta.Life { return meta.LifePast }
			}
			if c.epoch != 0 {
				next.reg.Epochs = map[meta.PartitionID]segment.Epoch{id: c.epoch}
			}
			var told []int
			next.reg.Older = func(count int) { told = append(told, count) }
			w.join(next)
			next.mu.Lock()
			first := next.changes[0].Snapshot.Partitions.Get(id).State
			next.mu.Unlock()
			if changed := first.Restored != 0; changed != c.changes || changed != (len(told) == 1) {
				t.Errorf("the row is %+v, and the engine was told %v", first, told)
			}
			if !c.changes {
				return
			}
			if first.Restored != 1+c.epoch-min(c.epoch, 1)+restoredEpochs || len(first.ISR) != 2 {
				t.Errorf("the row is %+v", first)
			}
		})
	}
}
