package core

// InFlightMessage is one line of the list of messages in flight.
type InFlightMessage struct {
	ID       ID
	Client   ClientID
	SinceMs  int64 // unix ms of the delivery
	DueMs    int64 // unix ms at which it times out; EvTouch moves it
	Attempts uint16
}

// WaitingMessage is one line of the list of messages that wait for their time.
type WaitingMessage struct {
	ID       ID
	DueMs    int64 // unix ms; in the past: held back by a paused topic or a full outbox
	Attempts uint16
}

// EachInFlight visits what is in flight: by client in the order of subscription, oldest delivery first.
func (c *Channel) EachInFlight(visit func(InFlightMessage)) {
	for _, cl := range c.order {
		for e := cl.flight.first; e != nil; e = e.next {
			visit(InFlightMessage{ID: e.id, Client: cl.id, SinceMs: e.startMs, DueMs: e.timer.Due(), Attempts: e.attempts})
		}
	}
}

// EachWaiting visits what waits for its time, in no order that means anything. It looks at every entry.
func (c *Channel) EachWaiting(visit func(WaitingMessage)) {
	c.entries.each(func(e *entry) {
		if e.state == entryWaiting || e.state == entryHeld || e.state == entryDoomed {
			visit(WaitingMessage{ID: e.id, DueMs: e.dueMs, Attempts: e.attempts})
		}
	})
}
