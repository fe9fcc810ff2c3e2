package wire

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math"
	"reflect"
	"slices"
	"strings"
	"testing"

	"penstock/netproto"
	"penstock/replicate"
	"penstock/segment"
)

// Whatever else is set in a message, its frame carries the fields of its kind. A decoder that was used before shows
// nothing of the previous frame.
func TestRoundTrip(t *testing.T) {
	var d Decoder
	all := messages(t)
	for _, before := range all {
		for name, m := range all {
			full := *m // with every field set, because the machines leave old values in some
			fill(&full)
			full.Kind, full.Batches, full.Epochs = m.Kind, m.Batches, m.Epochs
			h, payload := sent(t, &full)
			bh, bp := sent(t, before)
			if err := d.Decode(&bh, bp); err != nil {
				t.Fatal(err)
			}
			if err := d.Decode(&h, payload); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			want := full
			keep(&want)
			if !reflect.DeepEqual(d.Message, want) {
				t.Fatalf("%s: %+v\nwant %+v", name, d.Message, want)
			}
			if CarriesBatches(m.Kind) != (len(d.Runs) > 0) || CarriesBatches(m.Kind) != (len(d.Body) > 0) {
				t.Fatalf("%s: %d runs, %d bytes of batches", name, len(d.Runs), len(d.Body))
			}
		}
	}
}

// fill sets every field of a message.
func fill(m *replicate.Message) {
	*m = replicate.Message{
		Code: replicate.RejectEpoch, Damaged: true, Shortened: true, Epoch: 77, Request: 78, Generation: 79,
		Boot: testBoot, Store: testStore,
		Position: 80, Until: 81, Start: 82, Committed: 83, Offset: 84, FirstID: 85, NextID: segment.MaxMsgID + 1,
		Log: segment.State{Next: 1, NextID: 2, End: 3, LastCRC: 4, Epoch: 5, Segment: 6, SegmentBase: 1, SegmentCapacity: 2},
	}
}

// keep clears the fields that the kind does not use.
func keep(m *replicate.Message) {
	all := map[field]func(){
		fieldPosition: func() { m.Position = 0 }, fieldUntil: func() { m.Until = 0 }, fieldStart: func() { m.Start = 0 },
		fieldCommitted: func() { m.Committed = 0 }, fieldOffset: func() { m.Offset = 0 }, fieldFirstID: func() {
			m.FirstID = 0
		},
		fieldNextID: func() { m.NextID = 0 }, fieldGeneration: func() { m.Generation = 0 }, fieldBoot: func() {
			clear(m.Boot[:])
		},
		fieldStore: func() { clear(m.Store[:]) }, fieldLog: func() { m.Log = segment.State{} }, fieldBatches: func() {
			m.Batches = nil
		},
		fieldEpochs: func() { m.Epochs = nil }, usesDamaged: func() { m.Damaged = false }, usesCode: func() { m.Code = 0 },
	}
	fields := layouts[m.Kind].fields
	if marked(m) {
		fields = markedReport.fields
	} else {
		m.Shortened = false
	}
	for f, clearIt := range all {
		if fields&f == 0 {
			clearIt()
		}
	}
}

// The batches of a frame are decoded as they were sent: the same bytes, at the same offsets, in the same segments (B1).
func TestBatches(t *testing.T) {
	w := newLog(t)
	w.sizes = segment.Sizes{MinSegmentBytes: 4096, MaxSegmentBytes: 16384}
	for i := range 40 {
		w.add(1, 1+i%5, 10+i*17)
	}
	w.cut()
	for i := range 60 {
		w.add(2, 1+i%7, 10+i*29%5000)
	}
	if len(w.runs) < 5 {
		t.Fatalf("%d runs: the test needs more", len(w.runs))
	}
	h, payload := encode(w.append(), w.runs, w.bytes)
	var d Decoder
	if err := d.Decode(&h, payload); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(d.Runs, w.runs) || !slices.Equal(d.Message.Batches, w.batches) || !bytes.Equal(d.Body, w.bytes) {
		t.Fatalf("runs %v\nwant %v", d.Runs, w.runs)
	}
	at := 0
	for i, b := range w.batches {
		if got := d.Batch(i); !bytes.Equal(got, w.bytes[at:at+b.Bytes]) || cap(got) != b.Bytes {
			t.Fatalf("batch %d is not what was sent", i)
		}
		at += b.Bytes
	}
}

