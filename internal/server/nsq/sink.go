package nsq

import (
	"encoding/binary"

	"penstock/internal/node"
	"penstock/internal/node/message"
	"penstock/internal/server/nsq/command"
)

// sink is a connection in the role of an node.Sink. It is served by a channel of this node, or by a remote.Consumer,
// which gets its messages from the leaders. Deliver is called under that server's lock (Channel.mu or Consumer.mu), so
// it only copies. Flush is called after the lock is released, by the goroutine that delivered, which may be the reader
// of a connection to another node.
type sink conn

// Deliver encodes a message frame into the output.
func (s *sink) Deliver(d *node.Delivery) bool {
	s.delivered.Add(1)
	room := s.flight.most == 0 || s.flight.took(d.ID, len(d.Body), s.srv.now())
	if s.form != nil {
		return s.out.appendFormed(d, s.form) && room
	}
	return s.out.appendMessage(d) && room
}

// Flush sends the messages of a run of Deliver calls at once, without waiting for output_buffer_timeout.
func (s *sink) Flush() { s.out.flushAside() }

// Closed ends the connection, which is how nsqd tells a client that its channel is gone.
func (s *sink) Closed(error) { (*conn)(s).stop() }

// Failed implements message.FailureSink: a FIN, REQ or TOUCH that was forwarded to another node failed there. The
// client gets the error frame that the reader would have sent if the failure had been known at once. It comes after the
// answers to commands that arrived in between.
func (s *sink) Failed(what message.FailedCall, id node.ID, err error) {
	c := (*conn)(s)
	v := command.VerbTouch
	switch what {
	case message.FailedFinish:
		v = command.VerbFin
	case message.FailedRequeue:
		v = command.VerbReq
	}
	text := id.Append(nil)
	if c.form != nil {
		text = binary.BigEndian.AppendUint64(nil, uint64(id))
	}
	c.replyAside(frameError, failedMessage(v, string(text), err))
	c.out.flushAside()
}
