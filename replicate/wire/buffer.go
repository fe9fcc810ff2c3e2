package wire

import "sync"

// Buffer holds the body of a frame until it is sent: as the frame's Owner it goes back to its pool then. Whoever has it
// may change Bytes; nobody else does.
type Buffer struct{ Bytes []byte }

var buffers = sync.Pool{New: func() any { return new(Buffer) }}

// maxPooledBytes is the most that a Buffer in the pool has room for.
const maxPooledBytes = 1 << 20

// NewBuffer returns an empty Buffer, which may have room.
func NewBuffer() *Buffer {
	b := buffers.Get().(*Buffer)
	b.Bytes = b.Bytes[:0]
	return b
}

// Release implements netproto.Releaser.
func (b *Buffer) Release() {
	if cap(b.Bytes) <= maxPooledBytes {
		buffers.Put(b)
	}
}