// The largest table and the largest numbers of runs and batches fit; one more is the sender's mistake and panics.
func TestBounds(t *testing.T) {
	w := newLog(t)
	w.sizes = segment.Sizes{MinSegmentBytes: 4096, MaxSegmentBytes: 4096}
	for range MaxRunCount {
		w.add(1, 1, 4000)
	}
	h, payload := encode(w.append(), w.runs, w.bytes)
	var d Decoder
	if err := d.Decode(&h, payload); err != nil || len(d.Runs) != MaxRunCount || h.HeadBytes != MaxBatchHeadBytes {
		t.Fatalf("%v, %d runs, a head of %d bytes", err, len(d.Runs), h.HeadBytes)
	}
	many := newLog(t)
	for range MaxBatchCount {
		many.add(1, 1, 1)
	}
	h, payload = encode(many.append(), many.runs, many.bytes)
	if err := d.Decode(&h, payload); err != nil || len(d.Message.Batches) != MaxBatchCount {
		t.Fatalf("%v, %d batches", err, len(d.Message.Batches))
	}
	report := messages(t)["report-marked"]
	report.Epochs = nil
	for i := range replicate.MaxEpochCount {
		report.Epochs = append(report.Epochs, replicate.EpochStart{
			Epoch: segment.Epoch(i + 1), Position: segment.Position(i * 3), Offset: segment.Offset(i * 900),
		})
	}
	h, payload = encode(report, nil, nil)
	if err := d.Decode(&h, payload); err != nil || len(payload) != MaxHeadBytes ||
		!slices.Equal(d.Message.Epochs, report.Epochs) {
		t.Fatalf("%v, %d bytes", err, len(payload))
	}

	many.add(1, 1, 1)
	w.add(1, 1, 4000)
	app := w.append()
	for name, wrong := range map[string]func(){
		"runs":             func() { appendHead(nil, testID, app, w.runs) },
		"batches":          func() { appendHead(nil, testID, many.append(), many.runs) },
		"no runs":          func() { appendHead(nil, testID, app, nil) },
		"runs in a probe":  func() { appendHead(nil, testID, &replicate.Message{Kind: replicate.MsgProbe}, w.runs[:1]) },
		"runs, no batches": func() { appendHead(nil, testID, &replicate.Message{Kind: replicate.MsgAppend}, w.runs[:1]) },
		"epochs": func() {
			appendHead(nil, testID, &replicate.Message{
				Kind: replicate.MsgReset, Epochs: append(report.Epochs, report.Epochs[0]),
			}, nil)
		},
		"kind 0":            func() { appendHead(nil, testID, &replicate.Message{}, nil) },
		"a kind too many":   func() { Type(replicate.MsgRange + 1) },
		"batches of kind 0": func() { CarriesBatches(0) },
	} {
		func() {
			defer func() {
				if text, _ := recover().(string); !strings.HasPrefix(text, "BUG: wire: ") {
					t.Errorf("%s: %q", name, text)
				}
			}()
			wrong()
		}()
	}
	overfull, _ := encode(many.appendCut(MaxBatchCount), many.runs, nil)
	overfull.PayloadBytes += uint32(len(many.bytes))
	head := appendHead(nil, testID, many.appendCut(MaxBatchCount), many.runs)
	refused(t, "a batch too many", &overfull, append(head, many.bytes...))
}

// appendCut claims fewer batches than its bytes contain.
func (w *logWriter) appendCut(n int) *replicate.Message {
	m := w.append()
	m.Batches = m.Batches[:n]
	return m
}

