// Package inflate decompresses the bodies of batches on a node. It bounds how many goroutines decompress large bodies
// at the same time. The inbox, partitions and channels use it. It imports only package batch.
package inflate

import (
	"runtime"

	"penstock/batch"
)

// slots has one element for each goroutine that decompresses a large body. Its capacity is half of the processors, so
// that large bodies leave the other half to requests with small messages. A goroutine that holds a slot waits for
// nothing else, so every goroutine that waits for a slot gets one.
var slots = make(chan struct{}, max(1, runtime.GOMAXPROCS(0)/2))

// Batch decompresses the body of a batch into scratch, like batch.DecompressWithin. If the body may become larger than
// batch.FreeInflationBytes, it first waits for a slot.
func Batch(h *batch.Header, body, scratch []byte, most int) ([]byte, error) {
	if h.Codec != batch.CodecNone && most > batch.FreeInflationBytes {
		slots <- struct{}{}
		defer func() { <-slots }()
	}
	return batch.DecompressWithin(h, body, scratch, most)
}

// Stored decompresses the body of a batch that was read from a log. The limit for its size was checked when it was
// stored. If the decompressed size is above batch.FreeInflationBytes, or the body does not state it, Stored first waits
// for a slot.
func Stored(h *batch.Header, body, scratch []byte) ([]byte, error) {
	most, stated, err := batch.InflatedBytes(h, body)
	if err != nil {
		return nil, err
	}
	if stated && most <= batch.FreeInflationBytes {
		return batch.DecompressBody(h, body, scratch)
	}
	slots <- struct{}{}
	defer func() { <-slots }()
	return batch.DecompressBody(h, body, scratch)
}
