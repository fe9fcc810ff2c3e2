package channel

import (
	"testing"
	"time"

	"penstock/engine/base"
	"penstock/engine/core"
	"penstock/segment"
	"penstock/segment/aio/faultaio"
)

// A message that retention has carried elsewhere, after the machine assigned it and before its old place was read,
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
	k, err := c.Attach(base.ConsumerOptions{}, discard{}, true)
	if err != nil {
		t.Fatal(err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	step := func(ev core.Event) *core.Result {
		c.ev = ev
		return c.step()
	}
	step(core.Event{Kind: core.EvDeferredPublished, Deferred: []core.DeferredMessage{{ID: id, DueMs: 1, At: old}}})
	step(core.Event{Kind: core.EvReady, Client: k.id, Count: 1})
	step(core.Event{Kind: core.EvTick})
	if res := step(core.Event{Kind: core.EvRedeliver}); res.Decision != core.Deliver || res.At != old {
		t.Fatalf("the message that is due is not assigned: %+v", res)
	}
	c.Post(&core.Post{Event: core.Event{
		Kind: core.EvCarried, Deferred: []core.DeferredMessage{{ID: id, At: place}},
	}})
	c.fetch()
	if n := c.m.ClientInFlight(k.id); n != 0 {
		t.Fatalf("%d messages are in flight to a consumer that got none", n)
	}
	c.applyPostsLocked()
	res := step(core.Event{Kind: core.EvRedeliver})
	for end := time.Now().Add(10 * time.Second); res.Decision != core.Deliver && time.Now().Before(end); {
		<-time.After(time.Millisecond) // as long as it pauses
		step(core.Event{Kind: core.EvTick})
		res = step(core.Event{Kind: core.EvRedeliver})
	}
	if res.Decision != core.Deliver || res.At != place || res.Attempts != 1 {
		t.Errorf("after the posts: %+v, wanted a first delivery from %d", res, place)
	}
}
