package batch

import (
	"bytes"
	"testing"
)

func BenchmarkAppendRecord(b *testing.B) {
	dst := make([]byte, 0, 256)
	r := Record{Body: bytes.Repeat([]byte("x"), 100)}
	b.ReportAllocs()
	for b.Loop() {
		dst = AppendRecord(dst[:0], &r)
	}
}

func BenchmarkStamp(b *testing.B) {
	p := sample(b, CodecNone, 10, 100, 1)
	b.ReportAllocs()
	for b.Loop() {
		Stamp(p, 1, 2, 3, 4, 5)
	}
}

func BenchmarkRecordIter(b *testing.B) {
	p := sample(b, CodecNone, 500, 100, 1)
	var h Header
	_ = h.Decode(p)
	var it RecordIter
	n, size := 0, 0
	b.ReportAllocs()
	for b.Loop() {
		for it.Reset(&h, p[HeaderBytes:]); ; n++ {
			r := it.NextRef()
			if r == nil {
				break
			}
			size += len(r.Body)
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(n), "ns/rec")
}
