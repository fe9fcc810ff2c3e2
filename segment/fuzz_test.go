package segment

import (
	"bytes"
	"encoding/binary"
	"errors"
	"testing"

	"penstock/segment/aio/faultaio"
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

func FuzzSegmentHeader(f *testing.F) {
	h := goldenSegHeader()
	block := make([]byte, SegmentHeaderBytes)
	h.encode(block)
	f.Add(block)
	f.Fuzz(func(t *testing.T, p []byte) {
		if len(p) >= segFieldsBytes { // get past the checksum, to the rules behind it
			p = append(p[:segFieldsBytes:segFieldsBytes], make([]byte, SegmentHeaderBytes-segFieldsBytes)...)
			binary.LittleEndian.PutUint32(p[offSegCRC:], Checksum(p[:offSegCRC]))
		}
		var h segHeader
		if h.decode(p) != nil {
			return
		}
		back := make([]byte, SegmentHeaderBytes)
		if h.encode(back); !bytes.Equal(back, p) {
			t.Fatalf("a decoded header does not encode to itself: %+v", h)
		}
	})
}

func FuzzIndex(f *testing.F) {
	f.Add(encodeIndex(&indexHeader{id: testIdentity, end: 100}, []indexEntry{{}, {50, 1, 1, 1}}))
	f.Fuzz(func(t *testing.T, p []byte) {
		if len(p) >= idxHeaderBytes {
			binary.LittleEndian.PutUint32(p[offIdxEntriesCRC:], Checksum(p[idxHeaderBytes:]))
			binary.LittleEndian.PutUint32(p[offIdxCRC:], Checksum(p[:offIdxCRC]))
		}
		h, entries, err := decodeIndex(p)
		if err != nil {
			return
		}
		if !bytes.Equal(encodeIndex(&h, entries), p) {
			t.Fatalf("a decoded index does not encode to itself: %+v", h)
		}
	})
}

// FuzzStoredBytes overwrites part of a stored segment (and its index) with arbitrary bytes. Reads return what was
// written, or an error; they never panic and never return other bytes.
func FuzzStoredBytes(f *testing.F) {
	base := newWorld(f, memoryDisk())
	base.fill(newRand(50), 40)
	base.settle()
	disk := base.disk.(*faultaio.Disk)
	f.Add(uint16(4096), false, []byte{0, 0, 0, 0})
	f.Add(uint16(5000), false, base.model[3].data)
	f.Add(uint16(64), true, []byte{1})
	f.Fuzz(func(t *testing.T, at uint16, index bool, p []byte) {
		w := *base
		w.t = t
		d := disk.Kill(1)
		w.disk = d
		name := w.dir + "/0000000001.seg"
		if index {
			name = indexPath(name)
		}
		data, err := d.ReadFile(name, 1<<20)
		if err != nil {
			t.Fatal(err)
		}
		off := int(at) % len(data)
		d.Corrupt(name, p[:min(len(p), len(data)-off)], int64(off))
		w.open(w.st)
		defer w.log.Close()
		got, damaged := w.readAround()
		if index && len(damaged) != 0 {
			t.Fatalf("a damaged index hides batches %v", damaged)
		}
		if n := len(got) + len(damaged); n != len(w.model) {
			t.Fatalf("%d of %d batches", n, len(w.model))
		}
		w.seekAround(1)
	})
}
