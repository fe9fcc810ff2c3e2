//go:build cluster

package cluster

import (
	"context"
	"errors"
	"strconv"
	"sync/atomic"
	"time"

	"penstock/client"
	"penstock/tests/cluster/harness"
)

const lonesTopic = "lones" // what callers of ProduceSync write

// lone are native callers of ProduceSync, one for each partition of a topic, each with one message on its way: the
// caller does the work of the producer itself (client/lone.go). Message k of a partition has the body k.
type lone struct {
	*natives
	stop   context.CancelFunc
	ended  [nativePartitions]chan struct{}
	stored [nativePartitions]atomic.Int64
	gap    [nativePartitions]atomic.Int64 // ns, the longest that a call took since takeGaps
	begun  [nativePartitions]atomic.Int64 // when the call that waits began, ns since start
	start  time.Time
}

// startLone begins. Nobody consumes the topic, so everything stays.
func (h *hang) startLone() *lone {
	h.t.Helper()
	h.try(h.c.CreateTopic(h.within(startTimeout), lonesTopic))
	h.configure(lonesTopic, map[string]any{"partitions": nativePartitions})
	for _, n := range h.c.Nodes { // a node that has not heard of the new partitions refuses producers of them
		for {
			var s struct{ Partitions int }
			h.try(harness.Get(h.within(startTimeout), n.HTTP, "/topic/settings?topic="+lonesTopic, &s))
			if s.Partitions == nativePartitions {
				break
			}
			h.pass(20 * time.Millisecond)
		}
	}
	h.healthy()
	ctx, stop := context.WithCancel(context.Background())
	l := &lone{natives: &natives{scenario: h.scenario, c: h.dialNative()}, stop: stop, start: time.Now()}
	h.t.Cleanup(stop)
	for p := range l.ended {
		producer, err := l.c.Producer(h.within(startTimeout), lonesTopic, client.ProducerOptions{
			Name: "lone" + strconv.Itoa(p), StopAtFailure: true, DeliveryTimeout: nativePatience,
			Partition: func(*client.Message, int) int { return p },
		})
		h.try(err)
		l.ended[p] = make(chan struct{})
		go l.write(ctx, p, producer)
	}
	return l
}

func (l *lone) write(ctx context.Context, p int, producer *client.Producer) {
	defer close(l.ended[p])
	for ctx.Err() == nil {
		k, began := l.stored[p].Load(), time.Since(l.start)
		l.begun[p].Store(int64(began))
		id, err := producer.ProduceSync(context.Background(), &client.Message{Body: numberOf(p, k)})
		if err != nil || int(id.Partition()) != p || int64(id.MsgID()) != k {
			if !errors.Is(err, client.ErrClosed) {
				l.t.Errorf("message %d of partition %d is stored as %v: %v", k, p, id, err)
			}
			return
		}
		took := time.Since(l.start) - began
		l.gap[p].Store(max(l.gap[p].Load(), int64(took)))
		l.stored[p].Add(1)
	}
	_ = producer.Close(context.Background())
}

// takeGaps returns the longest calls since the last time, by partition, and begins anew.
func (l *lone) takeGaps() (gaps [nativePartitions]time.Duration) {
	for p := range gaps {
		waits := time.Since(l.start) - time.Duration(l.begun[p].Load())
		gaps[p] = max(time.Duration(l.gap[p].Swap(0)), waits).Round(time.Millisecond)
	}
	return gaps
}

// leaders are the nodes that lead the partitions.
func (l *lone) leaders() (names [nativePartitions]string) {
	l.t.Helper()
	for p := range names {
		n, err := l.scenario.c.Leader(l.within(startTimeout), lonesTopic, uint32(p))
		l.try(err)
		names[p] = n.Name
	}
	return names
}

// end checks that each message is stored once, in order.
func (l *lone) end() {
	l.t.Helper()
	l.stop()
	for p := range l.ended {
		<-l.ended[p]
		l.checkPartition(lonesTopic, p, l.stored[p].Load())
		l.beside += uint64(l.stored[p].Load())
	}
	l.t.Logf("callers of ProduceSync stored %d, %d and %d messages, each once, in order",
		l.stored[0].Load(), l.stored[1].Load(), l.stored[2].Load())
}
