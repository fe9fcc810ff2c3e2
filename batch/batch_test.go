package batch

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
)

var update = flag.Bool("update", false, "write golden files that do not exist yet")

// sample builds a stamped batch of n messages of the given size, determined by seed.
func sample(t testing.TB, codec Codec, n, bodyBytes int, seed uint64) []byte {
	t.Helper()
	rng := rand.New(rand.NewPCG(seed, 7))
	b := Builder{ProducerID: 0x1122334455667788, ProducerEpoch: 3, BaseSequence: 41}
	b.Reset(codec)
	for i := range n {
		body := bytes.Repeat([]byte{byte('a' + rng.IntN(26))}, bodyBytes)
		if err := b.Add(&Record{TimeDelta: int64(i), Body: body}); err != nil {
			t.Fatal(err)
		}
	}
	p, err := b.Seal(1_700_000_000_000_000_000)
	if err != nil {
		t.Fatal(err)
	}
	Stamp(p, 9, 1000, 5, 1_700_000_000_000_001_000, 0xfeedf00d)
	return bytes.Clone(p)
}

// collect verifies a batch and returns deep copies of its records.
func collect(p []byte) (Header, []Record, error) {
	var h Header
	if err := h.Decode(p); err != nil {
		return h, nil, err
	}
	if h.Size() != len(p) {
		return h, nil, fmt.Errorf("%w: size %d of %d", ErrInvalid, h.Size(), len(p))
	}
	if err := VerifyBody(&h, p[HeaderBytes:]); err != nil {
		return h, nil, err
	}
	body, err := DecompressBody(&h, p[HeaderBytes:], nil)
	if err != nil {
		return h, nil, err
	}
	var it RecordIter
	var out []Record
	for it.Reset(&h, body); ; {
		r, ok := it.Next()
		if !ok {
			return h, out, it.Err()
		}
		c := Record{TimeDelta: r.TimeDelta, Defer: r.Defer, Body: bytes.Clone(r.Body)}
		for _, kv := range r.Headers {
			c.Headers = append(c.Headers, KV{bytes.Clone(kv.Key), bytes.Clone(kv.Value)})
		}
		out = append(out, c)
	}
}

func equalRecords(a, b []Record) error {
	if len(a) != len(b) {
		return fmt.Errorf("%d records, want %d", len(a), len(b))
	}
	for i := range a {
		x, y := &a[i], &b[i]
		if x.TimeDelta != y.TimeDelta || x.Defer != y.Defer || !bytes.Equal(x.Body, y.Body) ||
			len(x.Headers) != len(y.Headers) {
			return fmt.Errorf("record %d: %+v, want %+v", i, x, y)
		}
		for k := range x.Headers {
			if !bytes.Equal(x.Headers[k].Key, y.Headers[k].Key) || !bytes.Equal(x.Headers[k].Value, y.Headers[k].Value) {
				return fmt.Errorf("record %d header %d: %q, want %q", i, k, x.Headers[k], y.Headers[k])
			}
		}
	}
	return nil
}

func goldenRecords() []Record {
	many := make([]KV, MaxHeaderCount)
	for i := range many {
		many[i] = KV{[]byte{byte(i)}, nil}
	}
	return []Record{
		{Body: []byte("hello"), TimeDelta: 3},
		{Body: nil},
		{Body: bytes.Repeat([]byte("x"), 125)}, // the largest body with a one-byte size
		{Body: bytes.Repeat([]byte("y"), 126)},
		{Body: []byte("late"), TimeDelta: -1},
		{Body: []byte("later"), TimeDelta: 64},
		{Body: []byte("much later"), TimeDelta: 1 << 62},
		{Body: []byte("before time"), TimeDelta: -1 << 63},
		{Body: []byte("deferred"), Defer: 1},
		{Body: []byte("deferred long"), Defer: 1<<32 - 1},
		{Body: []byte("with headers"), Headers: []KV{{[]byte("key"), []byte("value")}, {[]byte("empty"), nil}}},
		{Body: []byte("all"), TimeDelta: 99, Defer: 77, Headers: []KV{{[]byte("k"), []byte{0, 255}}}},
		{Body: []byte("many"), Headers: many},
	}
}

