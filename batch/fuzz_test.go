package batch

import (
	"errors"
	"testing"
)

func FuzzBatch(f *testing.F) {
	for _, c := range []Codec{CodecNone, CodecS2, CodecZstd} {
		f.Add(sample(f, c, 4, 60, uint64(c)))
	}
	f.Add(make([]byte, HeaderBytes))
	f.Fuzz(func(t *testing.T, p []byte) {
		var h Header
		if err := h.Decode(p); err != nil {
			if !errors.Is(err, ErrInvalid) && !errors.Is(err, ErrUnwritten) {
				t.Fatalf("untyped error %v", err)
			}
			return
		}
		var back [HeaderBytes]byte
		want := h
		h.Encode(back[:])
		if string(back[:]) != string(p[:HeaderBytes]) || h != want {
			t.Fatalf("a decoded header does not encode to itself: %+v", h)
		}
		_, _, _ = collect(p)
	})
}

// FuzzRecords gives arbitrary bodies to the record iterator, as if their checksum had been correct.
func FuzzRecords(f *testing.F) {
	recs := goldenRecords()
	var body []byte
	for i := range recs {
		body = AppendRecord(body, &recs[i])
	}
	f.Add(uint32(len(recs)), body)
	f.Add(uint32(1), []byte{0x80})
	f.Fuzz(func(t *testing.T, count uint32, body []byte) {
		var it RecordIter
		h := Header{Count: count, BodyBytes: uint32(len(body))}
		var seen uint32
		var again []Record
		for it.Reset(&h, body); ; seen++ {
			r, ok := it.Next()
			if !ok {
				break
			}
			if len(r.Body) > len(body) || len(r.Headers) > MaxHeaderCount {
				t.Fatalf("record out of bounds: %d bytes, %d headers", len(r.Body), len(r.Headers))
			}
			if len(again) < 64 {
				r.Headers = append([]KV(nil), r.Headers...)
				again = append(again, r)
			}
		}
		if err := it.Err(); err == nil && seen != count {
			t.Fatalf("%d of %d records and no error", seen, count)
		} else if err != nil && !errors.Is(err, ErrInvalid) {
			t.Fatalf("untyped error %v", err)
		}
		for i := range again { // records that were read can be written and read again
			var one RecordIter
			one.Reset(&Header{Count: 1}, AppendRecord(nil, &again[i]))
			r, ok := one.Next()
			if !ok || equalRecords([]Record{r}, again[i:i+1]) != nil {
				t.Fatalf("record %d does not survive a round trip: %+v, %v", i, r, one.Err())
			}
		}
	})
}

// FuzzDecompress gives arbitrary bytes to the decompressors. They return an error or at most MaxBatchBytes.
func FuzzDecompress(f *testing.F) {
	for _, c := range []Codec{CodecS2, CodecZstd} {
		f.Add(uint8(c), sample(f, c, 4, 60, uint64(c))[HeaderBytes:])
	}
	f.Fuzz(func(t *testing.T, codec uint8, body []byte) {
		h := Header{Codec: Codec(codec), BodyBytes: uint32(len(body))}
		out, err := DecompressBody(&h, body, nil)
		if err == nil && len(out) > MaxBatchBytes && h.Codec != CodecNone {
			t.Fatalf("inflated to %d bytes", len(out))
		}
		if err != nil && !errors.Is(err, ErrInvalid) {
			t.Fatalf("untyped error %v", err)
		}
	})
}
