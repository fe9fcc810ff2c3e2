package wire

import "sync"

// Buffer holds the body of a frame until it is sent. It is the frame's Owner, so it returns to its pool after that.
// Only the holder of a Buffer may change Bytes.
type Buffer struct{ Bytes []byte }

var buffers = sync.Pool{New: func() any { return new(Buffer) }}

// maxPooledBytes is the largest capacity of a Buffer that the pool keeps.
const maxPooledBytes = 1 << 20

// NewBuffer returns an empty Buffer, perhaps with capacity from an earlier use.
func NewBuffer() *Buffer {
	b := buffers.Get().(*Buffer)
	b.Bytes = b.Bytes[:0]
	return b
}

func (b *Buffer) Release() {
	if cap(b.Bytes) <= maxPooledBytes {
		buffers.Put(b)
	}
}