func TestRecordRoundTrip(t *testing.T) {
	want := goldenRecords()
	for _, codec := range []Codec{CodecNone, CodecS2, CodecZstd} {
		var b Builder
		b.Reset(codec)
		for i := range want {
			before := max(len(b.records), HeaderBytes)
			if err := b.Add(&want[i]); err != nil {
				t.Fatal(err)
			}
			if got := max(len(b.records), HeaderBytes) - before; got != want[i].Size() {
				t.Errorf("record %d takes %d bytes, Size says %d", i, got, want[i].Size())
			}
		}
		p, err := b.Seal(42)
		if err != nil {
			t.Fatal(err)
		}
		h, got, err := collect(p)
		if err != nil {
			t.Fatal(err)
		}
		if err := equalRecords(got, want); err != nil {
			t.Errorf("codec %d: %v", codec, err)
		}
		if h.Codec != codec || h.Created != 42 || h.Flags != FlagHeaders|FlagDefer || int(h.Count) != len(want) {
			t.Errorf("codec %d: header %+v", codec, h)
		}
	}
}

func TestRecordSize(t *testing.T) {
	if got := RecordSize(100, 0); got != 103 {
		t.Errorf("a 100-byte message takes %d bytes, want 103", got)
	}
	for _, n := range []int{0, 1, 125, 126, 127, 128, 16381, 16382, 1 << 20, MaxBatchBytes} {
		for _, d := range []uint32{0, 1, 127, 128, 1<<32 - 1} {
			r := Record{Defer: d, Body: make([]byte, n)}
			got := AppendRecord(nil, &r)
			if len(got) != RecordSize(n, d) || len(got) != r.Size() {
				t.Errorf("body %d defer %d: %d bytes, RecordSize %d, Size %d", n, d, len(got), RecordSize(n, d), r.Size())
			}
			if len(got)-n > MaxRecordOverheadBytes {
				t.Errorf("body %d defer %d: overhead %d passes MaxRecordOverheadBytes", n, d, len(got)-n)
			}
		}
	}
}

func TestHeaderRules(t *testing.T) {
	good := Header{BodyBytes: 30, Count: 10, Position: 1, FirstID: 7, PrevCRC: 1}
	for _, c := range []struct {
		name  string
		spoil func(h *Header)
	}{
		{"codec", func(h *Header) { h.Codec = 3 }},
		{"flags", func(h *Header) { h.Flags = 8 }},
		{"too long", func(h *Header) { h.BodyBytes = MaxBatchBytes - HeaderBytes + 1 }},
		{"control with messages", func(h *Header) { h.Flags = FlagControl }},
		{"no messages", func(h *Header) { h.Count = 0 }},
		{"more messages than bytes", func(h *Header) { h.Count = 11 }},
		{"more messages than a batch can inflate to", func(h *Header) { h.Codec, h.Count = CodecZstd, MaxBatchBytes/3+1 }},
		{"ids pass the largest", func(h *Header) { h.FirstID = MaxMsgID - 8 }},
		{"ids wrap", func(h *Header) { h.FirstID = 1<<64 - 1 }},
		{"first follows a batch", func(h *Header) { h.Position = 0 }},
	} {
		t.Run(c.name, func(t *testing.T) {
			var p [HeaderBytes]byte
			h, back := good, Header{}
			h.Encode(p[:])
			if err := back.Decode(p[:]); err != nil || back != h {
				t.Fatalf("good header: %v, %+v", err, back)
			}
			c.spoil(&h)
			h.Encode(p[:]) // the checksum is correct: only the rule can refuse it
			if err := back.Decode(p[:]); !errors.Is(err, ErrInvalid) {
				t.Errorf("accepted: %v", err)
			}
		})
	}
	var p [HeaderBytes]byte
	if err := new(Header).Decode(p[:]); !errors.Is(err, ErrUnwritten) || errors.Is(err, ErrInvalid) {
		t.Errorf("zeros: %v", err) // B36
	}
	p[80] = 1
	if err := new(Header).Decode(p[:]); !errors.Is(err, ErrInvalid) {
		t.Errorf("zero magic before other bytes: %v", err)
	}
	h := good
	h.Encode(p[:])
	for n := range HeaderBytes {
		if err := new(Header).Decode(p[:n]); !errors.Is(err, ErrInvalid) {
			t.Errorf("%d bytes: %v", n, err)
		}
	}
	p[offVersion] = 2
	if err := new(Header).Decode(p[:]); !errors.Is(err, ErrInvalid) {
		t.Errorf("version 2: %v", err)
	}
}

