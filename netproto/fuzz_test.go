package netproto

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"math/rand/v2"
	"net"
	"testing"
	"time"
)

func seedFrames() [][]byte {
	hello := testHello("n1")
	return [][]byte{
		rawFrame(Header{Type: TypeHello}, hello.AppendTo(nil)),
		controlBytes(TypePing, StatusOK, 7, ""),
		controlBytes(TypeGoodbye, StatusClosed, 0, "closed"),
		rawFrame(Header{Type: TypeError, Status: StatusRejected, Request: 9}, []byte("unknown type")),
		rawFrame(Header{Type: TypePutMessagesOnReplica, Flags: FlagSelfChecked, HeadBytes: 8, Stream: 3},
			[]byte("12345678batches")),
	}
}

// FuzzHeader: bytes that parse as a header encode to the same bytes, and the header keeps its promises.
func FuzzHeader(f *testing.F) {
	for _, p := range seedFrames() {
		f.Add(p[:HeaderBytes], false)
		f.Add(p[:HeaderBytes], true)
	}
	f.Fuzz(func(t *testing.T, p []byte, fix bool) {
		if fix && len(p) >= HeaderBytes { // get past the checksum, to the other rules
			p = bytes.Clone(p)
			reseal(p)
		}
		h, err := ParseHeader(p)
		if err != nil {
			if !errors.Is(err, ErrCorrupt) && !errors.Is(err, ErrInvalid) && !errors.Is(err, ErrTooBig) &&
				!errors.Is(err, ErrVersion) {
				t.Fatal(err)
			}
			return
		}
		if h.CheckedBytes() > int(h.PayloadBytes) || h.PayloadBytes > MaxFrameBytes-HeaderBytes || h.Type == 0 {
			t.Fatalf("%+v", h)
		}
		var again [HeaderBytes]byte
		if h.Marshal(again[:]); !bytes.Equal(again[:], p[:HeaderBytes]) {
			t.Fatalf("% x\n% x", p[:HeaderBytes], again)
		}
	})
}

// FuzzHello: a Hello that parses is within its bounds, and encodes to the same bytes except for the extension and
// unprintable text.
func FuzzHello(f *testing.F) {
	hello := testHello("n1")
	hello.Text = "why"
	f.Add(hello.AppendTo(nil))
	f.Add(append(hello.AppendTo(nil), "more"...))
	hello.Features = FeatureProof
	f.Add(hello.AppendTo(nil))
	f.Add(make([]byte, helloFixedBytes))
	f.Fuzz(func(t *testing.T, p []byte) {
		h, err := ParseHello(p)
		if err != nil {
			if !errors.Is(err, ErrInvalid) {
				t.Fatal(err)
			}
			return
		}
		again := h.AppendTo(nil) // panics if out of bounds
		if len(again) > MaxHelloBytes-HeaderBytes {
			t.Fatalf("%d bytes", len(again))
		}
		if h2, err := ParseHello(again); err != nil || h2 != h {
			t.Fatalf("%+v, again %+v, %v", h, h2, err)
		}
		if fixed := helloFixedBytes + len(h.NodeID); len(h.Text) == int(binary.LittleEndian.Uint16(p[offTextBytes:])) &&
			!bytes.Equal(again[:fixed], p[:fixed]) {
			t.Fatalf("% x\n% x", p, again)
		}
	})
}

// script is a peer that sends the given bytes in the given pieces, and accepts whatever is written to it.
type script struct {
	data []byte
	rnd  *rand.Rand
}

func (s *script) Read(p []byte) (int, error) {
	if len(s.data) == 0 {
		return 0, io.EOF
	}
	n := 1 + s.rnd.IntN(1<<s.rnd.IntN(18))
	n = copy(p[:min(n, len(p))], s.data)
	s.data = s.data[n:]
	return n, nil
}

func (s *script) Write(p []byte) (int, error)      { return len(p), nil }
func (s *script) Close() error                     { return nil }
func (s *script) LocalAddr() net.Addr              { return &net.TCPAddr{} }
func (s *script) RemoteAddr() net.Addr             { return &net.TCPAddr{} }
func (s *script) SetDeadline(time.Time) error      { return nil }
func (s *script) SetReadDeadline(time.Time) error  { return nil }
func (s *script) SetWriteDeadline(time.Time) error { return nil }

// expect reads a stream in the simplest way. It returns the frames that a handler must see, and how the connection must
// end.
func expect(data []byte, maxFrame int) (frames []Received, end error) {
	for {
		if len(data) < HeaderBytes {
			return frames, ErrPeerGone
		}
		h, err := ParseHeader(data)
		if err != nil {
			return frames, err
		}
		if HeaderBytes+int(h.PayloadBytes) > maxFrame {
			return frames, ErrTooBig
		}
		data = data[HeaderBytes:]
		if len(data) < int(h.PayloadBytes) {
			return frames, ErrPeerGone
		}
		payload := data[:h.PayloadBytes]
		data = data[h.PayloadBytes:]
		if err := h.checkPayload(payload); err != nil {
			return frames, err
		}
		switch h.Type {
		case TypeHello, TypeHelloAck, TypeChallenge, TypeProof:
			return frames, ErrInvalid
		case TypeGoodbye:
			return frames, ErrGoodbye
		case TypePing, TypePong:
		default:
			frames = append(frames, Received{Header: h, Payload: payload})
		}
	}
}

