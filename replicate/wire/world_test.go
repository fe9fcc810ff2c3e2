package wire

import (
	"hash/crc32"
	"testing"

	"github.com/google/uuid"

	"penstock/batch"
	"penstock/netproto"
	"penstock/replicate"
	"penstock/segment"
)

var (
	testID    = segment.Identity{Topic: uuid.MustParse("11223344-5566-4788-99aa-bbccddeeff01"), Partition: 7}
	testBoot  = uuid.MustParse("b0000000-0000-4000-8000-000000000001")
	testStore = uuid.MustParse("57000000-0000-4000-8000-000000000002")
)

// logWriter makes the batches of a log, as a leader would.
type logWriter struct {
	t       testing.TB
	state   segment.State
	sizes   segment.Sizes
	builder batch.Builder
	bytes   []byte
	batches []replicate.Batch
	runs    []Run
}

func newLog(t testing.TB) *logWriter {
	return &logWriter{t: t, sizes: segment.DefaultSizes}
}

// add appends a batch of count messages of size bytes each.
func (w *logWriter) add(epoch segment.Epoch, count, size int) {
	w.t.Helper()
	w.builder.Reset(segment.CodecNone)
	body := make([]byte, size)
	for i := range count {
		for j := range body {
			body[j] = byte(i + j)
		}
		if err := w.builder.Add(&segment.Record{Body: body}); err != nil {
			w.t.Fatal(err)
		}
	}
	sealed, err := w.builder.Seal(1_700_000_000_000_000_000)
	if err != nil {
		w.t.Fatal(err)
	}
	w.place(epoch, sealed)
}

func (w *logWriter) place(epoch segment.Epoch, sealed []byte) {
	s := &w.state
	begins := w.sizes.Place(s, len(sealed))
	if len(w.runs) == 0 || begins {
		w.runs = append(w.runs, Run{Segment: s.Segment, Base: s.SegmentBase, Capacity: s.SegmentCapacity})
	}
	w.runs[len(w.runs)-1].Bytes += len(sealed)
	batch.Stamp(sealed, s.Next, s.NextID, epoch, 1_700_000_000_000_000_500, s.LastCRC)
	var h segment.Header
	if err := h.Decode(sealed); err != nil {
		w.t.Fatal(err)
	}
	w.batches = append(w.batches, replicate.Batch{
		Position: h.Position, FirstID: h.FirstID, Offset: s.End, Epoch: h.Epoch, Bytes: h.Size(), Count: h.Count,
		PrevCRC: h.PrevCRC, CRC: h.CRC,
	})
	w.bytes = append(w.bytes, sealed...)
	s.Advance(&h)
}

// cut drops the batches added so far; the log continues.
func (w *logWriter) cut() { w.bytes, w.batches, w.runs = nil, nil, nil }

// append returns a MsgAppend with the batches added.
func (w *logWriter) append() *replicate.Message {
	first, last := &w.batches[0], &w.batches[len(w.batches)-1]
	return &replicate.Message{
		Kind: replicate.MsgAppend, Epoch: last.Epoch, Request: 3, Position: first.Position, Until: last.Position + 1,
		FirstID: first.FirstID, NextID: last.NextID(), Committed: first.Position, Batches: w.batches,
	}
}

// frameOf returns what the receiver of f gets: the header that netproto verified, and the payload.
func frameOf(f *netproto.Frame) (netproto.Header, []byte) {
	payload := append([]byte(nil), f.Head...)
	for _, p := range f.Body {
		payload = append(payload, p...)
	}
	h := netproto.Header{
		Type: f.Type, Flags: f.Flags, Status: f.Status, Stream: f.Stream, Request: f.Request,
		PayloadBytes: uint32(len(payload)),
	}
	if f.Flags&netproto.FlagSelfChecked != 0 {
		h.HeadBytes = uint16(len(f.Head))
	}
	h.PayloadCRC = crc32.Checksum(payload[:h.CheckedBytes()], crc32.MakeTable(crc32.Castagnoli))
	return h, payload
}

// encode is frameOf for a message.
func encode(m *replicate.Message, runs []Run, body []byte) (netproto.Header, []byte) {
	var f netproto.Frame
	Encode(&f, testID, m, runs)
	if len(body) > 0 {
		f.Body = [][]byte{body}
	}
	return frameOf(&f)
}

// messages has one message of each kind, with every field that it uses set, by the name of its golden file.
func messages(t testing.TB) map[string]*replicate.Message {
	w := newLog(t)
	w.state = segment.State{Next: 40, NextID: 4000, End: 1<<20 - 300, LastCRC: 0xCAFE, Epoch: 4, SegmentCapacity: 1 << 20}
	w.add(5, 2, 20)
	w.add(5, 1, 100) // begins segment 1
	state := segment.State{
		Next: 41, NextID: 401, End: 1<<20 + 512, LastCRC: 0xDEADBEEF, Epoch: 4, Segment: 1, SegmentBase: 1 << 20,
		SegmentCapacity: 2 << 20,
	}
	epochs := []replicate.EpochStart{{Epoch: 1, Position: 0, Offset: 0}, {Epoch: 4, Position: 30, Offset: 9000}}
	app, rng := *w.append(), *w.append()
	app.Committed, app.Request = 38, 9
	rng = replicate.Message{
		Kind: replicate.MsgRange, Epoch: 5, Request: 9, Position: rng.Position, Until: rng.Until, Start: 12,
		Batches: rng.Batches,
	}
	all := map[string]*replicate.Message{
		"probe":     {Kind: replicate.MsgProbe},
		"match":     {Kind: replicate.MsgMatch, Position: 300, Boot: testBoot, Generation: 6},
		"reset":     {Kind: replicate.MsgReset, Boot: testBoot, Generation: 6, Log: state, Epochs: epochs},
		"append":    &app,
		"heartbeat": {Kind: replicate.MsgHeartbeat, Position: 300, Committed: 298},
		"report": {
			Kind: replicate.MsgReport, Boot: testBoot, Generation: 6, Store: testStore, Start: 12, Log: state, Epochs: epochs,
			Damaged: true,
		},
		"report-marked": {
			Kind: replicate.MsgReport, Boot: testBoot, Generation: 6, Store: testStore, Start: 12, Log: state, Epochs: epochs,
			Until: 40, Committed: 37, Shortened: true,
		},
		"ack":    {Kind: replicate.MsgAck, Position: 300, Offset: 1 << 40, Committed: 298, Damaged: true},
		"gap":    {Kind: replicate.MsgGap, Position: 300, Offset: 1 << 40},
		"reject": {Kind: replicate.MsgReject, Code: replicate.RejectArgument, Position: 300},
		"resync": {Kind: replicate.MsgResync, Position: 300},
		"fetch":  {Kind: replicate.MsgFetch, Position: 40, Until: 42},
		"range":  &rng,
	}
	for _, m := range all {
		m.Epoch, m.Request = 5, 9
	}
	return all
}

// placement has the runs for the batches of messages.
func placement(t testing.TB) (runs []Run, body []byte) {
	w := newLog(t)
	w.state = segment.State{Next: 40, NextID: 4000, End: 1<<20 - 300, LastCRC: 0xCAFE, Epoch: 4, SegmentCapacity: 1 << 20}
	w.add(5, 2, 20)
	w.add(5, 1, 100)
	return w.runs, w.bytes
}

// sent returns the frame of one of messages.
func sent(t testing.TB, m *replicate.Message) (netproto.Header, []byte) {
	if !CarriesBatches(m.Kind) {
		return encode(m, nil, nil)
	}
	runs, body := placement(t)
	return encode(m, runs, body)
}
