package nsq

import (
	"encoding/binary"

	"penstock/engine"
)

// sink is a connection as what serves it sees it: a channel of this node, or a remote.Consumer, which has the leaders.
// Deliver is called under that one's lock (Channel.mu, Consumer.mu), so it only copies; Flush comes after the lock is
// released. Then Flush runs on the goroutine that delivered, also on the reader of a connection to another node.
type sink conn

// Deliver encodes a message frame into the output.
func (s *sink) Deliver(d *engine.Delivery) bool {
	room := s.flight.most == 0 || s.flight.took(d.ID, len(d.Body), s.srv.now())
	if s.form != nil {
		return s.out.appendFormed(d, s.form) && room
	}
	return s.out.appendMessage(d) && room
}

// Flush sends what a run of Deliver collected, at once: there is no wait for output_buffer_timeout.
func (s *sink) Flush() { s.out.flushAside() }

// Closed ends the connection: nsqd's way to tell a client that its channel is gone.
func (s *sink) Closed(error) { (*conn)(s).stop() }

// Failed implements engine.FailureSink: a FIN, REQ or TOUCH that was forwarded to another node failed there. The client
// gets the error frame that the reader would have sent had it known, behind the answers to commands that came
// meanwhile.
func (s *sink) Failed(what engine.FailedCall, id engine.ID, err error) {
	c := (*conn)(s)
	v := verbTouch
	switch what {
	case engine.FailedFinish:
		v = verbFin
	case engine.FailedRequeue:
		v = verbReq
	}
	text := id.Append(nil)
	if c.form != nil {
		text = binary.BigEndian.AppendUint64(nil, uint64(id))
	}
	c.replyAside(frameError, failedMessage(v, string(text), err))
	c.out.flushAside()
}
