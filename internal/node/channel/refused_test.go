package channel

import (
	"errors"
	"slices"
	"testing"
	"time"

	"penstock/batch"
	"penstock/internal/node/delivery"
	"penstock/internal/node/errs"
	"penstock/internal/node/fold"
	"penstock/internal/node/message"
	"penstock/segment"
)

// refuse makes the partition refuse control entries with err, or take them.
func (p *testPartition) refuse(c *Channel, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	p.refuses = err
}

// awaitBatch returns the batch of control entries that the channel handed over next.
func (p *testPartition) awaitBatch(t *testing.T, c *Channel) handedOver {
	t.Helper()
	select {
	case <-p.came:
	case <-time.After(patience):
		t.Fatal("no entries were handed over")
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return p.batches[len(p.batches)-1]
}

// A partition refuses confirmations because its segments cannot be written, some at once and some that wait in its
// inbox. When it takes entries again, they are written before those that were finished meanwhile, and a Sync succeeds.
func TestRefusedConfirmationsAreWrittenAgain(t *testing.T) {
	for _, waits := range []bool{false, true} {
		c, topic := newTestChannel(t, 1)
		p := topic.parts[0]
		k, err := c.Attach(message.ConsumerOptions{}, discard{}, true)
		if err == nil {
			err = k.Ready(2)
		}
		if err != nil {
			t.Fatal(err)
		}
		for id := range segment.MsgID(2) {
			c.mu.Lock()
			c.ev = delivery.Event{Kind: delivery.EvOffer, Msg: id}
			c.step()
			c.mu.Unlock()
		}
		if !waits {
			p.refuse(c, errs.ErrDisk)
		}
		if err := k.Finish(batch.MakeID(0, 0)); err != nil {
			t.Fatal(err)
		}
		c.mu.Lock()
		c.sendControls()
		c.mu.Unlock()
		if waits {
			inboxed := p.awaitBatch(t, c)
			p.refuse(c, errs.ErrDisk)
			inboxed.done(errs.ErrDisk)
		}
		if err := answered(t, askSync(k)); !errors.Is(err, errs.ErrDisk) {
			t.Fatalf("the entries were refused, and Sync says %v", err)
		}
		if err := k.Finish(batch.MakeID(0, 1)); err != nil {
			t.Fatal(err)
		}
		p.refuse(c, nil)
		var all chan error
		for id := range segment.MsgID(2) {
			b := p.awaitBatch(t, c)
			if r := b.controls[0].Ranges; len(b.controls) != 1 || !slices.Equal(r, []fold.IDRange{{From: id, To: id + 1}}) {
				t.Fatalf("batch %d confirms %v", id, r)
			}
			if id == 0 {
				all = askSync(k)
			}
			b.done(nil)
		}
		if err := answered(t, all); err != nil {
			t.Errorf("all is stored, and Sync says %v", err)
		}
	}
}
