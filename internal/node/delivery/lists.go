package delivery

import "penstock/batch"

// InFlightMessage describes one message in flight.
type InFlightMessage struct {
	ID       batch.ID
	Client   ClientID
	SinceMs  int64 // unix ms of the delivery
	DueMs    int64 // unix ms at which it times out; EvTouch moves it
	Attempts uint16
}

// WaitingMessage describes one message that waits for its time.
type WaitingMessage struct {
	ID       batch.ID
	DueMs    int64 // unix ms; if it has passed, a paused topic or a full outbox holds the message back
	Attempts uint16
}

// EachInFlight visits the messages in flight: by client in the order of subscription, oldest delivery first.
func (c *Channel) EachInFlight(visit func(InFlightMessage)) {
	for _, cl := range c.clients.all {
		for e := cl.flight.first; e != nil; e = e.next {
			e.each(func(id batch.ID, _ uint64) {
				visit(InFlightMessage{ID: id, Client: cl.id, SinceMs: e.startMs, DueMs: e.timer.Due(), Attempts: e.attempts})
			})
		}
	}
}

// EachWaiting visits the messages that wait for their time, in no particular order. It looks at every entry.
func (c *Channel) EachWaiting(visit func(WaitingMessage)) {
	c.entries.each(func(e *entry) {
		if e.state == entryWaiting || e.state == entryHeld || e.state == entryDoomed {
			visit(WaitingMessage{ID: e.id, DueMs: e.dueMs, Attempts: e.attempts})
		}
	})
}

// Delivery is what a channel's machine knows of one message that is neither unread nor confirmed.
type Delivery struct {
	InFlight bool // Client, SinceMs, DueMs
	Client   ClientID
	SinceMs  int64
	DueMs    int64
	Attempts uint16
}

// Find returns what the machine knows of a message; false: it is unread or confirmed.
func (c *Channel) Find(id batch.ID) (d Delivery, ok bool) {
	e := c.look(id)
	if e == nil || e.state == entryFence {
		return d, false
	}
	d.Attempts = e.attempts
	if e.state == entryInFlight {
		d.InFlight, d.Client, d.SinceMs, d.DueMs = true, e.client.id, e.startMs, e.timer.Due()
	}
	return d, true
}
