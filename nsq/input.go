package nsq

import "syscall"

const (
	// minReadBytes is the read buffer of a quiet connection, maxReadBytes what a busy one grows to. A command that is
	// larger gets a buffer of its own that grows with the bytes that have come.
	minReadBytes = minBlockBytes
	maxReadBytes = 256 << 10
)

// input is a connection's unread bytes, buf.b[r:w]. It belongs to the reader. Commands are slices of it, and a Put
// borrows the bodies of its messages from buf, which is released when the last of them is answered.
type input struct {
	buf  *block // nil while nothing is unread and the connection waits
	r, w int    // 0 ≤ r ≤ w ≤ len(buf.b)
	size int    // of the next buffer, at least minReadBytes of it: ≤ maxReadBytes
}

func (in *input) unread() []byte {
	if in.buf == nil {
		return nil
	}
	return in.buf.b[in.r:in.w]
}

// room returns where the next bytes go, never empty. need is how many bytes the command at the start of
// unread has in all, as far as known. Bytes that others borrow are not moved.
func (in *input) room(need int) []byte {
	if in.buf == nil {
		in.buf = newBlock(max(in.size, minReadBytes))
		in.r, in.w = 0, 0
	}
	have := in.w - in.r
	alone := in.buf.refs.Load() == 1 // only the reader retains, so 1 stays 1
	if have == 0 && alone {
		in.r, in.w = 0, 0
	}
	if free := len(in.buf.b) - in.w; free >= len(in.buf.b)/4 {
		return in.buf.b[in.w:]
	}
	// A length prefix alone allocates nothing: at most four times what has come, with the rounding to a class.
	want := max(in.size, minReadBytes, min(need, 2*have))
	if alone && want <= len(in.buf.b) && in.r >= len(in.buf.b)/4 {
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

// filled says that n bytes were read into the last room of free bytes.
func (in *input) filled(n, free int) {
	in.w += n
	switch {
	case n == free:
		in.size = min(max(in.size, minReadBytes)*2, maxReadBytes)
	case n < in.size/16:
		in.size = max(in.size/2, minReadBytes)
	}
}

// park gives the buffer back before the connection waits, if nothing is unread: an idle connection holds none.
func (in *input) park() {
	if in.buf != nil && in.r == in.w {
		in.buf.release()
		in.buf = nil
		in.r, in.w = 0, 0
	}
}

// drop ends the use of the input.
func (in *input) drop() {
	if in.buf != nil {
		in.buf.release()
		in.buf = nil
	}
	in.r, in.w = 0, 0
}

// readOnce makes one attempt to read from the socket. With EAGAIN nothing was there, and the buffer is given back,
// unless it has unread bytes.
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