func TestStampLeavesProducersPart(t *testing.T) {
	p := sample(t, CodecNone, 3, 50, 1)
	q := bytes.Clone(p)
	crc := Stamp(q, 77, 123456, 8, 99, 0xabad1dea)
	if !bytes.Equal(p[:offPosition], q[:offPosition]) || !bytes.Equal(p[HeaderBytes:], q[HeaderBytes:]) {
		t.Error("Stamp touched the producer's bytes")
	}
	h, _, err := collect(q)
	if err != nil {
		t.Fatal(err)
	}
	if h.Position != 77 || h.FirstID != 123456 || h.Epoch != 8 || h.Appended != 99 || h.PrevCRC != 0xabad1dea ||
		h.CRC != crc {
		t.Errorf("stamped %+v, crc %x", h, crc)
	}
}

// B31: every single-bit flip in a 64 KiB run of batches is detected, and damage never spreads to a neighbour: the other
// batches still read as they were.
func TestEveryBitFlipIsDetected(t *testing.T) {
	var run []byte
	var starts []int
	for i := 0; len(run) < 64<<10; i++ {
		starts = append(starts, len(run))
		run = append(run, sample(t, Codec(i%3), 1+i%7, 40+i*37%2000, uint64(i))...)
	}
	verify := func(p []byte) bool {
		var h Header
		return h.Decode(p) == nil && h.Size() == len(p) && VerifyBody(&h, p[HeaderBytes:]) == nil
	}
	flips := 0
	for i, from := range starts {
		to := len(run)
		if i+1 < len(starts) {
			to = starts[i+1]
		}
		p := run[from:to]
		if !verify(p) {
			t.Fatalf("batch %d does not verify", i)
		}
		for bit := range len(p) * 8 {
			p[bit/8] ^= 1 << (bit % 8)
			if verify(p) {
				t.Fatalf("batch %d: flipped bit %d of byte %d is not detected", i, bit%8, bit/8)
			}
			p[bit/8] ^= 1 << (bit % 8)
			flips++
		}
	}
	if flips < 64<<13 {
		t.Fatalf("only %d flips", flips)
	}
}

func TestBuilderBounds(t *testing.T) {
	var b Builder
	if _, err := b.Seal(0); err == nil {
		t.Error("an empty batch was sealed")
	}
	b.Reset(CodecNone)
	if err := b.Add(&Record{Headers: make([]KV, MaxHeaderCount+1)}); err == nil {
		t.Error("too many headers were taken")
	}
	if err := b.Add(&Record{Body: make([]byte, MaxBatchBytes)}); err == nil {
		t.Error("a message larger than a batch was taken")
	}
	room := MaxBatchBytes - HeaderBytes
	if err := b.Add(&Record{Body: make([]byte, room-6)}); err != nil { // size 4, attributes, delta
		t.Fatal(err)
	}
	if err := b.Add(&Record{}); err == nil {
		t.Error("a record beyond MaxBatchBytes was taken")
	}
	p, err := b.Seal(0)
	if err != nil || len(p) != MaxBatchBytes {
		t.Fatalf("largest batch: %d bytes, %v", len(p), err)
	}
	if _, got, err := collect(p); err != nil || len(got) != 1 {
		t.Fatalf("largest batch: %d records, %v", len(got), err)
	}
}

// A body that claims or inflates to more than MaxBatchBytes is refused, whatever its codec.
func TestDecompressIsBounded(t *testing.T) {
	big := make([]byte, MaxBatchBytes+1)
	for _, codec := range []Codec{CodecS2, CodecZstd} {
		p, err := compressBody(codec, nil, big)
		if err != nil {
			t.Fatal(err)
		}
		h := Header{Codec: codec, BodyBytes: uint32(len(p) - HeaderBytes), Count: 1}
		if out, err := DecompressBody(&h, p[HeaderBytes:], nil); !errors.Is(err, ErrInvalid) {
			t.Errorf("codec %d: %d bytes, %v", codec, len(out), err)
		}
		if p, err = compressBody(codec, nil, big[1:]); err != nil {
			t.Fatal(err)
		}
		if out, err := DecompressBody(&h, p[HeaderBytes:], nil); err != nil || len(out) != MaxBatchBytes {
			t.Errorf("codec %d, largest: %d bytes, %v", codec, len(out), err)
		}
	}
}

