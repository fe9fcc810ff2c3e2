//go:build cluster

package cluster

import (
	"fmt"
	"time"

	"penstock/client"
)

const (
	restsTopic = "rests" // what a producer writes that rests meanwhile
	// leapTime is more than the age at which unused producers are forgotten (7 days, internal/node/fold): at most an
	// hour of it may count.
	leapTime = 8 * 24 * time.Hour
	// maxLeaps is how often a clock may leap, there and back, before a producer that rests may be forgotten.
	maxLeaps = 7 * 24 / 2
)

// writers are native producers while clocks are set: one with a name that writes numbered messages all the time, and
// one that rests while a clock leaps and others open producers, which is when producers are forgotten.
type writers struct {
	*natives
	clocks *clocks
	rests  *client.Producer
	stored [nativePartitions]int64 // messages of the one that rests
	leaps  int
}

func (c *clocks) startWriters() *writers {
	c.t.Helper()
	for _, topic := range []string{numbersTopic, restsTopic} {
		c.try(c.c.CreateTopic(c.within(startTimeout), topic))
		// Two clocks that are ahead make messages look old: docs/contribute/decisions.md, "The wall clock is read once".
		c.configure(topic, map[string]any{"retention_age_ms": -1})
	}
	c.healthy()
	w := &writers{natives: &natives{scenario: c.scenario, c: c.dialNative()}, clocks: c}
	w.numbers = w.startNumbers()
	w.rests = w.open("rests")
	w.write()
	return w
}

// open opens a producer of restsTopic in all partitions.
func (w *writers) open(name string) *client.Producer {
	w.t.Helper()
	p, err := w.c.Producer(w.within(nativePatience), restsTopic, client.ProducerOptions{
		Name: name, StopAtFailure: true, DeliveryTimeout: nativePatience,
		Partition: func(m *client.Message, count int) int { return int(m.Body[0]-'0') % count },
	})
	w.try(err)
	return p
}

// write stores the next message of the one that rests in each partition: as its number says, so each once, in order.
func (w *writers) write() {
	w.t.Helper()
	for p := range w.stored {
		body := numberOf(p, w.stored[p])
		id, err := w.rests.ProduceSync(w.within(nativePatience), &client.Message{Body: body})
		if err != nil || int(id.Partition()) != p || int64(id.MsgID()) != w.stored[p] {
			w.t.Fatalf("message %s is stored as %v: %v", body, id, err)
		}
		w.stored[p]++
	}
}

// leap kills each node, the leader of a partition last, and starts it with a clock that is ahead by leapTime more than
// any was before; a process keeps the time at which it began, and one whose clock differs from those of the others
// would not lead. Once the leader leads again, another producer is opened in all partitions. Then the clocks are right
// again. The producer that rested goes on at both times, and so does the next program with its name.
func (w *writers) leap(round int) {
	w.t.Helper()
	partition := uint32(round % nativePartitions)
	w.try(w.scenario.c.Settled(w.within(nativePatience)))
	leader, err := w.scenario.c.Leader(w.within(startTimeout), restsTopic, partition)
	w.try(err)
	if w.leaps++; w.leaps > maxLeaps {
		w.t.Fatalf("after %d leaps a producer that rests may be forgotten: this proves nothing", w.leaps)
	}
	for _, ahead := range []time.Duration{time.Duration(w.leaps) * leapTime, 0} {
		for _, n := range append(w.others(leader), w.place(leader)) {
			node := w.scenario.c.Nodes[n]
			w.try(w.clocks.write(node, ahead))
			w.try(node.Kill())
			w.numbers.more(50)
			w.try(node.Restart(w.within(startTimeout)))
			w.try(w.scenario.c.Healthy(w.within(nativePatience)))
		}
		w.try(w.scenario.c.Settled(w.within(nativePatience)))
		if now, err := w.scenario.c.Leader(w.within(startTimeout), restsTopic, partition); err != nil || now != leader {
			w.t.Fatalf("partition %d of %s is led by %v, and not by %s again: %v", partition, restsTopic, now, leader.Name, err)
		}
		w.numbers.more(50)
		passer := w.open(fmt.Sprintf("passes-%d-%v", round, ahead))
		w.try(passer.Close(w.within(nativePatience)))
		w.write()
	}
	w.try(w.rests.Close(w.within(nativePatience)))
	w.rests = w.open("rests")
	for p, n := range w.stored {
		if last, ok := w.rests.LastSequence(p); !ok || int64(last) != n-1 {
			w.t.Errorf("after %d leaps, the next program with the name is told that its last message in partition %d was %d, "+
				"%v; it was %d", w.leaps, p, last, ok, n-1)
		}
	}
	w.write()
}

// end checks that each message of both producers is stored once, in order.
func (w *writers) end() {
	w.t.Helper()
	w.try(w.rests.Close(w.within(nativePatience)))
	written := w.numbers.end()
	for p, n := range written {
		w.checkPartition(numbersTopic, p, n)
		w.checkPartition(restsTopic, p, w.stored[p])
	}
	w.t.Logf("%d leaders with clocks ahead by %v more each time: %v numbered messages, and %v of the producer that "+
		"rests, each stored once, in order", w.leaps, leapTime, written, w.stored)
}
