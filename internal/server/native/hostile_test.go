package native

import (
	"encoding/binary"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"

	"penstock/batch"
	"penstock/internal/server/native/wire"
	"penstock/netproto"
)

// noticed is the longest that a client may wait for an answer while another one misbehaves: what a loaded machine
// needs.
const noticed = 5 * time.Second

// bystander publishes one message after the other, and reads them, beside a client that misbehaves.
type bystander struct {
	*client
	topic   uuid.UUID
	p       wire.Producer
	next    uint32
	stored  []uint64 // ids
	slowest time.Duration
	world   *world
}

// other returns one more client.
func (b *bystander) other() *client {
	c := b.world.dial()
	c.t = b.t
	return c
}

// deaf returns a client that reads nothing until release is closed.
func (b *bystander) deaf() (c *client, release chan struct{}) {
	b.t.Helper()
	c = &client{t: b.t, frames: make(chan frame, 1<<16), gate: make(chan struct{}), ended: make(chan error, 1)}
	made, err := b.world.try(func(o *netproto.Options) { o.Handler, o.SilenceTimeout = c, time.Hour })
	if err != nil {
		b.t.Fatal(err)
	}
	c.c = made.c
	return c, c.gate
}

// check reads everything: so many messages, of which those of the bystander are where it was told, in their order.
func (b *bystander) check(total int) {
	b.t.Helper()
	if n := b.world.e.Stats("orders", "")[0].MessageCount; n != uint64(total) {
		b.t.Errorf("%d messages are stored, want %d", n, total)
	}
	r := b.other().read(&wire.Read{Topic: b.topic, From: wire.FromOldest, Credit: 1 << 30})
	var all []string
	for len(all) < total {
		all = append(all, r.records()...)
	}
	for i, id := range b.stored {
		if id >= uint64(len(all)) || all[id] != fmt.Sprint(i) {
			b.t.Fatalf("message %d of the bystander is not where it was stored, at %d of %d", i, id, len(all))
		}
	}
}

func (b *bystander) publishOne() {
	b.t.Helper()
	began := time.Now()
	m := b.produced(b.publish(b.topic, 0, seal(b.t, b.p, b.next, 1)))
	b.slowest = max(b.slowest, time.Since(began))
	if m.Duplicate {
		b.t.Errorf("message %d of the bystander was stored before", b.next)
	}
	b.next++
	b.stored = append(b.stored, m.First)
}

// lying returns a batch in which change has been made to the header, with checksums that are right.
func lying(t testing.TB, good []byte, change func(h []byte)) []byte {
	t.Helper()
	b := slices.Clone(good)
	change(b)
	binary.LittleEndian.PutUint32(b[84:], batch.Checksum(b[:84]))
	return b
}

