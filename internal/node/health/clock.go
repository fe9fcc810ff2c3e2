package health

import (
	"fmt"
	"time"
)

// Clock says how the engine's clock of a node differs from those of other nodes.
type Clock struct {
	Ahead time.Duration // of theirs; below 0: behind
	From  []string      // the names of these nodes, sorted
	// Wrong: they are more than half of all. Otherwise they are just half, and nobody can tell which clock is wrong.
	Wrong bool
}

// Words is a sentence about it, without its full stop.
func (c *Clock) Words() string {
	by, word := c.Ahead, "ahead of"
	if by < 0 {
		by, word = -by, "behind"
	}
	whose := "that of " + named(c.From)
	if len(c.From) > 1 {
		whose = "those of " + named(c.From)
	}
	differs := fmt.Sprintf("this node's clock is %s %s %s", Age(by), word, whose)
	if c.Wrong {
		return differs + ": messages that it stores as a leader get times that are wrong by that, and their delays change " +
			"by that when another node leads. So it is given no leadership that another node can have, and hands over those " +
			"that it has; set its clock (NTP) and restart the node"
	}
	return differs + ", and nobody can tell which is wrong: delays and the times of messages change by that when the " +
		"leader changes; set the clocks (NTP), and restart the node whose clock was wrong"
}
