package native

import (
	"encoding/binary"
	"fmt"
	"strings"
	"testing"

	"github.com/google/uuid"

	"penstock/batch"
	"penstock/internal/server/native/wire"
	"penstock/netproto"
)

// seal makes a batch of count messages "N", which are the next of the producer.
func seal(t testing.TB, p wire.Producer, base, count uint32) []byte {
	t.Helper()
	b := batch.Builder{ProducerID: p.ID, ProducerEpoch: p.Epoch, BaseSequence: base}
	for i := range count {
		if err := b.Add(&batch.Record{Body: fmt.Append(nil, base+i)}); err != nil {
			t.Fatal(err)
		}
	}
	sealed, err := b.Seal(1)
	if err != nil {
		t.Fatal(err)
	}
	return sealed
}

// publish sends a batch and returns the request's id.
func (c *client) publish(topic uuid.UUID, partition uint32, sealed []byte) uint64 {
	c.t.Helper()
	c.next++
	f := &netproto.Frame{
		Type: wire.TypeProduce, Flags: netproto.FlagSelfChecked, Request: c.next,
		Head: wire.Append(nil, &wire.Produce{Topic: topic, Partition: partition}), Body: [][]byte{sealed},
	}
	if err := c.c.Send(c.t.Context(), f); err != nil {
		c.t.Fatal(err)
	}
	return c.next
}

// produced receives the answer to a batch that was stored.
func (c *client) produced(request uint64) wire.Produced {
	c.t.Helper()
	f := c.answer()
	var m wire.Produced
	if f.Type != wire.TypeProduced || f.Request != request || f.Status != netproto.StatusOK {
		c.t.Fatalf("%v %v for request %d, want a Produced for %d: %q", f.Type, f.Status, f.Request, request, f.payload)
	}
	if err := wire.Decode(f.payload, &m); err != nil {
		c.t.Fatal(err)
	}
	return m
}

func (c *client) openProducer(topic uuid.UUID, partition uint32, name string) wire.Producer {
	c.t.Helper()
	id := c.send(wire.TypeOpenProducer, &wire.OpenProducer{Topic: topic, Partition: partition, Name: name})
	f := c.answer()
	var m wire.Producer
	if f.Type != wire.TypeProducer || f.Request != id || f.Status != netproto.StatusOK {
		c.t.Fatalf("%v %v for request %d: %q", f.Type, f.Status, f.Request, f.payload)
	}
	if err := wire.Decode(f.payload, &m); err != nil {
		c.t.Fatal(err)
	}
	return m
}

// Batches are stored once and in order, whatever is sent twice, and a newer program with the same name fences the
// older.
func TestProduce(t *testing.T) {
	w := open(t, nil)
	c := w.dial()
	topic := c.ask(true, "orders").Topics[0].ID
	p := c.openProducer(topic, 0, "shop")
	if p.ID == 0 || p.Sequence != 0 {
		t.Fatalf("%+v", p)
	}
	var ids []uint64
	for i := range uint32(8) { // all on their way at once
		ids = append(ids, c.publish(topic, 0, seal(t, p, 3*i, 3)))
	}
	var first []wire.Produced
	for _, id := range ids {
		first = append(first, c.produced(id))
	}
	for i, f := range first {
		if f.Duplicate || f.First != first[0].First+uint64(3*i) {
			t.Errorf("batch %d got the id %d: %+v", i, f.First, first)
		}
	}
	again := c.produced(c.publish(topic, 0, seal(t, p, 21, 3)))
	if !again.Duplicate || again.First != first[7].First {
		t.Errorf("the same batch again: %+v", again)
	}
	id := c.publish(topic, 0, seal(t, p, 30, 1))
	c.refusal(id, wire.TypeProduced, netproto.StatusGap)
	id = c.publish(topic, 0, seal(t, wire.Producer{ID: 77, Epoch: 1}, 0, 1))
	c.refusal(id, wire.TypeProduced, netproto.StatusDiverged)

	other := w.dial()
	next := other.openProducer(topic, 0, "shop")
	if next.ID != p.ID || next.Epoch <= p.Epoch || next.Sequence != 24 {
		t.Errorf("opened again it is %+v, was %+v", next, p)
	}
	id = c.publish(topic, 0, seal(t, p, 24, 1))
	c.refusal(id, wire.TypeProduced, netproto.StatusOldEpoch)
	other.produced(other.publish(topic, 0, seal(t, next, 24, 1)))
	if stored := w.e.Stats("orders", "")[0].MessageCount; stored != 25 {
		t.Errorf("%d messages are stored, want 25", stored)
	}
}

