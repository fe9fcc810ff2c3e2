package nsq

import "penstock/engine"

// sink is a connection as its channel sees it.
type sink conn

// Deliver encodes a message frame into the output.
func (s *sink) Deliver(d *engine.Delivery) bool { return s.out.appendMessage(d) }

// Flush sends what a run of Deliver left: output_buffer_timeout is never waited for.
func (s *sink) Flush() { s.out.flushAside() }

// Closed ends the connection: nsqd's way to tell a client that its channel is gone.
func (s *sink) Closed(error) { (*conn)(s).stop() }
