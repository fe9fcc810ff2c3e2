package server

import (
	"strings"
	"testing"
	"time"

	"penstock/internal/node"
)

// However large its RDY is, a client never has more unfinished bytes than one connection may have. Messages that it
// finishes or requeues, or that time out, make room. A message larger than the bound is delivered alone. Other
// consumers are not affected.
//
// Related to B63: RDY bounds the number of messages.
func TestMaxInFlightBytes(t *testing.T) {
	n := startNode(t, node.Options{}, Options{nsqSettings: nsqSettings{MaxInFlightBytes: 10_000}})
	c := n.dial(t)
	c.identify(`{"msg_timeout":3000}`)
	c.sub("t", "c")
	body := strings.Repeat("x", 4000)
	for range 8 {
		n.post(t, "/pub?topic=t", body)
	}
	c.send("RDY 100\n")
	began := time.Now()
	first, second, third := c.message(), c.message(), c.message()
	c.silent(100 * time.Millisecond)
	c.send("FIN " + first.id + "\n")
	fourth := c.message()
	c.silent(50 * time.Millisecond)
	c.send("REQ " + second.id + " 60000\n")
	fifth := c.message()
	c.silent(50 * time.Millisecond)
	other := n.dial(t)
	other.sub("t", "c")
	other.send("RDY 1\n")
	other.message()

	// The client finishes nothing: the three messages time out, and three are delivered.
	seen := map[string]bool{third.id: true, fourth.id: true, fifth.id: true}
	again := 0
	for range 3 {
		if m := c.message(); seen[m.id] {
			again++
		}
	}
	if time.Since(began) < 3*time.Second {
		t.Errorf("more came after %v, before anything timed out", time.Since(began))
	}
	t.Logf("%d of three came again", again)

	large := n.dial(t)
	large.sub("big", "c")
	n.post(t, "/mpub?topic=big", strings.Repeat("y", 50_000)+"\nz\n")
	large.send("RDY 5\n")
	m := large.message()
	if len(m.body) != 50_000 {
		t.Fatalf("%d bytes came first", len(m.body))
	}
	large.silent(50 * time.Millisecond)
	large.send("TOUCH " + m.id + "\n")
	large.silent(50 * time.Millisecond)
	large.send("FIN " + m.id + "\n")
	if m := large.message(); m.body != "z" {
		t.Errorf("then came %.20q", m.body)
	}
}

// The sum of a flight's bytes after each kind of event.
func TestFlight(t *testing.T) {
	f := flight{most: 10}
	if !f.took(1, 4, 0) || !f.took(2, 5, 100) || f.took(3, 1, 200) {
		t.Error("it must be full with ten bytes, not before")
	}
	f.took(3, 2, 300) // again, after an unnoticed timeout
	if f.bytes != 11 || !f.blocks() || f.freed() {
		t.Errorf("%d bytes", f.bytes)
	}
	f.touched(1, 400)
	f.expire(1000, 800)
	if f.bytes != 6 || !f.freed() || f.freed() || f.blocks() {
		t.Errorf("%d bytes after what was delivered at 100 has expired", f.bytes)
	}
	f.gave(1)
	f.gave(9)
	f.gave(3)
	if f.bytes != 0 || len(f.sizes) != 0 {
		t.Errorf("%d bytes of %v at the end", f.bytes, f.sizes)
	}
}
