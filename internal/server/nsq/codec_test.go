package nsq

import (
	"bytes"
	"crypto/tls"
	"errors"
	"io"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/klauspost/compress/flate"
	"github.com/klauspost/compress/s2"

	"penstock/internal/node"
	"penstock/internal/server/handshakes"
	"penstock/tests/support/nsqtest"
)

// packed returns data as a client compresses it.
func packed(t testing.TB, how compression, data []byte) []byte {
	t.Helper()
	var out bytes.Buffer
	w, flush := newCompressor(how, 6, &out)
	if _, err := w.Write(data); err != nil {
		t.Fatal(err)
	}
	if err := flush(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

var compressions = map[string]compression{"deflate": compressDeflate, "snappy": compressSnappy}

// B98. Input that inflates beyond measure ends its connection, not the server, and is never in memory as a whole.
func TestInflationIsBounded(t *testing.T) {
	n := startNode(t, node.Options{}, Settings{MaxInflationRatio: 100})
	good := n.dial(t).Wrap(nil, "deflate", 6)
	bomb := n.dial(t).Wrap(nil, "deflate", 6)
	nops := strings.Repeat("NOP\n", 1<<20) // 4 MiB that compress to 20 KiB
	for range 10 {
		if _, err := io.WriteString(bomb.W, nops); err != nil {
			break // closed already
		}
	}
	bomb.Closed()
	good.Send(nsqtest.Pub("t", strings.Repeat("x", 900_000))) // a ratio of 1000 to 1, but not much data
	good.OK()
}

// The rule of TestInflationIsBounded alone, with long inputs.
//
// B98
func TestInflaterIsBounded(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine that computes, for a minute under the race detector")
	}
	zeros := packed(t, compressDeflate, make([]byte, 32<<20))
	f := newInflater(compressDeflate, bytes.NewReader(zeros), 100)
	k, err := io.Copy(io.Discard, f)
	if !errors.Is(err, errInflated) || k > inflationFloorBytes+100*compressedReadBytes+(1<<20) {
		t.Errorf("%d bytes came, %v", k, err)
	}
	// A long history of data that does not compress does not give credit for ever.
	var pieces []io.Reader
	for range 20 {
		pieces = append(pieces, bytes.NewReader(zeros))
	}
	f = newInflater(compressDeflate, io.MultiReader(pieces...), 100)
	f.in, f.out = inflationWindowBytes, inflationWindowBytes
	if k, err := io.Copy(io.Discard, f); !errors.Is(err, errInflated) {
		t.Errorf("%d bytes came, %v", k, err)
	}
	// A stream that compresses well, but not absurdly well, may go on for ever.
	var lines bytes.Buffer
	rnd := rand.New(rand.NewPCG(1, 1))
	for lines.Len() < inflationWindowBytes*5/2 {
		lines.WriteString("a line of a log that repeats itself except for a number at its end: ")
		lines.WriteByte('0' + byte(rnd.IntN(10)))
	}
	f = newInflater(compressDeflate, bytes.NewReader(packed(t, compressDeflate, lines.Bytes())), 100)
	got := 0
	buf := make([]byte, 1<<20)
	for got < lines.Len() {
		k, err := f.Read(buf)
		if !bytes.Equal(buf[:k], lines.Bytes()[got:got+k]) {
			t.Fatalf("other bytes at %d", got)
		}
		if got += k; err != nil {
			t.Fatalf("after %d of %d: %v", got, lines.Len(), err)
		}
	}
}

// B98
func TestBrokenStreamsEndTheirConnection(t *testing.T) {
	n := startNode(t, node.Options{}, Settings{})
	good := n.dial(t).Wrap(nil, "snappy", 0)
	for name, junk := range map[string]string{
		"deflate": "\xff\xff\xff\xff\xff\xff",
		"snappy":  "\x00\x10\x00\x00this is no snappy",
	} {
		c := n.dial(t).Wrap(nil, name, 6)
		c.Send(nsqtest.Pub("t", "x"))
		c.OK()
		if _, err := io.WriteString(c.Conn, junk); err != nil {
			t.Fatal(err)
		}
		c.Closed()
		c = n.dial(t).Wrap(nil, name, 6)
		c.Send("SUB t c\n")
		c.OK()
		c.Conn.CloseWrite() // without ending the compressed stream
		c.Closed()
	}
	good.Send(nsqtest.Pub("t", "x"))
	good.OK()
}

// B99. Deliveries to a wrapped client that does not read stop, and the client gets every byte when it reads later,
// whichever goroutine encodes them.
func TestWrappedClientThatReadsLate(t *testing.T) {
	ca := nsqtest.NewAuthority(t)
	n := startNode(t, node.Options{}, Settings{}, func(o *Options) {
		cfg := ca.Server(t)
		o.TLS = handshakes.New(1024, o.Log).Config(func(*tls.ClientHelloInfo) *tls.Config { return cfg.Clone() })
	})
	const count, size = 400, 40_000 // 16 MB that do not compress
	src := rand.NewChaCha8([32]byte{1})
	bodies := map[string]bool{}
	p := n.dial(t)
	for range count {
		b := make([]byte, size)
		if _, err := src.Read(b); err != nil {
			t.Fatal(err)
		}
		bodies[string(b)] = true
		p.Send(nsqtest.Pub("t", string(b)))
		p.OK()
	}
	for i, x := range []struct {
		tls bool
		how string
	}{{true, ""}, {true, "deflate"}, {false, "snappy"}} {
		channel := "c" + string(rune('0'+i))
		var cfg *tls.Config
		if x.tls {
			cfg = ca.Client(t, "")
		}
		c := n.dial(t).Wrap(cfg, x.how, 1)
		n.makeChannel(t, "t", channel)
		c.Sub("t", channel)
		if i > 0 { // only the first channel begins at the start of the topic
			for b := range bodies {
				p.Send(nsqtest.Pub("t", b))
				p.OK()
			}
		}
		c.Send("RDY 2500\n")
		var server *conn
		n.each(func(s *conn) {
			if s.remote == c.Conn.LocalAddr().String() {
				server = s
			}
		})
		nsqtest.Eventually(t, "the output to be full", func() bool {
			server.out.mu.Lock()
			defer server.out.mu.Unlock()
			return server.out.full && server.out.unsent >= server.out.bound
		})
		got := map[string]bool{}
		for range count {
			m := c.Message()
			if !bodies[m.Body] || got[m.Body] {
				t.Fatalf("%+v %s: a message came twice or damaged", x.tls, x.how)
			}
			got[m.Body] = true
			c.Send("FIN " + m.ID + "\n")
		}
		c.Conn.Close()
	}
}

// TLS answers some messages by itself. A client that provokes such answers and never reads cannot fill the memory.
func TestWireIsBounded(t *testing.T) {
	w := newWire(nil, nil, nil)
	piece := make([]byte, 1000)
	k := 0
	for ; k < 1000; k++ {
		if _, err := w.Write(piece); err != nil {
			if !errors.Is(err, errWireFull) {
				t.Fatal(err)
			}
			break
		}
	}
	if k != maxUnaskedBytes/1000 {
		t.Errorf("%d pieces of 1000 bytes fit", k)
	}
	c := w.take()
	c.free()
	w.expect(1 << 20)
	if _, err := w.Write(make([]byte, 1<<20)); err != nil {
		t.Errorf("what frames become: %v", err)
	}
}

// FuzzInflater decompresses arbitrary bytes: nothing panics, nothing inflates beyond the bound, and every stream ends.
func FuzzInflater(f *testing.F) {
	for _, how := range compressions {
		for _, data := range []string{"", nsqtest.Pub("t", "x"), strings.Repeat("NOP\n", 1000)} {
			f.Add(packed(f, how, []byte(data)), how == compressSnappy)
		}
	}
	f.Add([]byte("\xff\x06\x00\x00S2sTwO\x00\x04\x00\x00abcd"), true)
	f.Add([]byte("\xff\x06\x00\x00sNaPpY\xfe\xff\xff\xff"), true)
	buf := make([]byte, streamReadBytes)
	f.Fuzz(func(t *testing.T, in []byte, snappy bool) {
		how := compressDeflate
		if snappy {
			how = compressSnappy
		}
		const ratio = 10
		x := newInflater(how, bytes.NewReader(in), ratio)
		total := 0
		for {
			n, err := x.Read(buf)
			if total += n; total > inflationFloorBytes+ratio*len(in)+len(buf) {
				t.Fatalf("%d bytes of %d", total, len(in))
			}
			if err != nil {
				return
			}
		}
	})
}

// FuzzCompressedCommands compresses arbitrary bytes as clients do, and splits them arbitrarily. They decompress to the
// same bytes.
func FuzzCompressedCommands(f *testing.F) {
	f.Add([]byte(nsqtest.Pub("t", "body")), uint16(3), false)
	f.Add([]byte(strings.Repeat("MPUB", 1000)), uint16(700), true)
	f.Fuzz(func(t *testing.T, in []byte, step uint16, snappy bool) {
		how := compressDeflate
		if snappy {
			how = compressSnappy
		}
		var stream bytes.Buffer
		w, flush := newCompressor(how, 1+int(step%9), &stream)
		for rest := in; len(rest) > 0; {
			k := min(int(step)+1, len(rest))
			if _, err := w.Write(rest[:k]); err != nil {
				t.Fatal(err)
			}
			if err := flush(); err != nil {
				t.Fatal(err)
			}
			rest = rest[k:]
		}
		// Our decompressor and a client's agree.
		for _, r := range []io.Reader{
			newInflater(how, bytes.NewReader(stream.Bytes()), 1<<20), clientReader(how, stream.Bytes()),
		} {
			got, _ := io.ReadAll(r) // deflate has no end here
			if !bytes.Equal(got, in) {
				t.Fatalf("snappy %t: %q became %q", snappy, in, got)
			}
		}
	})
}

func clientReader(how compression, stream []byte) io.Reader {
	if how == compressSnappy {
		return s2.NewReader(bytes.NewReader(stream))
	}
	return flate.NewReader(bytes.NewReader(stream))
}