// An answer to a fetch may have only the start of the log. An append without batches is decoded; refusing it is up to
// the follower.
func TestNoBatches(t *testing.T) {
	for _, kind := range []replicate.MessageKind{replicate.MsgAppend, replicate.MsgRange} {
		h, payload := encode(&replicate.Message{Kind: kind, Epoch: 2, Position: 7, Until: 7}, nil, nil)
		var d Decoder
		if err := d.Decode(&h, payload); err != nil || d.Message.Position != 7 ||
			len(d.Message.Batches)+len(d.Body)+len(d.Runs) != 0 {
			t.Errorf("kind %d: %v, %+v", kind, err, d.Message)
		}
		payload[len(payload)-8] = 1 // the offset of the first batch
		refused(t, "an offset of nothing", &h, payload)
	}
}

func refused(t *testing.T, name string, h *netproto.Header, payload []byte) {
	t.Helper()
	d := Decoder{ID: testID}
	if err := d.Decode(h, payload); !errors.Is(err, ErrInvalid) {
		t.Errorf("%s: %v", name, err)
	}
	if d.ID != (segment.Identity{}) || d.Body != nil || d.Runs != nil ||
		!reflect.DeepEqual(d.Message, replicate.Message{}) {
		t.Errorf("%s: the decoder still holds something", name)
	}
}

