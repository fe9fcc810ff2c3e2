package base

import (
	"runtime"

	"penstock/batch"
)

// inflating has a token of each goroutine that decompresses a large batch: half of the processors do that at most, so
// that the others are left to those whose messages are small. Who has a token waits for nothing but a processor.
var inflating = make(chan struct{}, max(1, runtime.GOMAXPROCS(0)/2))

// Inflate decompresses the body of a batch into scratch, as batch.DecompressWithin does. It waits for its turn if the
// body may become larger than batch.FreeInflationBytes.
func Inflate(h *batch.Header, body, scratch []byte, most int) ([]byte, error) {
	if h.Codec != batch.CodecNone && most > batch.FreeInflationBytes {
		inflating <- struct{}{}
		defer func() { <-inflating }()
	}
	return batch.DecompressWithin(h, body, scratch, most)
}

// InflateStored is Inflate for a body that is in a log.
func InflateStored(h *batch.Header, body, scratch []byte) ([]byte, error) {
	most, stated, err := batch.InflatedBytes(h, body)
	if err != nil {
		return nil, err
	}
	if stated && most <= batch.FreeInflationBytes {
		return batch.DecompressBody(h, body, scratch)
	}
	inflating <- struct{}{}
	defer func() { <-inflating }()
	return batch.DecompressBody(h, body, scratch)
}