// Whatever a client sends: it is refused by name or its connection ends, what it may store is stored once, and a client
// beside it waits no longer, loses nothing and reads only what was stored.
func TestNobodyNotices(t *testing.T) {
	const (
		gap, old, diverged = netproto.StatusGap, netproto.StatusOldEpoch, netproto.StatusDiverged
		rejected           = netproto.StatusRejected
	)
	for name, misbehave := range map[string]func(c *client, b *bystander) (stored int){
		"sequences of the past and the future": func(c *client, b *bystander) int {
			p := c.openProducer(b.topic, 0, "")
			for i := range uint32(10) {
				c.produced(c.publish(b.topic, 0, seal(c.t, p, 2*i, 2)))
			}
			for _, base := range []uint32{0, 2, 19, 21, 1000, 1 << 31, 1<<32 - 1} {
				c.refusal(c.publish(b.topic, 0, seal(c.t, p, base, 2)), wire.TypeProduced, gap)
			}
			if m := c.produced(c.publish(b.topic, 0, seal(c.t, p, 4, 2))); !m.Duplicate { // the oldest that is remembered
				c.t.Errorf("%+v", m)
			}
			return 20
		},
		"the producer of another client": func(c *client, b *bystander) int {
			for _, x := range []struct {
				epoch, base uint32
				want        netproto.Status
			}{
				{b.p.Epoch - 1, b.next, old},
				{b.p.Epoch + 1, b.next, diverged},
				{b.p.Epoch, b.next + 1, gap},
				{b.p.Epoch, b.next + 1<<31, gap},
			} {
				as := wire.Producer{ID: b.p.ID, Epoch: x.epoch}
				c.refusal(c.publish(b.topic, 0, seal(c.t, as, x.base, 1)), wire.TypeProduced, x.want)
			}
			as := wire.Producer{ID: b.p.ID + 1, Epoch: 1}
			c.refusal(c.publish(b.topic, 0, seal(c.t, as, 0, 1)), wire.TypeProduced, diverged)
			return 0
		},
		"two programs of one name": func(c *client, b *bystander) int {
			p := c.openProducer(b.topic, 0, "both")
			sent := seal(c.t, p, 0, 3)
			c.produced(c.publish(b.topic, 0, sent))
			younger := b.other()
			q := younger.openProducer(b.topic, 0, "both")
			younger.produced(younger.publish(b.topic, 0, seal(c.t, q, 3, 1)))
			c.refusal(c.publish(b.topic, 0, sent), wire.TypeProduced, old) // the older is told, also for what is stored
			c.refusal(c.publish(b.topic, 0, seal(c.t, p, 4, 1)), wire.TypeProduced, old)
			younger.produced(younger.publish(b.topic, 0, seal(c.t, q, 4, 1)))
			return 5
		},
		"batches that lie": func(c *client, b *bystander) int {
			p := c.openProducer(b.topic, 0, "")
			good := seal(c.t, p, 0, 3)
			u32 := binary.LittleEndian.PutUint32
			for what, change := range map[string]func(h []byte){
				"a later version":            func(h []byte) { h[4] = 2 },
				"an unknown codec":           func(h []byte) { h[5] = 9 },
				"S2 that is none":            func(h []byte) { h[5] = 1 },
				"zstd that is none":          func(h []byte) { h[5] = 2 },
				"a control batch":            func(h []byte) { h[6] |= 1; u32(h[12:], 0) },
				"a control batch with count": func(h []byte) { h[6] |= 1 },
				"an unknown flag":            func(h []byte) { h[7] = 0x80 },
				"headers that are not there": func(h []byte) { h[6] |= 2 },
				"delays that are not there":  func(h []byte) { h[6] |= 4 },
				"more bytes":                 func(h []byte) { u32(h[8:], uint32(len(h))) },
				"fewer bytes":                func(h []byte) { u32(h[8:], 1) },
				"no messages":                func(h []byte) { u32(h[12:], 0) },
				"one message more":           func(h []byte) { u32(h[12:], 4) },
				"one message fewer":          func(h []byte) { u32(h[12:], 2) },
				"4 billion messages":         func(h []byte) { u32(h[12:], 1<<32-1) },
				"a false body checksum":      func(h []byte) { u32(h[40:], 1) },
				"a reserved field":           func(h []byte) { u32(h[44:], 1) },
			} {
				id := c.publish(b.topic, 0, lying(c.t, good, change))
				f := c.receive()
				if f.Request != id || f.Status != rejected {
					c.t.Errorf("a batch with %s: %v", what, f.Status)
				}
			}
			torn := slices.Clone(good)
			torn[20] ^= 1 // without a new checksum
			c.refusal(c.publish(b.topic, 0, torn), wire.TypeProduced, rejected)
			// What only leaders write is not read from clients.
			first := c.produced(c.publish(b.topic, 0, lying(c.t, good, func(h []byte) {
				for at := 48; at < 84; at++ { // but the first id: those that there are end at 2^48
					h[at] = 0x7f
				}
				binary.LittleEndian.PutUint64(h[56:], 1<<40)
			})))
			if again := c.produced(c.publish(b.topic, 0, good)); !again.Duplicate || again.First != first.First {
				c.t.Errorf("stored as %+v, and again as %+v", first, again)
			}
			return 3
		},
		"a client of the future": func(c *client, b *bystander) int {
			f := &netproto.Frame{
				Type: wire.TypeOpenProducer, Request: 1000,
				Head: append(wire.Append(nil, &wire.OpenProducer{Topic: b.topic}),
					string(make([]byte, 8))+"fields of a later version"...),
			}
			if err := c.c.Send(c.t.Context(), f); err != nil {
				c.t.Fatal(err)
			}
			if f := c.answer(); f.Request != 1000 || f.Status != netproto.StatusOK {
				c.t.Errorf("fields behind the known ones: %+v", f.Header)
			}
			id := c.send(250, &wire.Auth{})
			c.refusal(id, netproto.TypeError, rejected)
			c.openProducer(b.topic, 0, "") // and the connection goes on
			return 0
		},
		"a client that never reads": func(c *client, b *bystander) int {
			deaf, release := b.deaf()
			defer close(release)
			p := c.openProducer(b.topic, 0, "")
			stored, body := 0, seal(c.t, p, 0, 1)
			c.produced(c.publish(b.topic, 0, body))
			stored++
			for range 20_000 { // each of them has an answer: it is a repeat
				f := &netproto.Frame{
					Type: wire.TypeProduce, Flags: netproto.FlagSelfChecked, Request: 7,
					Head: wire.Append(nil, &wire.Produce{Topic: b.topic}), Body: [][]byte{body},
				}
				if deaf.c.TrySend(f) != nil {
					break
				}
			}
			return stored
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := open(t, nil)
			b := &bystander{client: w.dial()}
			b.t, b.world = t, w
			b.topic = b.ask(true, "orders").Topics[0].ID
			b.p = b.openProducer(b.topic, 0, "bystander")
			b.publishOne()
			c := w.dial()
			c.t = t
			var over atomic.Bool
			ended := make(chan struct{})
			// The bystander's next number is known to the other one, who tries to use it: it stands still meanwhile.
			if name != "the producer of another client" {
				go func() {
					defer close(ended)
					for !over.Load() || len(b.stored) < 10 {
						b.publishOne()
					}
				}()
			} else {
				close(ended)
			}
			stored := misbehave(c, b)
			over.Store(true)
			<-ended
			b.publishOne()
			if b.slowest > noticed {
				t.Errorf("the bystander waited for %v", b.slowest)
			}
			b.check(stored + len(b.stored))
		})
	}
}
