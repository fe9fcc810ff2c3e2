package nsq

import "syscall"

const (
	// minReadBytes is the size of the read buffer of a quiet connection, maxReadBytes the size to which it grows on a
	// busy one. A larger command gets its own buffer, which grows as the bytes arrive.
	minReadBytes = minBlockBytes
	maxReadBytes = 256 << 10
)

// input holds a connection's unread bytes, buf.b[r:w]. It belongs to the reader. Commands are slices of buf, and a Put
// borrows the bodies of its messages from it. A block is released when the reader has moved on to another one and the
// last Put that borrows from it is answered.
type input struct {
	buf  *block // nil while nothing is unread and the reader waits
	r, w int    // 0 ≤ r ≤ w ≤ len(buf.b)
	size int    // of the next buffer, if at least minReadBytes: ≤ maxReadBytes

	// small: the next buffer is no larger than the command in it needs, however much the client sends at a time.
	small bool
}

func (in *input) unread() []byte {
	if in.buf == nil {
		return nil
	}
	return in.buf.b[in.r:in.w]
}

// room returns the free space for the next bytes, which is never empty. need is the total length of the first unread
// command, as far as known. room never moves bytes that a Put borrows.
func (in *input) room(need int) []byte {
	if in.buf == nil {
		in.buf = newBlock(max(in.size, minReadBytes))
		in.r, in.w = 0, 0
	}
	have := in.w - in.r
	alone := in.buf.refs.Load() == 1 // only the reader adds references, so 1 stays 1
	if have == 0 && alone {
		in.r, in.w = 0, 0
	}
	// The buffer of a large command must not outlive it: a few bytes of the next command would keep it.
	outgrown := len(in.buf.b) > maxReadBytes && blockBytes(max(in.size, need)) < len(in.buf.b)
	if free := len(in.buf.b) - in.w; free >= len(in.buf.b)/4 && !outgrown {
		return in.buf.b[in.w:]
	}
	// A length prefix alone must not cause a large allocation: the buffer has at most four times the bytes that have
	// arrived, including the rounding to a size class.
	want := max(in.size, minReadBytes, min(need, 2*have))
	if alone && !outgrown && want <= len(in.buf.b) && in.r >= len(in.buf.b)/4 {
		copy(in.buf.b, in.unread())
	} else {
		next := newBlock(max(want, have+have/2))
		copy(next.b, in.unread())
		in.buf.release()
		in.buf = next
	}
	in.r, in.w = 0, have
	return in.buf.b[in.w:]
}

// filled accounts for n bytes that were read into the last room, which had free bytes.
func (in *input) filled(n, free int) {
	in.w += n
	switch {
	case in.small:
	case n == free:
		in.size = min(max(in.size, minReadBytes)*2, maxReadBytes)
	case n < in.size/16:
		in.size = max(in.size/2, minReadBytes)
	}
}

// park releases the buffer if nothing is unread, before the reader waits. So an idle connection has no buffer.
func (in *input) park() {
	if in.buf != nil && in.r == in.w {
		in.buf.release()
		in.buf = nil
		in.r, in.w = 0, 0
	}
}

// drop releases the buffer for good.
func (in *input) drop() {
	if in.buf != nil {
		in.buf.release()
		in.buf = nil
	}
	in.r, in.w = 0, 0
}

// readOnce tries once to read from the socket. On EAGAIN it releases the buffer, unless the buffer has unread bytes.
func (in *input) readOnce(fd uintptr, need int) (n int, err error) {
	room := in.room(need)
	for {
		n, err = syscall.Read(int(fd), room)
		if err != syscall.EINTR {
			break
		}
	}
	if err == syscall.EAGAIN {
		in.park()
	} else if err == nil && n > 0 {
		in.filled(n, len(room))
	}
	return n, err
}
