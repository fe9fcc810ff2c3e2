package engine_test

import (
	"context"
	"testing"
	"time"

	"penstock/engine"
	"penstock/engine/meta"
	"penstock/replicate"
)

// strandedSoon lets a leader give up after three seconds; a follower that is not heard for two leaves the ISR.
func strandedSoon(o *engine.Options) {
	o.Cluster.Replication.StrandedNs, o.Cluster.Replication.LagMaxNs = 3e9, 2e9
}

// A leader reaches the store and none of its followers, which reach each other: its lease lives, so nobody else is
// elected, and it commits nothing. It gives the leadership to one of them, publishing goes on there, and nothing that
// was acknowledged is lost. In one direction or in both.
func TestClusterStrandedLeader(t *testing.T) {
	t.Parallel()
	for name, cut := range map[string]func(w *wires, node string, on bool){
		"both ways":       (*wires).isolate,
		"it is not heard": (*wires).silence,
		"it hears nothing": func(w *wires, node string, on bool) {
			w.isolate(node, on)
			w.silence(node, false)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			tr := newTrio(t, 3, impatient, strandedSoon)
			tr.create("t", 1)
			l := tr.leader("t", 0)
			rest := tr.others(l)
			h := newTold()
			stop := tr.loadAll(h, tr.nodes, "t", "1", func(error) bool { return true })
			defer stop()
			tr.goesOn(h, 20)
			cut(tr.wires, l.name, true)
			tr.eventually("another node leads", func() bool {
				return rest[0].row("t", 0).State.Leader != l.e.Node().ID
			})
			tr.goesOn(h, 20)
			tr.eventually("the new leader goes on without it", func() bool {
				return len(rest[0].row("t", 0).State.ISR) == 2
			})
			tr.goesOn(h, 20)
			cut(tr.wires, l.name, false)
			tr.whole("t")
			tr.goesOn(h, 20)
			stop()
			if n := l.e.Storage().Stranded; n != 1 {
				t.Errorf("it is counted %d times that the leader gave up", n)
			}
			tr.checkAll(h, "t", 1)
		})
	}
}

// A leader that no other could replace keeps what it leads: two replicas, both needed.
func TestClusterStrandedForNothing(t *testing.T) {
	t.Parallel()
	tr := newTrio(t, 2, impatient, strandedSoon)
	tr.create("t", 1)
	l := tr.leader("t", 0)
	h := newTold()
	if err := h.publish(context.Background(), tr.topic(l, "t"), "before"); err != nil {
		t.Fatal(err)
	}
	tr.wires.isolate(l.name, true)
	refused := 0
	tr.eventually("publishing is refused for a while", func() bool {
		if h.publish(context.Background(), tr.topic(l, "t"), "meanwhile") != nil {
			refused++
		}
		return refused > 10 // 4 s
	})
	if row := l.row("t", 0); row.State.Leader != l.e.Node().ID || row.State.Epoch != 1 || l.e.Storage().Stranded != 0 {
		t.Errorf("%+v, and it is counted %d times that the leader gave up", row.State, l.e.Storage().Stranded)
	}
	tr.wires.isolate(l.name, false)
	tr.eventually("publishing goes on", func() bool {
		return h.publish(context.Background(), tr.topic(l, "t"), "after") == nil
	})
}

// min_isr is the number of replicas, and two of them do not reach each other: the third reaches both and can lead, the
// one that should lead cannot. It gives the leadership away, and does not get it back for as long as nothing has
// changed: it is in the ISR all the time, and would commit nothing for minutes.
func TestClusterStrandedLeaderIsNotPreferred(t *testing.T) {
	t.Parallel()
	first := func(s *meta.Snapshot, id meta.PartitionID) replicate.NodeID {
		return s.Partitions[id].State.Replicas[0]
	}
	tr := newTrio(t, 3, impatient, strandedSoon, func(o *engine.Options) { o.Cluster.PreferredLeader = first })
	ctx := t.Context()
	if _, err := tr.nodes[0].store.CreateTopic(ctx, meta.Topic{
		Name: "t", Partitions: 1, Replicas: 3, MinISR: 3,
	}); err != nil {
		t.Fatal(err)
	}
	tr.whole("t")
	l := tr.leader("t", 0)
	preferred := func() bool { return tr.leader("t", 0).e.Node().ID == l.row("t", 0).State.Replicas[0] }
	tr.eventually("the first replica leads", preferred)
	l = tr.leader("t", 0)
	rest := tr.others(l)
	h := newTold()
	stop := tr.loadAll(h, tr.nodes, "t", "1", func(error) bool { return true })
	defer stop()
	tr.goesOn(h, 20)
	tr.wires.estrange(l.name, rest[0].name, true)
	tr.eventually("the node that reaches all leads", func() bool {
		return rest[1].row("t", 0).State.Leader == rest[1].e.Node().ID
	})
	tr.goesOn(h, 20)
	epoch := rest[1].row("t", 0).State.Epoch
	for began := time.Now(); time.Since(began) < 3*engine.BalanceInterval; {
		tr.goesOn(h, 5)
	}
	if row := rest[1].row("t", 0); row.State.Epoch != epoch || len(row.State.ISR) != 3 {
		t.Errorf("%+v, and epoch %d was led by the node that reaches all", row.State, epoch)
	}
	tr.wires.estrange(l.name, rest[0].name, false)
	tr.goesOn(h, 20)
	stop()
	tr.kill(l)
	tr.start(l)
	tr.eventually("the first replica leads again, as another process", preferred)
	tr.checkAll(h, "t", 1)
}
