package channel

import (
	"sync"

	"penstock/internal/node/inflate"
	"penstock/segment"
)

// MaxInflatedBytes bounds the decompressed batches that the channels of a node keep between their turns. Beyond it a
// channel decompresses its batch again in each turn.
const MaxInflatedBytes = 64 << 20

// inflated is the decompressed body of the batch from which the channel reads. A turn that ends within the batch leaves
// it for the next one, like the bytes of ahead; when the channel has read all that there is, it keeps none. So a client
// whose batches grow, in many channels, takes no more memory than the bound and what the turns that run now need.
// Channel.mu guards all.
type inflated struct {
	body *[]byte // from bodies; nil: there is none
	of   batchKey
	kept int // bytes of memory that are counted in Node.inflatedBytes
}

// bodies is a pool of the buffers into which inflated decompresses.
var bodies = sync.Pool{New: func() any { return new([]byte) }}

// open returns the decompressed body of a batch. It is valid until the next call of open, close or drop. mu is held.
func (f *inflated) open(of batchKey, h *segment.Header, body []byte) ([]byte, error) {
	if f.body != nil && h.CRC != 0 && f.of == of {
		return *f.body, nil
	}
	if f.body == nil {
		f.body = bodies.Get().(*[]byte)
	}
	f.of = batchKey{}
	out, err := inflate.Stored(h, body, *f.body)
	if err == nil {
		*f.body, f.of = out, of
	}
	return out, err
}

// close ends what a turn reads without waiting for a device. The body is kept if MaxInflatedBytes allows it. mu is
// held.
func (f *inflated) close(n *Shared) {
	if f.body == nil {
		return
	}
	more := cap(*f.body) - f.kept
	if more == 0 {
		return
	}
	f.kept += more
	if n.inflatedBytes.Add(int64(more)) > MaxInflatedBytes {
		f.drop(n)
	}
}

// drop releases the body, kept or not. mu is held.
func (f *inflated) drop(n *Shared) {
	if f.body == nil {
		return
	}
	n.inflatedBytes.Add(-int64(f.kept))
	bodies.Put(f.body)
	f.body, f.of, f.kept = nil, batchKey{}, 0
}

// plain returns the decompressed body of the batch at offset at. It is valid until the next call. mu is held.
func (r *channelReader) plain(cur *cursor, at segment.Offset, h *segment.Header, body []byte) ([]byte, error) {
	if h.Codec == segment.CodecNone {
		return body, nil
	}
	return r.inflated.open(batchKey{cur.number, at, h.CRC}, h, body)
}
