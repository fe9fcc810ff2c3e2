package node_test

import (
	"bytes"
	"testing"

	"penstock/batch"
	"penstock/internal/node"
	"penstock/netproto"
	"penstock/replicate"
	"penstock/replicate/wire"
	"penstock/segment"
)

// onTheWire is a follower to which only the test sends frames, in the name of its leader.
type onTheWire struct {
	t        *testing.T
	tc       *testCluster
	l, f     *testNode
	id       segment.Identity
	epoch    segment.Epoch
	before   node.Copy
	withheld wire.Run
	exchange uint64
}

// alone starts a cluster, waits until all copies are equal, and then drops all frames between the leader and one
// follower.
func alone(t *testing.T) *onTheWire {
	t.Helper()
	tc := newTestCluster(t, 3)
	tc.create("t", 1)
	l := tc.leader("t", 0)
	tc.channel("t", "c")
	publish(t, tc.topic(l, "t"), "a", "b", "c")
	w := &onTheWire{t: t, tc: tc, l: l, f: tc.others(l)[0]}
	w.before = tc.awaitEqualCopies("t", 0)
	tc.network.rules(func(from, to string, _ netproto.Type) int {
		if from == l.name && to == w.f.name || from == w.f.name && to == l.name {
			return 0
		}
		return 1
	})
	row := w.f.row("t", 0)
	w.id, w.epoch = row.ID, row.State.Epoch
	w.withheld, w.exchange = node.RunAtEnd(w.f.e, "t", 0), node.ExchangeOf(w.f.e, "t", 0)
	return w
}

// batch returns the leader's next batch behind those in front of it, sealed as the leader would seal it.
func (w *onTheWire) batch(at segment.State, control []byte, bodies ...string) ([]byte, segment.State) {
	w.t.Helper()
	var p []byte
	if control != nil {
		p = append(make([]byte, segment.HeaderBytes), control...)
		h := segment.Header{Flags: segment.FlagControl, BodyBytes: uint32(len(control)), BodyCRC: batch.Checksum(control)}
		h.Encode(p)
	} else {
		var b batch.Builder
		b.Reset(segment.CodecNone)
		for _, body := range bodies {
			if err := b.Add(&segment.Record{Body: []byte(body)}); err != nil {
				w.t.Fatal(err)
			}
		}
		p, _ = b.Seal(1)
		p = bytes.Clone(p)
	}
	batch.Stamp(p, at.Next, at.NextID, w.epoch, 1, at.LastCRC)
	var h segment.Header
	if err := h.Decode(p); err != nil {
		w.t.Fatal(err)
	}
	at.Advance(&h)
	return p, at
}

// say sends the follower a message with batches that begin at from, after spoil has changed the message. It says
// whether the follower's log has grown.
func (w *onTheWire) say(from segment.State, spoil func(*replicate.Message), batches ...[]byte) {
	w.t.Helper()
	m := replicate.Message{
		Kind: replicate.MsgAppend, Epoch: w.epoch, Request: w.exchange, Position: from.Next, FirstID: from.NextID,
	}
	at := from
	var body []byte
	for _, p := range batches {
		var h segment.Header
		if err := h.Decode(p); err != nil {
			w.t.Fatal(err)
		}
		m.Batches = append(m.Batches, replicate.Batch{
			Position: h.Position, FirstID: h.FirstID, Offset: at.End, Epoch: h.Epoch,
			Bytes: len(p), Count: h.Count, PrevCRC: h.PrevCRC, CRC: h.CRC,
		})
		at.Advance(&h)
		body = append(body, p...)
	}
	m.Until, m.NextID = at.Next, at.NextID
	if spoil != nil {
		spoil(&m)
	}
	run := w.withheld
	run.Bytes = len(body)
	var f netproto.Frame
	wire.Encode(&f, w.id, &m, []wire.Run{run})
	node.Hear(w.f.e, w.l.e.Node().ID, &f, body)
}

func (w *onTheWire) copy() node.Copy {
	w.t.Helper()
	c, err := node.CopyOf(w.f.e, "t", 0)
	if err != nil {
		w.t.Fatal(err)
	}
	return c
}

// The follower refuses a batch whose frame names another first id, last id or count than the batch has, and writes
// nothing of it. It accepts the right frame afterwards.
//
// B10.
func TestClusterWrongArguments(t *testing.T) {
	t.Parallel()
	w := alone(t)
	from := node.EndOf(w.f.e, "t", 0)
	one, next := w.batch(from, nil, "d", "e")
	two, _ := w.batch(next, nil, "f")
	for name, spoil := range map[string]func(*replicate.Message){
		"first id too high":  func(m *replicate.Message) { m.FirstID++ },
		"first id too low":   func(m *replicate.Message) { m.FirstID-- },
		"last id too high":   func(m *replicate.Message) { m.NextID++ },
		"last id too low":    func(m *replicate.Message) { m.NextID-- },
		"a batch too many":   func(m *replicate.Message) { m.Until++ },
		"a batch too few":    func(m *replicate.Message) { m.Until-- },
		"another position":   func(m *replicate.Message) { m.Position++ },
		"both ids elsewhere": func(m *replicate.Message) { m.FirstID++; m.NextID++ },
	} {
		w.say(from, spoil, one, two)
		if c := w.copy(); c.Next != w.before.Next || c.End != w.before.End ||
			c.NextID != w.before.NextID || !bytes.Equal(c.Bytes, w.before.Bytes) {
			t.Fatalf("%s: the follower wrote it: it ends at batch %d, offset %d; before at %d, %d",
				name, c.Next, c.End, w.before.Next, w.before.End)
		}
	}
	w.say(from, nil, one, two)
	w.tc.eventually("the right frame is written", func() bool { return w.copy().Next == w.before.Next+2 })
}

// The state of a channel travels in the log. If a confirmation arrives before the messages that it confirms, the
// follower holds it back, with everything behind the hole, and applies it once they have arrived and not earlier.
//
// B69.
func TestClusterConfirmationBeforeItsData(t *testing.T) {
	t.Parallel()
	w := alone(t)
	from := node.EndOf(w.f.e, "t", 0)
	data, next := w.batch(from, nil, "d", "e")
	confirm, _ := w.batch(next, node.ConfirmBody("c", 0, next.NextID))
	w.say(next, nil, confirm)
	for range 3 {
		if c := w.copy(); c.Next != w.before.Next || !bytes.Equal(c.Cursors, w.before.Cursors) {
			t.Fatalf("a confirmation was applied before its data: the follower ends at batch %d, before at %d",
				c.Next, w.before.Next)
		}
		w.say(next, nil, confirm)
	}
	if got := node.ConfirmedBelow(w.f.e, "t", 0, "c"); got > w.before.NextID {
		t.Fatalf("confirmed below %d, and the log ends at %d", got, w.before.NextID)
	}
	w.say(from, nil, data)
	w.say(next, nil, confirm)
	w.tc.eventually("the data and its confirmation are there", func() bool {
		return w.copy().Next == w.before.Next+2 && node.ConfirmedBelow(w.f.e, "t", 0, "c") == next.NextID
	})
}
