package health

import "testing"

// The first channel of a kind is named, and all are counted.
func TestChannelsOfAKind(t *testing.T) {
	var c *Channel
	if c = c.With(Channel{Name: "a"}); c.Channels() != 0 {
		t.Errorf("a channel without trouble counts: %+v", c)
	}
	for i, name := range []string{"b", "c", "d"} {
		if c = c.With(Channel{Name: name, Count: 5}); c.Channels() != i+1 || c.Name != "b" || c.Count != 5 {
			t.Errorf("after %s: %+v", name, c)
		}
	}
	if skips := (*Channel)(nil).And(Channel{Name: "a"}); skips.Channels() != 1 {
		t.Errorf("a channel of a kind without a count does not count: %+v", skips)
	}
	if c = c.With(Channel{Name: "e"}); c.Channels() != 3 {
		t.Errorf("a channel without trouble counts: %+v", c)
	}
}
