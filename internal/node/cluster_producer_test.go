package node_test

import (
	"errors"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"penstock/internal/node"
	"penstock/internal/node/errs"
	"penstock/netproto"
)

// awaitLevel waits until all running nodes know that the newest feature level is in force.
func (tc *testCluster) awaitLevel() {
	tc.t.Helper()
	tc.eventually("the feature level is in force", func() bool {
		return !slices.ContainsFunc(tc.running(), func(m *testNode) bool { return m.e.Level() < node.NewestLevel })
	})
}

// openProducer opens a producer of t/0 at its leader.
func (tc *testCluster) openProducer(name string) (p node.Producer, l *testNode) {
	tc.t.Helper()
	tc.awaitLevel()
	tc.eventually("the producer is opened", func() bool {
		var err error
		l = tc.leader("t", 0)
		p, err = tc.topic(l, "t").OpenProducer(ctxBg, 0, name)
		if err != nil && !duringFailover(err) {
			tc.t.Fatal(err)
		}
		return err == nil
	})
	return p, l
}

// produce stores a batch at the leader of t/0.
func (tc *testCluster) produce(batch []byte) (got produced) {
	tc.t.Helper()
	if got = tc.produceOnce(batch); got.err != nil {
		tc.t.Fatal(got.err)
	}
	return got
}

// A batch that is sent again before it is committed waits for the other replicas, as the first one does. A node that
// does not lead takes none.
func TestClusterRepeatWaitsForTheCommit(t *testing.T) {
	t.Parallel()
	tc := newTestCluster(t, 3)
	tc.create("t", 1)
	p, l := tc.openProducer("p")
	topic := tc.topic(l, "t")
	heal := tc.withoutAcks()
	answers := []<-chan produced{send(topic, sealed(t, p, "p", 0, 2))}
	tc.eventually("it is in the log", func() bool { return len(stored(t, l.e, "p")) == 2 })
	answers = append(answers, send(topic, sealed(t, p, "p", 0, 2)), send(topic, sealed(t, p, "p", 0, 2)))
	time.Sleep(20 * time.Millisecond) // an answer would be wrong at any time
	for i, a := range answers {
		select {
		case got := <-a:
			t.Fatalf("answer %d comes before the commit: %+v", i, got)
		default:
		}
	}
	heal()
	first := <-answers[0]
	for _, a := range answers[1:] {
		if got := <-a; first.err != nil || got.err != nil || got.first != first.first || !got.repeat {
			t.Errorf("%+v, the first one %+v", got, first)
		}
	}
	other := tc.topic(tc.others(l)[0], "t")
	if got := <-send(other, sealed(t, p, "p", 2, 1)); !errors.Is(got.err, errs.ErrNoLeader) {
		t.Errorf("a follower answers %+v", got)
	}
	if _, err := other.OpenProducer(t.Context(), 0, "p"); !errors.Is(err, errs.ErrNoLeader) {
		t.Errorf("a follower answers %v", err)
	}
	// A batch that is forwarded is judged by the leader, and the reason comes back.
	if id, err := publishSealed(t.Context(), other, sealed(t, p, "p", 0, 2)); id != first.first || err != nil {
		t.Errorf("forwarded again: %v, %v", id, err)
	}
	if _, err := publishSealed(t.Context(), other, sealed(t, p, "p", 9, 2)); !errors.Is(err, errs.ErrSequence) {
		t.Errorf("a gap, forwarded: %v", err)
	}
	checkOnce(t, l.e, "p", 2)
}

// Batches of many producers that wait for an earlier one to be committed are sealed together. Each stays a batch of its
// own, and they go to a follower in one frame.
func TestClusterBatchesLeaveTogether(t *testing.T) {
	t.Parallel()
	tc := newTestCluster(t, 3)
	tc.create("t", 1)
	p, l := tc.openProducer("p")
	topic := tc.topic(l, "t")
	heal := tc.withoutAcks()
	const count = 40
	var answers []<-chan produced
	for i := range uint32(count) {
		answers = append(answers, send(topic, sealed(t, p, "p", i, 1)))
		if i == 0 {
			tc.eventually("the first is in the log", func() bool { return len(stored(t, l.e, "p")) == 1 })
		}
	}
	heal()
	var frames atomic.Int32
	tc.network.rules(func(_, _ string, kind netproto.Type) int {
		if kind == netproto.TypePutMessagesOnReplica {
			frames.Add(1)
		}
		return 1
	})
	var first node.ID
	for i, a := range answers {
		got := <-a
		if i == 0 {
			first = got.first
		}
		if got.err != nil || got.first != first+node.ID(i) {
			t.Errorf("batch %d: %+v", i, got)
		}
	}
	// Two followers get a frame each. On a busy machine the exchange after the lost acks may send some again.
	if n := frames.Load(); n > count/2 {
		t.Errorf("%d batches went to two followers in %d frames", count, n)
	}
	checkOnce(t, l.e, "p", count)
}

// Batches that only the old leader has are cut from its log, and with them what it knew of the producer: when it leads
// again, it stores the batch that it had once, as every other node would.
//
// B79.
func TestClusterProducerAfterACut(t *testing.T) {
	t.Parallel()
	tc := newTestCluster(t, 3, impatient)
	tc.create("t", 1)
	p, l := tc.openProducer("p")
	first := tc.produce(sealed(t, p, "p", 0, 2))
	tc.network.isolate(l.name, true)
	lost := send(tc.topic(l, "t"), sealed(t, p, "p", 2, 2))
	tc.eventually("it is on the disk of the old leader", func() bool {
		holds := node.HoldsOf(l.e, "t", 0)
		return len(stored(t, l.e, "p")) == 4 && holds.Durable == holds.End
	})
	tc.kill(l)
	if got := <-lost; !duringFailover(got.err) {
		t.Fatalf("nobody else has it: %+v", got)
	}
	tc.network.isolate(l.name, false)
	next := tc.leader("t", 0)
	other := tc.produce(sealed(t, node.Producer{}, "n", 0, 1))
	tc.start(l)
	tc.awaitInSync("t")
	tc.awaitEqualCopies("t", 0)
	checkOnce(t, l.e, "p", 2)
	if next != l {
		tc.moveLeadership("t", 0, l)
	}
	if got := tc.produce(sealed(t, p, "p", 0, 2)); !got.repeat || got.first != first.first {
		t.Errorf("the first batch again: %+v, was %+v", got, first)
	}
	if got := tc.produce(sealed(t, p, "p", 2, 2)); got.repeat || got.first <= other.first {
		t.Errorf("the batch that was cut: %+v", got)
	}
	tc.awaitEqualCopies("t", 0)
	checkOnce(t, l.e, "p", 4)
}

// produceOnce sends a batch to the leader of t/0 until it is stored or refused.
func (tc *testCluster) produceOnce(batch []byte) (got produced) {
	tc.t.Helper()
	tc.eventually("the batch is judged", func() bool {
		got = <-send(tc.topic(tc.leader("t", 0), "t"), batch)
		return !duringFailover(got.err)
	})
	return got
}

func (l *numberedLog) count() (n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, a := range l.acked {
		n += len(a)
	}
	return n
}
