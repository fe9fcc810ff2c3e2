package etcd

import (
	"errors"
	"io"
	"log/slog"
	"net"
	"os"
	"sync/atomic"
	"testing"
	"time"
)

// openGate returns a gate without TLS whose guests get back what they send, and how many of them there are.
func openGate(t *testing.T, limit int) (address string, guests *atomic.Int64) {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	g := newGate(ln, nil, slog.New(slog.DiscardHandler), limit)
	t.Cleanup(func() { _ = g.Close() })
	guests = new(atomic.Int64)
	go func() {
		for {
			nc, err := g.Accept()
			if err != nil {
				return
			}
			guests.Add(1)
			go func() {
				_, _ = io.Copy(nc, nc)
				_ = nc.Close()
				guests.Add(-1)
			}()
		}
	}()
	return ln.Addr().String(), guests
}

const head = "GET / HTTP/1.1\r\n\r\n"

// call connects from an address of loopback and sends text.
func call(t *testing.T, address, from, text string) net.Conn {
	t.Helper()
	nc, err := (&net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}).Dial("tcp", address)
	must(t, err)
	t.Cleanup(func() { _ = nc.Close() })
	_, err = io.WriteString(nc, text)
	must(t, err)
	return nc
}

// answered reads what the gate's guests get back.
func answered(t *testing.T, nc net.Conn, text string) {
	t.Helper()
	must(t, nc.SetReadDeadline(time.Now().Add(enough)))
	got := make([]byte, len(text))
	if _, err := io.ReadFull(nc, got); err != nil || string(got) != text {
		t.Errorf("it gets %q, %v", got, err)
	}
}

// Whoever begins requests and stays takes no more places than there are, and none of another address.
func TestGateBoundsItsGuests(t *testing.T) {
	t.Parallel()
	const limit = 64
	_, most := places(limit)
	address, guests := openGate(t, limit)
	other := call(t, address, "127.0.0.2", head)
	answered(t, other, head)
	var last net.Conn
	for range 5 * most {
		last = call(t, address, "127.0.0.1", head)
	}
	answered(t, last, head)
	await(t, "the oldest guests have to go", func() bool { return guests.Load() <= int64(most) })
	_, err := io.WriteString(other, "on")
	must(t, err)
	answered(t, other, "on")
}

// A request is let in as a whole, also if it comes in pieces. What is no request, and who is silent, has to go.
func TestGateWantsAProof(t *testing.T) {
	t.Parallel()
	address, guests := openGate(t, 0)
	silent := call(t, address, "127.0.0.1", "")
	long := call(t, address, "127.0.0.1", string(make([]byte, maxHeadBytes)))
	for _, nc := range []net.Conn{silent, long} {
		must(t, nc.SetReadDeadline(time.Now().Add(proofTime+enough)))
		if n, err := nc.Read(make([]byte, 1)); n > 0 || err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("it stays: %d %v", n, err)
		}
	}
	if n := guests.Load(); n != 0 {
		t.Errorf("%d guests are in", n)
	}
	whole := call(t, address, "127.0.0.1", head[:len(head)-2])
	_, err := io.WriteString(whole, head[len(head)-2:])
	must(t, err)
	answered(t, whole, head)
}
