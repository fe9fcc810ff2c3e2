package nsq

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
	n := startNode(t, node.Options{}, Settings{MaxInFlightBytes: 10_000})
	c := n.dial(t)
	c.Identify(`{"msg_timeout":3000}`)
	c.Sub("t", "c")
	body := strings.Repeat("x", 4000)
	for range 8 {
		n.publish(t, "t", body)
	}
	c.Send("RDY 100\n")
	began := time.Now()
	first, second, third := c.Message(), c.Message(), c.Message()
	c.Silent(100 * time.Millisecond)
	c.Send("FIN " + first.ID + "\n")
	fourth := c.Message()
	c.Silent(50 * time.Millisecond)
	c.Send("REQ " + second.ID + " 60000\n")
	fifth := c.Message()
	c.Silent(50 * time.Millisecond)
	other := n.dial(t)
	other.Sub("t", "c")
	other.Send("RDY 1\n")
	other.Message()

	// The client finishes nothing: the three messages time out, and three are delivered.
	seen := map[string]bool{third.ID: true, fourth.ID: true, fifth.ID: true}
	again := 0
	for range 3 {
		if m := c.Message(); seen[m.ID] {
			again++
		}
	}
	if time.Since(began) < 3*time.Second {
		t.Errorf("more came after %v, before anything timed out", time.Since(began))
	}
	t.Logf("%d of three came again", again)

	large := n.dial(t)
	large.Sub("big", "c")
	n.publish(t, "big", strings.Repeat("y", 50_000), "z")
	large.Send("RDY 5\n")
	m := large.Message()
	if len(m.Body) != 50_000 {
		t.Fatalf("%d bytes came first", len(m.Body))
	}
	large.Silent(50 * time.Millisecond)
	large.Send("TOUCH " + m.ID + "\n")
	large.Silent(50 * time.Millisecond)
	large.Send("FIN " + m.ID + "\n")
	if m := large.Message(); m.Body != "z" {
		t.Errorf("then came %.20q", m.Body)
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
