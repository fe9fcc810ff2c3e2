package pull

import "testing"

// Only the newest delivery of a message is one, until it is settled. What nobody settles is forgotten once it must have
// timed out, if there is much of it, and not while it is touched.
func TestNewest(t *testing.T) {
	const max, timeout = 2, 100
	var n Newest
	first := n.Add(7, 0, max, timeout)
	if !n.Is(7, first) || n.Is(8, first) || n.Is(7, 0) {
		t.Error("the first delivery is not the newest one of message 7")
	}
	second := n.Add(7, 10, max, timeout)
	if n.Is(7, first) || !n.Is(7, second) {
		t.Error("the second delivery is not the newest one")
	}
	if n.Settle(7); n.Is(7, second) {
		t.Error("a delivery that was settled is still one")
	}
	third := n.Add(7, 20, max, timeout)
	if third <= second || n.Is(7, second) {
		t.Error("a number was used twice")
	}
	n.Touch(7, 90)
	n.Touch(9, 90)
	old := n.Add(8, 30, max, timeout)
	n.Add(9, 40, max, timeout)
	n.Add(10, 40, max, timeout)
	last := n.Add(11, 130, max, timeout)
	if n.Is(8, old) || !n.Is(7, third) || !n.Is(11, last) || len(n.of) != 4 {
		t.Errorf("after 130 ns %d messages are known: %v", len(n.of), n.of)
	}
}
