package cluster

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"penstock/client"
)

const (
	eatBatch = 64 // deliveries that a consumer handles at a time
	eatEach  = 5  // one delivery in so many gets a FinishThrough of its own
	syncEach = 4  // batches between two Syncs
)

// eater is a native consumer of the numbers: it must get each at least once, and none again after a Sync that confirmed
// it. One finishes every delivery for itself, another one finishes many at once.
type eater struct {
	n        *natives
	channel  string
	through  bool
	consumer *client.Consumer
	ended    chan struct{}

	seen  [nativePartitions]atomic.Int64 // different messages, by partition
	mu    sync.Mutex                     // guards the rest
	times map[client.ID]int              // deliveries of each message
	// done are those finished since the last Sync, as the consumer was told one by one; kept are those of Syncs that
	// confirmed them.
	done, kept                 map[client.ID]bool
	deliveries, again          int
	confirmed, unsure, tooLate int // Syncs by their result
}

// eat makes a channel of the numbers and consumes it.
func (n *natives) eat(channel string, through bool) *eater {
	n.t.Helper()
	c, err := n.c.Consumer(n.within(startTimeout), numbersTopic, channel, client.ConsumerOptions{
		From: client.FromOldest(), MaxInFlight: 4 * eatBatch,
	})
	n.try(err)
	e := &eater{
		n: n, channel: channel, through: through, consumer: c, ended: make(chan struct{}),
		times: map[client.ID]int{}, done: map[client.ID]bool{}, kept: map[client.ID]bool{},
	}
	ctx, stop := context.WithCancel(context.Background())
	n.t.Cleanup(func() { stop(); <-e.ended })
	go e.run(ctx)
	return e
}

func (e *eater) run(ctx context.Context) {
	defer close(e.ended)
	for batches := 1; ; batches++ {
		all, err := e.consumer.Batch(ctx, eatBatch)
		if errors.Is(err, client.ErrClosed) || ctx.Err() != nil {
			return
		}
		if err != nil {
			e.n.t.Errorf("channel %s: %v", e.channel, err)
			return
		}
		e.handle(all)
		if batches%syncEach == 0 {
			e.sync(ctx)
		}
	}
}

// handle notes deliveries and finishes them. Only what a call for the delivery itself has finished counts as finished:
// FinishThrough leaves out, without an error, what is not in flight any more.
func (e *eater) handle(all []client.Delivery) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for i := range all {
		d := &all[i]
		p := int(d.ID.Partition())
		if want := numberOf(p, int64(d.ID.MsgID())); !bytes.Equal(d.Body, want) {
			e.n.t.Errorf("channel %s: message %v is %q, want %q", e.channel, d.ID, d.Body, want)
		}
		if e.kept[d.ID] {
			e.n.t.Errorf("channel %s: message %v comes again, attempt %d, after a Sync that confirmed it",
				e.channel, d.ID, d.Attempts)
		}
		if e.deliveries++; e.times[d.ID] > 0 {
			e.again++
		} else {
			e.seen[p].Add(1)
		}
		e.times[d.ID]++
	}
	for i := range all {
		d := &all[i]
		var err error
		switch {
		case !e.through:
			err = d.Finish()
		case i%eatEach == 0 || i == len(all)-1:
			err = d.FinishThrough()
		default:
			continue
		}
		if err == nil {
			e.done[d.ID] = true
		} else if !errors.Is(err, client.ErrNotInFlight) {
			e.n.t.Errorf("channel %s: finishing %v: %v", e.channel, d.ID, err)
		}
	}
}

func (e *eater) sync(ctx context.Context) {
	err := e.consumer.Sync(ctx)
	e.mu.Lock()
	defer e.mu.Unlock()
	switch {
	case err == nil:
		e.confirmed++
		for id := range e.done {
			e.kept[id] = true
		}
	case errors.Is(err, client.ErrUnknown):
		e.unsure++
	case errors.Is(err, client.ErrNotInFlight):
		e.tooLate++
	case ctx.Err() == nil && !errors.Is(err, client.ErrClosed):
		e.n.t.Errorf("channel %s: Sync: %v", e.channel, err)
	}
	clear(e.done)
}

// end waits until every message has come, and checks what came how often.
func (e *eater) end(count [nativePartitions]int64) {
	e.n.t.Helper()
	for p := range count {
		e.n.await(fmt.Sprintf("messages of partition %d on channel %s", p, e.channel), count[p]-e.seen[p].Load(),
			e.seen[p].Load)
	}
	if err := e.consumer.Close(e.n.within(nativePatience)); err != nil && !errors.Is(err, client.ErrUnknown) &&
		!errors.Is(err, client.ErrNotInFlight) {
		e.n.t.Errorf("channel %s: Close: %v", e.channel, err)
	}
	<-e.ended
	e.mu.Lock()
	defer e.mu.Unlock()
	most := 0
	for _, n := range e.times {
		most = max(most, n)
	}
	for p := range count {
		if got := e.seen[p].Load(); got != count[p] {
			e.n.t.Errorf("channel %s: %d messages of partition %d came, %d are stored", e.channel, got, p, count[p])
		}
	}
	if len(e.kept) == 0 {
		e.n.t.Errorf("channel %s: no Sync has confirmed anything: this tests little", e.channel)
	}
	e.n.t.Logf("channel %s: %d deliveries of %d messages, %d again, one message %d times at most; %d Syncs have "+
		"confirmed %d messages, %d were unsure, %d too late", e.channel, e.deliveries, len(e.times), e.again, most,
		e.confirmed, len(e.kept), e.unsure, e.tooLate)
}
