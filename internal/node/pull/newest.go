package pull

import (
	"maps"

	"penstock/internal/node/message"
)

// Newest tells the newest delivery of each message from earlier ones, for a consumer whose deliveries other nodes do
// not number. The zero value is ready. Its owner is that of the Queue.
type Newest struct {
	last uint64 // the number of the newest delivery of all
	of   map[message.ID]newest
}

type newest struct {
	number uint64
	since  int64 // when it was delivered or touched last
}

// Add returns the number of a delivery that comes now. If more than twice max messages are known, some have timed out:
// leaders do not report that. So Add forgets those that were not touched for timeout.
func (n *Newest) Add(id message.ID, now int64, max int, timeout int64) uint64 {
	if n.of == nil {
		n.of = map[message.ID]newest{}
	}
	if len(n.of) >= 2*max {
		maps.DeleteFunc(n.of, func(_ message.ID, d newest) bool { return now-d.since >= timeout })
	}
	n.last++
	n.of[id] = newest{n.last, now}
	return n.last
}

// Is says whether the delivery is the newest one of its message, and was not settled.
func (n *Newest) Is(id message.ID, number uint64) bool {
	d, ok := n.of[id]
	return ok && d.number == number
}

// Touch notes that the timeout of the newest delivery begins anew.
func (n *Newest) Touch(id message.ID, now int64) {
	if d, ok := n.of[id]; ok {
		n.of[id] = newest{d.number, now}
	}
}

// Settle notes that the newest delivery was finished or requeued.
func (n *Newest) Settle(id message.ID) { delete(n.of, id) }
