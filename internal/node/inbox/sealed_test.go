package inbox

import (
	"bytes"
	"testing"

	"penstock/batch"
)

// A compressed batch is verified in memory that is used again.
func TestMeasureSealedAllocates(t *testing.T) {
	l := NewLimits(Sizes{MaxBatchBytes: 1 << 20, MaxMessageBytes: 1 << 20, MaxHeaderBytes: 1 << 16})
	for name, codec := range map[string]batch.Codec{"none": batch.CodecNone, "s2": batch.CodecS2} {
		var b batch.Builder
		b.Reset(codec)
		for range 1000 {
			if err := b.Add(&batch.Record{Body: bytes.Repeat([]byte("body "), 20)}); err != nil {
				t.Fatal(err)
			}
		}
		sealed, err := b.Seal(1)
		if err != nil {
			t.Fatal(err)
		}
		p := new(Put)
		p.Kind, p.Special = Sealed, &Special{Sealed: sealed}
		// The pool of this memory may be emptied in between; AllocsPerRun rounds down.
		if n := testing.AllocsPerRun(200, func() {
			if err := l.Measure(p); err != nil {
				t.Fatal(err)
			}
		}); n != 0 {
			t.Errorf("%s: %v allocations per batch", name, n)
		}
	}
}

// A delay in a sealed batch is refused, whether the batch's flags say so or not: no fold and no limit would know of the
// message that waits.
func TestMeasureSealedRefusesDelays(t *testing.T) {
	l := NewLimits(Sizes{MaxBatchBytes: 1 << 20, MaxMessageBytes: 1 << 20, MaxHeaderBytes: 1 << 16})
	body := batch.AppendRecord(make([]byte, batch.HeaderBytes), &batch.Record{Defer: 1000, Body: []byte("x")})
	for _, flags := range []batch.Flags{batch.FlagDefer, 0} {
		h := batch.Header{
			Flags: flags, Count: 1, BodyBytes: uint32(len(body) - batch.HeaderBytes),
			BodyCRC: batch.Checksum(body[batch.HeaderBytes:]),
		}
		h.Encode(body)
		p := new(Put)
		p.Kind, p.Special = Sealed, &Special{Sealed: body}
		if l.Measure(p) == nil {
			t.Errorf("flags %#x: it is taken", flags)
		}
	}
}