// A frame that is not a message, or is not intact, is refused as a whole.
func TestRefused(t *testing.T) {
	all := messages(t)
	le := binary.LittleEndian
	const fields = CommonBytes
	for _, c := range []struct {
		name, message string
		edit          func(h *netproto.Header, p []byte)
	}{
		{"another type", "ack", func(h *netproto.Header, _ []byte) { h.Type = netproto.TypeForwardPut }},
		{"a type of no number", "ack", func(h *netproto.Header, _ []byte) { h.Type = 200 }},
		{"type 0", "ack", func(h *netproto.Header, _ []byte) { h.Type = 0 }},
		{"status", "ack", func(h *netproto.Header, _ []byte) { h.Status = netproto.StatusGap }},
		{"stream", "ack", func(h *netproto.Header, _ []byte) { h.Stream = 1 }},
		{"request", "ack", func(h *netproto.Header, _ []byte) { h.Request = 1 }},
		{"shorter than its header says", "ack", func(h *netproto.Header, _ []byte) { h.PayloadBytes++ }},
		{
			"self-checked", "ack",
			func(h *netproto.Header, p []byte) { h.Flags, h.HeadBytes = netproto.FlagSelfChecked, uint16(len(p)) },
		},
		{"not self-checked", "append", func(h *netproto.Header, _ []byte) { h.Flags, h.HeadBytes = 0, 0 }},
		{"a short head", "append", func(h *netproto.Header, _ []byte) { h.HeadBytes = CommonBytes }},
		{"a head without a run", "append", func(h *netproto.Header, _ []byte) { h.HeadBytes -= runBytes }},
		{"a head with a batch", "append", func(h *netproto.Header, _ []byte) { h.HeadBytes += segment.HeaderBytes }},
		{"no topic", "ack", func(_ *netproto.Header, p []byte) { clear(p[offTopic : offTopic+16]) }},
		{"code in an ack", "ack", func(_ *netproto.Header, p []byte) { p[offCode] = 1 }},
		{"reject without code", "reject", func(_ *netproto.Header, p []byte) { p[offCode] = 0 }},
		{"reject with an unknown code", "reject", func(_ *netproto.Header, p []byte) { p[offCode] = 5 }},
		{"unknown flag", "ack", func(_ *netproto.Header, p []byte) { p[offFlags] = 2 }},
		{"damaged probe", "probe", func(_ *netproto.Header, p []byte) { p[offFlags] = 1 }},
		{"runs in an ack", "ack", func(_ *netproto.Header, p []byte) { p[offRunCount] = 1 }},
		{"too many runs", "append", func(_ *netproto.Header, p []byte) { p[offRunCount] = MaxRunCount + 1 }},
		{"fewer runs than there are", "append", func(_ *netproto.Header, p []byte) { p[offRunCount]-- }},
		{"reserved", "ack", func(_ *netproto.Header, p []byte) { p[offReserved] = 1 }},
		{"negative offset", "ack", func(_ *netproto.Header, p []byte) { p[fields+16+7] = 0x80 }},
		{
			"message id", "append",
			func(_ *netproto.Header, p []byte) { le.PutUint64(p[fields+24:], uint64(segment.MaxMsgID)+2) },
		},
		{
			"next message id", "append",
			func(_ *netproto.Header, p []byte) { le.PutUint64(p[fields+32:], uint64(segment.MaxMsgID)+2) },
		},
		{"negative offset of batches", "append", func(_ *netproto.Header, p []byte) { p[fields+40+7] = 0x80 }},
		{
			"offset of batches near the end", "append",
			func(_ *netproto.Header, p []byte) { le.PutUint64(p[fields+40:], math.MaxInt64-100) },
		},
		{"next id of a log", "reset", func(_ *netproto.Header, p []byte) {
			le.PutUint64(p[fields+24+offStateNextID:], uint64(segment.MaxMsgID)+2)
		}},
		{
			"log before its segment", "reset",
			func(_ *netproto.Header, p []byte) { le.PutUint64(p[fields+24+offStateBase:], 1<<20+513) },
		},
		{"negative base", "reset", func(_ *netproto.Header, p []byte) { p[fields+24+offStateBase+7] = 0x80 }},
		{"negative capacity", "reset", func(_ *netproto.Header, p []byte) { p[fields+24+offStateCapacity+7] = 0x80 }},
		{
			"log behind its segment", "reset",
			func(_ *netproto.Header, p []byte) { le.PutUint64(p[fields+24+offStateCapacity:], 511) },
		},
		{"epoch table", "reset", func(_ *netproto.Header, p []byte) { p[fields+24+stateBytes] = 9 }},
		{"fewer epochs than there are", "reset", func(_ *netproto.Header, p []byte) { p[fields+24+stateBytes+4]-- }},
	} {
		h, payload := sent(t, all[c.message])
		c.edit(&h, payload)
		refused(t, c.name, &h, payload)
	}
	for name, m := range all {
		h, payload := sent(t, m)
		for n := range payload {
			cut := h
			cut.PayloadBytes = uint32(n)
			refused(t, name+" cut", &cut, payload[:n])
		}
		h.PayloadBytes++
		refused(t, name+" with a byte more", &h, append(payload, 0))
	}
}

// A flipped bit anywhere in the batches is detected, although the frame's checksum does not cover them.
func TestDamagedBatches(t *testing.T) {
	h, payload := sent(t, messages(t)["append"])
	for bit := int(h.HeadBytes) * 8; bit < len(payload)*8; bit++ {
		payload[bit/8] ^= 1 << (bit % 8)
		refused(t, "a flipped bit", &h, payload)
		payload[bit/8] ^= 1 << (bit % 8)
	}
}