// What must not be stored is refused by name, and the connection goes on; what breaks the protocol ends it.
func TestProduceRefuses(t *testing.T) {
	w := open(t, nil)
	c := w.dial()
	topic := c.ask(true, "orders").Topics[0].ID
	p := c.openProducer(topic, 0, "")
	good := seal(t, p, 0, 1)
	edit := func(at int, change byte) []byte {
		b := append([]byte(nil), good...)
		b[at] ^= change
		return b
	}
	for name, x := range map[string]struct {
		topic     uuid.UUID
		partition uint32
		batch     []byte
		status    netproto.Status
	}{
		"an unknown topic":        {uuid.UUID{1}, 0, good, netproto.StatusNotLeader},
		"an unknown partition":    {topic, 1, good, netproto.StatusNotLeader},
		"the highest partition":   {topic, 1<<32 - 1, good, netproto.StatusNotLeader},
		"no batch":                {topic, 0, nil, netproto.StatusRejected},
		"half a batch":            {topic, 0, good[:len(good)/2], netproto.StatusRejected},
		"a batch and more":        {topic, 0, append(append([]byte(nil), good...), good...), netproto.StatusRejected},
		"a false magic":           {topic, 0, edit(0, 1), netproto.StatusRejected},
		"a body with a wrong bit": {topic, 0, edit(len(good)-1, 1), netproto.StatusRejected},
		"too many bytes":          {topic, 0, make([]byte, 7<<20), netproto.StatusTooBig},
	} {
		t.Run(name, func(t *testing.T) {
			c.t = t
			c.refusal(c.publish(x.topic, x.partition, x.batch), wire.TypeProduced, x.status)
		})
	}
	c.t = t
	c.produced(c.publish(topic, 0, good))
	id := c.send(wire.TypeOpenProducer, &wire.OpenProducer{Topic: topic, Partition: 1<<32 - 1})
	c.refusal(id, wire.TypeProducer, netproto.StatusNotLeader)
	if err := w.e.DeleteTopic(t.Context(), "orders"); err != nil {
		t.Fatal(err)
	}
	c.refusal(c.publish(topic, 0, good), wire.TypeProduced, netproto.StatusNotLeader)

	for name, f := range map[string]*netproto.Frame{
		"not self-checked": {Type: wire.TypeProduce, Head: make([]byte, 100)},
		"without a head":   {Type: wire.TypeProduce, Flags: netproto.FlagSelfChecked, Body: [][]byte{good}},
		"a padded head": {
			Type: wire.TypeProduce, Flags: netproto.FlagSelfChecked,
			Head: binary.LittleEndian.AppendUint64(make([]byte, 16), 1<<63), Body: [][]byte{good},
		},
	} {
		t.Run(name, func(t *testing.T) {
			bad := w.dial()
			bad.t = t
			if err := bad.c.TrySend(f); err != nil {
				t.Fatal(err)
			}
			mustBe(t, bad.end(), netproto.ErrGoodbye)
		})
	}
}

