package nsq

import (
	"bytes"
	"testing"
)

// The buffer of a large command goes with it, also if the next command has begun in it.
func TestLargeBufferDoesNotStay(t *testing.T) {
	var in input
	fill := func(p []byte, need int) {
		for len(p) > 0 {
			room := in.room(need)
			n := copy(room, p)
			in.filled(n, len(room))
			p = p[n:]
		}
	}
	const need = 3 << 20
	fill(bytes.Repeat([]byte("x"), need), need)
	fill([]byte("PUB"), need+3)
	in.r += need
	in.size = 0
	in.room(4)
	if got := len(in.buf.b); got > minReadBytes || string(in.unread()) != "PUB" {
		t.Errorf("%q is in a buffer of %d bytes", in.unread(), got)
	}
	// The next command is large, too, but less so.
	fill(bytes.Repeat([]byte("x"), need-3), need)
	in.r += need - 3
	fill([]byte("MPUB"), need)
	in.r = in.w - 4
	in.room(1 << 20)
	if got := len(in.buf.b); got > 1<<20 || string(in.unread()) != "MPUB" {
		t.Errorf("%q is in a buffer of %d bytes", in.unread(), got)
	}
}

// The read buffer of a stranger stays small, however much it sends at a time.
func TestStrangersHaveSmallBuffers(t *testing.T) {
	in := input{small: true}
	for range 10 {
		room := in.room(1)
		in.filled(len(room), len(room))
		in.r = in.w
		in.park()
	}
	if got := len(in.room(1)); got != minReadBytes {
		t.Errorf("the buffer has %d bytes", got)
	}
}