// Runs must cover the batches exactly, end at the end of a batch, and lie each within its segment.
func TestRefusedRuns(t *testing.T) {
	w := newLog(t)
	w.sizes = segment.Sizes{MinSegmentBytes: 4096, MaxSegmentBytes: 4096}
	for range 6 {
		w.add(1, 1, 1200)
	}
	if len(w.runs) != 2 {
		t.Fatalf("%d runs", len(w.runs))
	}
	for name, edit := range map[string]func(runs []Run) []Run{
		"a byte too few in the last":  func(r []Run) []Run { r[1].Bytes--; return r },
		"a byte too many in the last": func(r []Run) []Run { r[1].Bytes++; return r },
		"border in a batch":           func(r []Run) []Run { r[0].Bytes--; r[1].Bytes++; return r },
		"the border a batch later": func(r []Run) []Run {
			r[0].Bytes += w.batches[3].Bytes
			r[1].Bytes -= w.batches[3].Bytes
			return r
		},
		"the border a batch earlier": func(r []Run) []Run {
			r[0].Bytes -= w.batches[2].Bytes
			r[1].Bytes += w.batches[2].Bytes
			return r
		},
		"one is missing": func(r []Run) []Run { return r[:1] },
		"an empty one": func(r []Run) []Run {
			return append(r, Run{Segment: 2, Base: w.state.End, Capacity: 4096})
		},
		"segments not in order":        func(r []Run) []Run { r[0].Segment = 9; return r },
		"a segment is left out":        func(r []Run) []Run { r[1].Segment++; return r },
		"begins before its segment":    func(r []Run) []Run { r[0].Base++; return r },
		"negative base":                func(r []Run) []Run { r[0].Base = -1; return r },
		"behind its segment":           func(r []Run) []Run { r[0].Capacity = int64(r[0].Bytes) - 1; return r },
		"no room":                      func(r []Run) []Run { r[0].Capacity = -1; return r },
		"does not begin its segment":   func(r []Run) []Run { r[1].Base--; return r },
		"the number of segments wraps": func(r []Run) []Run { r[0].Segment, r[1].Segment = math.MaxUint32, 0; return r },
	} {
		runs := edit(slices.Clone(w.runs))
		h, payload := encode(w.append(), runs, w.bytes)
		refused(t, name, &h, payload)
	}
	// A segment that is full to the last byte is allowed.
	full := slices.Clone(w.runs)
	full[1].Capacity = int64(full[1].Bytes)
	h, payload := encode(w.append(), full, w.bytes)
	if err := new(Decoder).Decode(&h, payload); err != nil {
		t.Error(err)
	}
}

func TestNoAllocations(t *testing.T) {
	w := newLog(t)
	for range 20 {
		w.add(3, 64, 100)
	}
	app, report := w.append(), messages(t)["report"]
	ah, ap := encode(app, w.runs, w.bytes)
	rh, rp := encode(report, nil, nil)
	var f netproto.Frame
	var d Decoder
	allocs := testing.AllocsPerRun(100, func() {
		Encode(&f, testID, app, w.runs)
		Encode(&f, testID, report, nil)
		if d.Decode(&ah, ap) != nil || d.Decode(&rh, rp) != nil {
			t.Fatal("not decoded")
		}
	})
	if allocs != 0 {
		t.Errorf("%v allocations", allocs)
	}
}

// The cost of a frame with one batch of 64 messages of 100 bytes, on both sides: encoding its head, decoding it and
// verifying the batch.
func BenchmarkAppend(b *testing.B) {
	w := newLog(b)
	w.add(3, 64, 100)
	app := w.append()
	_, payload := encode(app, w.runs, w.bytes)
	var f netproto.Frame
	var d Decoder
	b.ReportAllocs()
	b.SetBytes(int64(len(w.bytes)))
	for b.Loop() {
		Encode(&f, testID, app, w.runs)
		h := netproto.Header{Type: f.Type, Flags: f.Flags, HeadBytes: uint16(len(f.Head)), PayloadBytes: uint32(len(payload))}
		if err := d.Decode(&h, payload); err != nil {
			b.Fatal(err)
		}
	}
}

// An ack; there is one for every few batches.
func BenchmarkAck(b *testing.B) {
	ack := messages(b)["ack"]
	_, payload := encode(ack, nil, nil)
	var f netproto.Frame
	var d Decoder
	b.ReportAllocs()
	for b.Loop() {
		Encode(&f, testID, ack, nil)
		h := netproto.Header{Type: f.Type, PayloadBytes: uint32(len(payload))}
		if err := d.Decode(&h, payload); err != nil {
			b.Fatal(err)
		}
	}
}