// A token that may not publish to a topic opens no producer there, and stores nothing.
func TestProduceNeedsPermission(t *testing.T) {
	authority, _ := tokens(t, map[string]string{"shop": mayPublish, "watcher": mayView})
	w := open(t, func(o *Options) { o.Auth = authority })
	shop, watcher := w.dial(), w.dial()
	shop.login("shop")
	watcher.login("watcher")
	topic := shop.ask(true, "orders").Topics[0].ID
	p := shop.openProducer(topic, 0, "p")
	id := watcher.send(wire.TypeOpenProducer, &wire.OpenProducer{Topic: topic, Name: "p"})
	watcher.refusal(id, wire.TypeProducer, netproto.StatusUnproven)
	watcher.refusal(watcher.publish(topic, 0, seal(t, p, 0, 1)), wire.TypeProduced, netproto.StatusUnproven)
	shop.produced(shop.publish(topic, 0, seal(t, p, 0, 1)))
	last := w.refused()[len(w.refused())-1]
	if last.Who != "of watcher" || last.What != "native produce" || last.Names != "topic=orders" {
		t.Errorf("the audit was told %+v", last)
	}
}

// A named producer is of the token that opened it: another one that may publish, too, neither opens it nor sends its
// next batch, although it knows all its numbers, and the owner's own batch is stored.
func TestProducerIsItsOwners(t *testing.T) {
	authority, _ := tokens(t, map[string]string{"billing": mayPublish, "mallory": mayPublish})
	w := open(t, func(o *Options) { o.Auth = authority })
	billing, mallory, again := w.dial(), w.dial(), w.dial()
	billing.login("billing")
	mallory.login("mallory")
	again.login("billing")
	topic := billing.ask(true, "orders").Topics[0].ID
	mallory.ask(true, "orders")
	again.ask(true, "orders")
	p := billing.openProducer(topic, 0, "billing-1")
	billing.produced(billing.publish(topic, 0, seal(t, p, 0, 1)))
	for _, m := range []*wire.OpenProducer{
		{Topic: topic, Name: "billing-1"}, {Topic: topic, Name: "billing-1", Tenure: p.Tenure + 1},
	} {
		f := mallory.refusal(mallory.send(wire.TypeOpenProducer, m), wire.TypeProducer, netproto.StatusUnproven)
		if !strings.Contains(f.Text, "belongs to another identity") {
			t.Errorf("the answer is %q", f.Text)
		}
	}
	mallory.refusal(mallory.publish(topic, 0, seal(t, p, 1, 1)), wire.TypeProduced, netproto.StatusUnproven)
	if a := again.produced(again.publish(topic, 0, seal(t, p, 1, 1))); a.Duplicate { // another connection of the owner
		t.Error("the owner's batch counts as stored before")
	}
	if n := w.e.Stats("orders", "")[0].MessageCount; n != 2 {
		t.Errorf("%d messages are stored", n)
	}
	own := mallory.openProducer(topic, 0, "mallory-1")
	mallory.produced(mallory.publish(topic, 0, seal(t, own, 0, 1)))
}

// Batches of many connections at once are all answered, each once.
func TestProduceFromMany(t *testing.T) {
	w := open(t, nil)
	topic := w.dial().ask(true, "orders").Topics[0].ID
	const conns, batches = 8, 100
	ended := make(chan struct{})
	for range conns {
		c := w.dial()
		go func() {
			defer func() { ended <- struct{}{} }()
			p := c.openProducer(topic, 0, "")
			for i := range uint32(batches) {
				id := c.publish(topic, 0, seal(t, p, 5*i, 5))
				c.produced(id)
			}
		}()
	}
	for range conns {
		<-ended
	}
	if n := w.e.Stats("orders", "")[0].MessageCount; n != 5*conns*batches {
		t.Errorf("%d messages are stored", n)
	}
	if m := w.s.Meter(); m.Requests[Answered{"produce", "OK"}] != conns*batches {
		t.Errorf("%+v", m)
	}
	eventually(t, "nothing is in flight", func() bool { return w.s.Meter().InFlight == 0 })
}