// play runs a connection on the bytes, cut into pieces by the seed, with a handler that keeps some of the frames for a
// while.
func play(t *testing.T, data []byte, seed uint64, maxFrame uint32) {
	want, end := expect(data, int(maxFrame))
	rnd := rand.New(rand.NewPCG(seed, 2))
	var kept []Received
	got := 0
	check := func(f *Received, i int) {
		if f.Header != want[i].Header || !bytes.Equal(f.Payload, want[i].Payload) {
			t.Errorf("frame %d is %+v with %d bytes, want %+v", i, f.Header, len(f.Payload), want[i].Header)
		}
	}
	s := newSink(func(_ *Conn, frames []Received) error {
		for i := range frames {
			if got == len(want) {
				return fmt.Errorf("more than the %d frames that are there", len(want))
			}
			if check(&frames[i], got); rnd.IntN(4) == 0 {
				frames[i].Buf.Retain()
				kept = append(kept, frames[i], Received{Header: Header{Stream: uint32(got)}})
			}
			got++
		}
		for len(kept) > 0 && rnd.IntN(3) > 0 {
			check(&kept[0], int(kept[1].Stream))
			kept[0].Buf.Release()
			kept = kept[2:]
		}
		return nil
	})
	o := testOptions("a", s, func(o *Options) {
		o.Hello.MaxFrameBytes = maxFrame
		o.MaxHeldBytes = 1 << 30 // the handler releases only inside its calls
	})
	full := o.withDefaults()
	c := newConn(&script{data: data, rnd: rand.New(rand.NewPCG(seed, 1))}, &full, testHello("b"))
	err := s.wait(t)
	<-c.Done()
	for ; len(kept) > 0; kept = kept[2:] {
		check(&kept[0], int(kept[1].Stream))
		kept[0].Buf.Release()
	}
	if got != len(want) {
		t.Errorf("%d frames of %d reached the handler", got, len(want))
	}
	for _, sentinel := range []error{ErrCorrupt, ErrInvalid, ErrTooBig, ErrVersion, ErrPeerGone, ErrGoodbye} {
		if errors.Is(end, sentinel) != errors.Is(err, sentinel) {
			t.Errorf("it ended with %v, want %v", err, end)
		}
	}
	if held := c.Stats().HeldBytes; held != 0 {
		t.Errorf("%d bytes were not given back", held)
	}
}

// FuzzStream: whatever arrives, in whatever pieces, the handler sees exactly the frames that the simplest reader sees.
func FuzzStream(f *testing.F) {
	f.Add(bytes.Join(seedFrames()[1:], nil), uint64(1), true)
	f.Add(bytes.Join(seedFrames(), nil), uint64(2), false)
	f.Add(bytes.Repeat(seedFrames()[3], 100), uint64(3), false)
	f.Fuzz(func(t *testing.T, data []byte, seed uint64, fix bool) {
		if fix {
			data = repair(bytes.Clone(data))
		}
		play(t, data, seed, 64<<10)
	})
}

// repair turns any bytes into frames, so that fuzzing gets past the checksums.
func repair(data []byte) []byte {
	for p := data; len(p) >= HeaderBytes; {
		binary.LittleEndian.PutUint16(p, frameMagic)
		p[offVersion] = FrameVersion
		p[offFlags] &= 1
		p[offHead] &= 3 * p[offFlags]
		p[offPayloadBytes+2] &= 1
		p[offPayloadBytes+3] = 0
		n := int(binary.LittleEndian.Uint32(p[offPayloadBytes:]))
		checked := n
		if p[offFlags] != 0 {
			checked = int(p[offHead]) * headUnitBytes
		}
		if body := p[HeaderBytes:]; n <= len(body) && checked <= n {
			binary.LittleEndian.PutUint32(p[offPayloadCRC:], crc32.Checksum(body[:checked], castagnoli))
		}
		reseal(p)
		p = p[min(len(p), HeaderBytes+n):]
	}
	return data
}

// TestAnySplit is FuzzStream with frames that are longer than a receive buffer.
func TestAnySplit(t *testing.T) {
	for seed := range uint64(60) {
		rnd := rand.New(rand.NewPCG(seed, 3))
		var data []byte
		for range 1 + rnd.IntN(40) {
			payload := make([]byte, rnd.IntN(1<<rnd.IntN(21)))
			for i := 0; i < len(payload); i += 509 {
				payload[i] = byte(rnd.Uint32())
			}
			h := Header{Type: TypeFetchReply, Stream: rnd.Uint32(), Request: rnd.Uint64()}
			if rnd.IntN(8) == 0 {
				h.Type, payload = TypePing, nil
			}
			data = append(data, rawFrame(h, payload)...)
		}
		switch rnd.IntN(4) {
		case 0:
			data = append(data, controlBytes(TypeGoodbye, StatusOK, 0, "the end")...)
		case 1:
			data = data[:rnd.IntN(len(data))]
		case 2:
			data[rnd.IntN(len(data))] ^= 1
		}
		play(t, data, seed, 1<<20)
		if t.Failed() {
			t.Fatalf("seed %d", seed)
		}
	}
}
