package aio

// Limits of the aligned buffers for unaligned reads of direct files.
const (
	bounceBytes = 256 << 10
	maxBounces  = 4 // buffers kept for the next read; more concurrent readers map and unmap their own
)

// bouncePool keeps a few aligned buffers outside the heap.
type bouncePool struct{ free chan []byte }

func (p bouncePool) get() []byte {
	select {
	case buf := <-p.free:
		return buf
	default:
		buf, _ := AlignedBytes(bounceBytes)
		return buf
	}
}

func (p bouncePool) put(buf []byte) {
	select {
	case p.free <- buf:
	default:
		unmapAnon(buf)
	}
}

func (p bouncePool) close() {
	for {
		select {
		case buf := <-p.free:
			unmapAnon(buf)
		default:
			return
		}
	}
}
