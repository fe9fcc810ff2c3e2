package channel

import (
	"testing"
	"time"

	"penstock/internal/node/delivery"
	"penstock/internal/node/fold"
	"penstock/internal/node/message"
	"penstock/segment"
	"penstock/tests/support/faultaio"
)

// A message that retention has carried elsewhere, after it got its turn and before its old place was read,
// comes as soon as the channel knows the new place. It does not stay in flight to a consumer that never got it.
//
// B43, B50.
func TestCarriedWhileFetched(t *testing.T) {
	c, topic := newTestChannel(t, 1)
	start := segment.State{End: 4096, SegmentBase: 4096, Segment: 1}
	log, err := segment.Open(faultaio.New(faultaio.Options{}), "carried", segment.Identity{Topic: topic.ID()}, start,
		segment.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { log.Close() })
	topic.parts[0].log = log // retention has removed what was below

	const id, old, place = segment.MsgID(0), segment.Offset(64), segment.Offset(8192)
	k, err := c.Attach(message.ConsumerOptions{}, discard{}, true)
	if err != nil {
		t.Fatal(err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	var step func(delivery.Event) *delivery.Result
	next := func() *delivery.Result { // as if nothing could be read at the reading cursor
		step(delivery.Event{Kind: delivery.EvStall})
		return step(delivery.Event{Kind: delivery.EvNext})
	}
	step = func(ev delivery.Event) *delivery.Result {
		c.ev = ev
		return c.step()
	}
	step(delivery.Event{
		Kind: delivery.EvDeferredPublished, Deferred: []fold.DeferredMessage{{ID: id, DueMs: 1, At: old}},
	})
	step(delivery.Event{Kind: delivery.EvReady, Client: k.id, Count: 1})
	step(delivery.Event{Kind: delivery.EvTick})
	if res := next(); res.Decision != delivery.Read || !res.Queued || res.At != old {
		t.Fatalf("the message that is due has no turn: %+v", res)
	}
	c.Post(&delivery.Post{Event: delivery.Event{
		Kind: delivery.EvCarried, Deferred: []fold.DeferredMessage{{ID: id, At: place}},
	}})
	c.fetch()
	if n := c.m.ClientInFlight(k.id); n != 0 {
		t.Fatalf("%d messages are in flight to a consumer that got none", n)
	}
	if res := next(); res.Decision == delivery.Read && res.Queued {
		t.Fatalf("it is tried again before the channel knows the new place: %+v", res)
	}
	c.applyPostsLocked()
	res := next()
	for end := time.Now().Add(10 * time.Second); res.Decision != delivery.Read && time.Now().Before(end); {
		<-time.After(time.Millisecond) // as long as it pauses
		step(delivery.Event{Kind: delivery.EvTick})
		res = next()
	}
	if res.Decision != delivery.Read || res.At != place {
		t.Errorf("after the posts: %+v, wanted to read it at %d", res, place)
	}
}
