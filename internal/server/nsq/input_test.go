package nsq

import (
	"bytes"
	"math/rand/v2"
	"testing"
)

// Bytes that Puts borrow neither move nor change, whatever is read behind them. No byte is lost or duplicated.
func TestInputKeepsBorrowedBytes(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	type loan struct {
		buf   *block
		bytes []byte
		want  []byte
	}
	var in input
	var loans []loan
	var written, taken []byte
	next := byte(0)
	for range 20000 {
		room := in.room(rnd.IntN(3 << minReadBytesLog))
		if len(room) == 0 {
			t.Fatal("no room")
		}
		n := rnd.IntN(len(room)) + 1
		if rnd.IntN(3) > 0 {
			n = min(n, 200)
		}
		for i := range n {
			room[i] = next
			next++
		}
		written = append(written, room[:n]...)
		in.filled(n, len(room))
		use := rnd.IntN(len(in.unread()) + 1)
		if rnd.IntN(4) == 0 {
			use = len(in.unread())
		}
		if b := in.unread()[:use]; use > 0 {
			taken = append(taken, b...)
			if rnd.IntN(2) == 0 {
				in.buf.retain()
				loans = append(loans, loan{in.buf, b, bytes.Clone(b)})
			}
		}
		in.r += use
		if rnd.IntN(10) == 0 {
			in.park()
		}
		for len(loans) > rnd.IntN(50) {
			i := rnd.IntN(len(loans))
			l := loans[i]
			if !bytes.Equal(l.bytes, l.want) {
				t.Fatal("borrowed bytes changed")
			}
			l.buf.release()
			loans = append(loans[:i], loans[i+1:]...)
		}
	}
	taken = append(taken, in.unread()...)
	if !bytes.Equal(taken, written) {
		t.Fatal("what came out is not what was read")
	}
}

const minReadBytesLog = 12

// A length prefix alone must not make the server allocate the length that it announces.
func TestInputGrowsWithTheBytesThatCame(t *testing.T) {
	var in input
	const need = 5 << 20
	for have := 0; have < need; {
		room := in.room(need)
		if most := max(minReadBytes, maxReadBytes, 4*have); len(in.buf.b) > most {
			t.Fatalf("%d bytes came and the buffer has %d", have, len(in.buf.b))
		}
		n := min(len(room), need-have, 1000)
		in.filled(n, len(room))
		have += n
	}
	if len(in.unread()) != need {
		t.Fatalf("%d bytes", len(in.unread()))
	}
	in.drop()
}

func TestIdleInputHoldsNoBuffer(t *testing.T) {
	var in input
	in.filled(100, len(in.room(0)))
	in.r += 100
	in.buf.retain() // a Put borrows
	buf := in.buf
	in.park()
	if in.buf != nil {
		t.Error("still holds the buffer")
	}
	if buf.refs.Load() != 1 {
		t.Errorf("%d references, want the Put's", buf.refs.Load())
	}
	buf.release()
	in.filled(3, len(in.room(0)))
	in.park()
	if string(in.unread()) == "" {
		t.Error("unread bytes were given up")
	}
}
