package nsq

import (
	"bytes"
	"encoding/binary"
	"errors"
	"strconv"
	"time"

	"penstock/batch"
	"penstock/internal/meta"
	"penstock/internal/node"
	"penstock/internal/node/errs"
	"penstock/internal/node/fold"
	"penstock/internal/server/nsq/command"
	"penstock/internal/server/publish"
	"penstock/segment"
)

// The files youzan*.go implement what clients of youzan's NSQ use beyond NSQ: publishing and subscribing to one
// partition, ordered subscriptions, headers in JSON ("ext"), trace ids, and seeking in the log. Stock clients notice
// none of it, since every difference depends on a verb or a parameter that they do not send.

// messageForm is the form of message frames for a client of youzan's, and the partition that it subscribed to. It is
// immutable.
type messageForm struct {
	ext                   bool // each message carries its headers as JSON: the client identified with extend_support
	detail                bool // each message carries its place in the partition: SUB_ADVANCED and SUB_ORDERED
	command.PartitionArgs      // the client's partition, if it named one
}

// formOf returns the form of messages for the subscription; nil: NSQ's own form.
func formOf(cmd *command.Command, set *agreed) *messageForm {
	if cmd.Verb == command.VerbSub && !cmd.Addressed && !set.extendSupport {
		return nil
	}
	return &messageForm{
		ext: set.extendSupport, detail: cmd.Verb != command.VerbSub,
		PartitionArgs: command.PartitionArgs{Addressed: cmd.Addressed, Partition: cmd.Partition},
	}
}

// messageID parses the id in a FIN, REQ or TOUCH. In youzan's form the id is a number, followed by the trace id.
func (c *conn) messageID(id []byte) (batch.ID, error) {
	if c.form == nil {
		return batch.ParseID(id)
	}
	return batch.ID(binary.BigEndian.Uint64(id)), nil
}

// leads reports whether this node leads a partition according to the newest snapshot.
func (s *Server) leads(t *node.Topic, partition int) bool {
	snap := s.engine.Snapshot()
	if snap == nil {
		return true
	}
	p, n := partitionRow(snap, t.Name(), uint32(partition)), snap.Nodes[s.engine.Node().ID]
	return p != nil && n != nil && p.State.Leader == n.ID && p.State.Boot == n.Boot
}

// partitionRow returns the row of a partition, or nil if there is none.
func partitionRow(s *meta.Snapshot, topic string, number uint32) *meta.Partition {
	t := s.Names[topic]
	if t == nil {
		return nil
	}
	return s.Partitions.Get(meta.PartitionID{Topic: t.ID, Partition: number})
}

// subscribeAt checks a SUB whose topic and channel exist. If the SUB names a partition, this node must lead it. A
// channel with declared order requires its consumers to declare that they keep the order. It refuses a SUB without
// that, from stock clients, too, since a client that does not keep the order must not read the channel. B58
func (c *conn) subscribeAt(cmd *command.Command, t *node.Topic, ch *node.Channel) *command.Fault {
	if cmd.Addressed {
		switch {
		case cmd.Partition >= t.Partitions():
			return command.Faultf("%s topic %s has no partition %d", publish.CodeTopicMissing, t.Name(), cmd.Partition)
		case !c.srv.leads(t, cmd.Partition):
			return command.Faultf("%s another node leads partition %d of topic %s", publish.CodeNotLeader, cmd.Partition,
				t.Name())
		}
	}
	if cmd.Verb == command.VerbSubOrdered {
		if c.set.Load().sampleRate != 0 {
			return command.NewFault("E_INVALID SUB_ORDERED cannot take a sample: the order would have holes")
		}
		return c.makeOrdered(ch)
	}
	if ch.Settings().Order == fold.OrderDeclared {
		return command.Faultf("%s channel %s delivers in order: subscribe with SUB_ORDERED", publish.CodeOrderNeeded,
			ch.Name())
	}
	return nil
}

// orderTime is how long a SUB_ORDERED waits until this node has learned that the channel is ordered. The node that made
// it ordered may die before it has told all leaders; then the leader of partition 0 tells them after 2 s.
const (
	orderTime  = 5 * time.Second
	orderPause = 5 * time.Millisecond
)

