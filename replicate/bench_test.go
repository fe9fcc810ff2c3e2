package replicate

import (
	"testing"
)

// One write on a leader with two followers: put, append, own disk, two acks, commit.
func BenchmarkLeaderWrite(b *testing.B) {
	r := newLeaderRig(b, Config{}, 3, 2)
	r.serve()
	end := r.log.end()
	ack := Message{Kind: MsgAck, Epoch: 1}
	batches := make([]Batch, 1)
	b.ReportAllocs()
	for b.Loop() {
		batches[0] = Batch{
			Position: end.Next, FirstID: end.NextID, Offset: end.End, Epoch: 1, Bytes: 200, Count: 1, PrevCRC: end.LastCRC,
			CRC: 7,
		}
		advance(&end, &batches[0])
		r.step(Event{Kind: EvPut})
		r.step(Event{Kind: EvAppended, Batches: batches})
		r.durable(end.Next)
		for n := NodeID(2); n <= 3; n++ {
			ack.Request, ack.Position, ack.Offset = r.l.peer(n).request, end.Next, end.End
			r.step(Event{Kind: EvMessage, Node: n, Message: &ack})
		}
	}
	if r.l.Committed() != end.Next {
		b.Fatalf("committed %d of %d", r.l.Committed(), end.Next)
	}
}

// One write on a follower: frame, disk, ack.
func BenchmarkFollowerWrite(b *testing.B) {
	f := NewFollower(Config{}, testMember(2), simUUID('b', 2, 1), Log{})
	var acts Actions
	step := func(ev Event) { f.Step(0, &ev, &acts) }
	step(Event{Kind: EvMessage, Node: 1, Message: &Message{Kind: MsgProbe, Epoch: 1, Request: 1}})
	step(Event{Kind: EvMessage, Node: 1, Message: &Message{Kind: MsgMatch, Epoch: 1, Request: 1, Boot: f.boot}})
	end := f.Log().End
	m := Message{Kind: MsgAppend, Epoch: 1, Request: 1, Batches: make([]Batch, 1)}
	b.ReportAllocs()
	for b.Loop() {
		batch := &m.Batches[0]
		*batch = Batch{
			Position: end.Next, FirstID: end.NextID, Offset: end.End, Epoch: 1, Bytes: 200, Count: 1, PrevCRC: end.LastCRC,
			CRC: 7,
		}
		m.Position, m.Until, m.FirstID, m.NextID, m.Committed = batch.Position, batch.Position+1, batch.FirstID,
			batch.NextID(), end.Next
		advance(&end, batch)
		step(Event{Kind: EvMessage, Node: 1, Message: &m})
		step(Event{Kind: EvDurable, Position: end.Next})
	}
	if f.Committed() != end.Next-1 {
		b.Fatalf("committed %d of %d", f.Committed(), end.Next)
	}
}