func TestCodecAllocations(t *testing.T) {
	rec := Record{Body: make([]byte, 100)}
	dst := make([]byte, 0, 1<<16)
	p := sample(t, CodecNone, 20, 100, 1)
	var it RecordIter
	var bi BatchIter
	run := append(bytes.Clone(p), p...)
	for name, fn := range map[string]func(){
		"AppendRecord": func() { dst = AppendRecord(dst[:0], &rec) },
		"Stamp":        func() { Stamp(p, 1, 2, 3, 4, 5) },
		"BatchIter and RecordIter": func() {
			n := 0
			for bi.Reset(run); ; {
				h, body, ok := bi.Next()
				if !ok {
					break
				}
				if VerifyBody(h, body) != nil {
					panic("verify")
				}
				for it.Reset(h, body); ; n++ {
					if _, ok := it.Next(); !ok {
						break
					}
				}
			}
			if n != 40 || bi.Err() != nil || it.Err() != nil {
				panic(fmt.Sprint(n, bi.Err(), it.Err()))
			}
		},
	} {
		if n := testing.AllocsPerRun(100, fn); n != 0 {
			t.Errorf("%s allocates %v times", name, n)
		}
	}
}

// golden compares got with the golden file, or with -update writes the file if it does not exist. Files of a released
// version are kept for ever and never rewritten.
func golden(t *testing.T, name string, got []byte) []byte {
	t.Helper()
	path := filepath.Join("testdata", "v1", name)
	want, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) && *update {
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, got, 0o644); err != nil {
			t.Fatal(err)
		}
		want, err = got, nil
	}
	if err != nil {
		t.Fatal(err)
	}
	return want
}

func TestGoldenBatches(t *testing.T) {
	for name, codec := range map[string]Codec{"none.batch": CodecNone, "s2.batch": CodecS2, "zstd.batch": CodecZstd} {
		t.Run(name, func(t *testing.T) {
			b := Builder{ProducerID: 0x1122334455667788, ProducerEpoch: 3, BaseSequence: 41}
			b.Reset(codec)
			recs := goldenRecords()
			for i := range recs {
				if err := b.Add(&recs[i]); err != nil {
					t.Fatal(err)
				}
			}
			p, err := b.Seal(1_700_000_000_000_000_000)
			if err != nil {
				t.Fatal(err)
			}
			Stamp(p, 9, 1000, 5, 1_700_000_000_000_001_000, 0xfeedf00d)
			want := golden(t, name, p)
			if codec == CodecNone && !bytes.Equal(p, want) { // only a compressor may change its output
				t.Error("the encoding changed")
			}
			h, got, err := collect(want)
			if err != nil {
				t.Fatal(err)
			}
			if err := equalRecords(got, recs); err != nil {
				t.Error(err)
			}
			if h.Position != 9 || h.FirstID != 1000 || h.Epoch != 5 || h.ProducerID != 0x1122334455667788 ||
				h.BaseSequence != 41 || h.PrevCRC != 0xfeedf00d {
				t.Errorf("header %+v", h)
			}
		})
	}
	t.Run("control.batch", func(t *testing.T) {
		body := []byte("the engine's bytes")
		h := Header{
			Flags: FlagControl, BodyBytes: uint32(len(body)), Created: 5, BodyCRC: Checksum(body), Position: 3, FirstID: 8,
			Epoch: 2, Appended: 6, PrevCRC: 1,
		}
		p := append(make([]byte, HeaderBytes), body...)
		h.Encode(p)
		if want := golden(t, "control.batch", p); !bytes.Equal(p, want) {
			t.Error("the encoding changed")
		}
		if _, got, err := collect(p); err != nil || len(got) != 0 {
			t.Errorf("a control batch has %d records, %v", len(got), err)
		}
	})
}

