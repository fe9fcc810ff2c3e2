package channel

import (
	"testing"

	"github.com/klauspost/compress/s2"

	"penstock/batch"
	"penstock/segment"
)

// Channels whose batches grow keep no more of them between their turns than the node allows together, and nothing when
// they end.
func TestInflatedIsBounded(t *testing.T) {
	const size, channels = 4 << 20, 40
	n := new(Shared)
	small := s2.Encode(nil, batch.AppendRecord(nil, &batch.Record{Body: make([]byte, size)}))
	h := segment.Header{Codec: batch.CodecS2, CRC: 1}
	var all [channels]inflated
	kept := 0
	for i := range all {
		of := batchKey{partition: uint32(i)}
		body, err := all[i].open(of, &h, small)
		if err != nil || len(body) < size {
			t.Fatalf("%d bytes: %v", len(body), err)
		}
		if again, err := all[i].open(of, &h, nil); err != nil || &again[0] != &body[0] {
			t.Errorf("the turn decompresses its batch twice (%v)", err)
		}
		all[i].close(n)
		all[i].close(n)
		if all[i].body != nil {
			kept += cap(*all[i].body)
		}
	}
	if kept > MaxInflatedBytes || kept < MaxInflatedBytes-2*size || n.inflatedBytes.Load() != int64(kept) {
		t.Errorf("%d bytes are kept, and %d counted; at most %d", kept, n.inflatedBytes.Load(), MaxInflatedBytes)
	}
	for i := range all {
		all[i].drop(n)
		all[i].drop(n)
	}
	if left := n.inflatedBytes.Load(); left != 0 {
		t.Errorf("%d bytes are counted of channels that keep nothing", left)
	}
}