// makeOrdered makes the channel ordered if nobody has configured it, and refuses a channel that is configured
// otherwise. When it returns nil, the order is in force at this node. A consumer that subscribed before that would be
// sent as many messages at once as its RDY allows.
func (c *conn) makeOrdered(ch *node.Channel) *command.Fault {
	for {
		s, err := ch.ReadSettings(c.ctx)
		if err == nil && (s.Order == fold.OrderDeclared || s.Order == fold.OrderPartition) {
			return c.awaitOrder(ch, s.Version)
		}
		if err == nil && s.Version != 0 {
			return command.Faultf(
				"E_INVALID SUB_ORDERED channel %s is configured without order: set its order to partition first", ch.Name())
		}
		if err == nil {
			s.Order = fold.OrderDeclared
			_, err = ch.Configure(c.ctx, s)
		}
		switch {
		case errors.Is(err, errs.ErrVersion): // most likely set by another ordered consumer: read the settings again
		case err != nil:
			return command.Faultf("E_SUB_FAILED SUB failed %v", err)
		default:
			return nil
		}
	}
}

// awaitOrder waits until this node has the settings of that version, which another leader already has.
func (c *conn) awaitOrder(ch *node.Channel, version uint64) *command.Fault {
	for end := time.Now().Add(orderTime); ch.Settings().Version < version; {
		if time.Now().After(end) {
			return command.Faultf("E_SUB_FAILED SUB failed channel %s is not ordered on this node yet, so nothing is "+
				"delivered: subscribe again", ch.Name())
		}
		select {
		case <-time.After(orderPause):
		case <-c.ctx.Done():
			return command.Faultf("E_SUB_FAILED SUB failed %v", c.ctx.Err())
		}
	}
	return nil
}

// seekFrom moves the channel to the place that a SUB_ADVANCED names. Only the first consumer of the channel, or of the
// partition if the command names one, may do that, because other consumers would lose their place. For later consumers
// seekFrom does nothing.
func (c *conn) seekFrom(cmd *command.Command, ch *node.Channel) *command.Fault {
	if len(cmd.From) == 0 {
		return nil
	}
	to, ok := placeOf(cmd)
	if !ok {
		return command.Faultf("E_INVALID SUB_ADVANCED place %q is not valid", cmd.From)
	}
	if c.othersSubscribe(cmd, ch) {
		return nil
	}
	var err error
	if cmd.Addressed {
		err = ch.SeekPartition(c.ctx, cmd.Partition, to)
	} else {
		err = ch.Seek(c.ctx, to)
	}
	c.changed("seek", "topic="+ch.Topic().Name()+" channel="+ch.Name()+" to="+string(cmd.From), err)
	if err != nil {
		return command.Faultf("E_SUB_FAILED SUB failed %v", err)
	}
	return nil
}

// othersSubscribe reports whether the channel has another consumer that may get messages from the part of the channel
// that the command names.
func (c *conn) othersSubscribe(cmd *command.Command, ch *node.Channel) bool {
	for _, t := range c.srv.engine.Stats(ch.Topic().Name(), ch.Name()) {
		for i := range t.Channels {
			for _, cons := range t.Channels[i].Consumers {
				o, ok := cons.Label.(*conn)
				if !ok || o.form == nil || !o.form.Addressed || !cmd.Addressed || o.form.Partition == cmd.Partition {
					return true
				}
			}
		}
	}
	return false
}

// placeOf parses TYPE:VALUE. The place of a message in a partition is its number, which equals the number of messages
// before it.
func placeOf(cmd *command.Command) (to node.SeekTo, ok bool) {
	kind, text, found := bytes.Cut(cmd.From, []byte(":"))
	n, err := strconv.ParseInt(string(text), 10, 64)
	if !found || err != nil {
		return to, false
	}
	switch string(kind) {
	case "timestamp": // seconds
		return node.SeekTo{Kind: node.SeekTime, Time: time.Unix(n, 0)}, n >= 0
	case "special":
		return node.SeekTo{Kind: node.SeekEnd}, n == -1
	case "virtual_queue", "msgcount":
		return node.SeekTo{Kind: node.SeekID, ID: idAt(cmd.Partition, n)}, n >= 0 && cmd.Addressed
	}
	return to, false
}

// idAt returns the id of the message with this number. A number beyond the largest possible one gives the largest id,
// which a seek clamps.
func idAt(partition int, number int64) node.ID {
	n := segment.MsgID(min(max(number, 0), int64(segment.MaxMsgID)))
	return batch.MakeID(uint32(min(partition, batch.MaxPartition)), n)
}