// Time deltas of one and two bytes are decoded apart from longer ones.
func TestTimeDeltasOfAllLengths(t *testing.T) {
	for _, delta := range []int64{0, 63, 64, -64, -65, 8191, 8192, -8192, -8193, 1 << 20, -1 << 20} {
		for _, want := range []Record{
			{TimeDelta: delta}, {TimeDelta: delta, Body: []byte("x")}, {TimeDelta: delta, Defer: 1, Body: []byte("x")},
		} {
			first := Record{TimeDelta: 5, Defer: 9, Headers: []KV{{[]byte("k"), []byte("v")}}, Body: []byte("first")}
			body := AppendRecord(AppendRecord(nil, &first), &want)
			var it RecordIter
			it.Reset(&Header{Count: 2}, body)
			it.NextRef()
			r := it.NextRef()
			if r == nil || r.TimeDelta != delta || r.Defer != want.Defer || r.Headers != nil ||
				!bytes.Equal(r.Body, want.Body) || it.NextRef() != nil || it.Err() != nil {
				t.Errorf("%+v came, not %+v; error %v", r, want, it.Err())
			}
		}
	}
}

// NextPlain stays at a record with a defer time, so that NextRef returns it.
func TestNextPlainStopsBeforeADelay(t *testing.T) {
	var body []byte
	records := []Record{
		{Body: []byte("a")}, {TimeDelta: 1000, Body: []byte("b")}, {Defer: 7, Body: []byte("c")}, {Body: []byte("d")},
	}
	for i := range records {
		body = AppendRecord(body, &records[i])
	}
	h := Header{Count: uint32(len(records))}
	var it RecordIter
	it.Reset(&h, body)
	for _, want := range records[:2] {
		if r := it.NextPlain(); r == nil || string(r.Body) != string(want.Body) || r.TimeDelta != want.TimeDelta {
			t.Fatalf("%+v came, not %+v", r, want)
		}
	}
	if r := it.NextPlain(); r != nil || it.NextPlain() != nil || it.Place(&h).Index != 2 {
		t.Errorf("%+v came in place of nothing, and then the walk is at %d", r, it.Place(&h).Index)
	}
	if r := it.NextRef(); r == nil || r.Defer != 7 {
		t.Errorf("the deferred record is %+v", r)
	}
	if r := it.NextPlain(); r == nil || string(r.Body) != "d" || it.NextPlain() != nil || it.Err() != nil {
		t.Errorf("the last record is %+v; error %v", r, it.Err())
	}
}

// Resume goes on at a remembered place, and ends as the walk from the start does.
func TestRecordIterResumes(t *testing.T) {
	p := sample(t, CodecNone, 20, 100, 1)
	var h Header
	if err := h.Decode(p); err != nil {
		t.Fatal(err)
	}
	body := p[HeaderBytes:]
	var whole, part RecordIter
	whole.Reset(&h, body)
	for i := uint32(0); ; i++ {
		at := whole.Place(&h)
		if at.Index != i {
			t.Fatalf("place %d has index %d", i, at.Index)
		}
		part.Resume(&h, body, at)
		want, more := whole.Next()
		got, ok := part.Next()
		if ok != more || !bytes.Equal(got.Body, want.Body) || part.Err() != nil {
			t.Fatalf("record %d: %q, %t, %v, want %q, %t", i, got.Body, ok, part.Err(), want.Body, more)
		}
		if !more {
			return
		}
	}
}

// A batch that nodes would refuse for its ratio is not compressed, and says what it becomes where it is.
func TestSealKeepsToTheRatio(t *testing.T) {
	for _, codec := range []Codec{CodecS2, CodecZstd} {
		for _, c := range []struct {
			body []byte
			want Codec
		}{
			{make([]byte, 1<<20), CodecNone},
			{make([]byte, FreeInflationBytes/2), codec},
			{bytes.Repeat([]byte("a line of a log, as they are\n"), 100), codec},
		} {
			var b Builder
			b.Reset(codec)
			if err := b.Add(&Record{Body: c.body}); err != nil {
				t.Fatal(err)
			}
			sealed, err := b.Seal(1)
			if err != nil {
				t.Fatal(err)
			}
			var h Header
			if err := h.Decode(sealed); err != nil || h.Codec != c.want {
				t.Errorf("%v: a body of %d bytes is sealed with codec %v, want %v (%v)", codec, len(c.body), h.Codec, c.want, err)
			}
			n, stated, err := InflatedBytes(&h, sealed[HeaderBytes:])
			if want := max(len(b.records), HeaderBytes) - HeaderBytes; n != want || !stated || err != nil {
				t.Errorf("%v: it becomes %d bytes (%v, %v), want %d", codec, n, stated, err, want)
			}
		}
	}
}
