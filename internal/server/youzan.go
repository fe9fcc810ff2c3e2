package server

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math"
	"strconv"
	"time"

	"penstock/batch"
	"penstock/internal/meta"
	"penstock/internal/node"
	"penstock/internal/node/fold"
	"penstock/segment"
)

// The files youzan*.go implement what clients of youzan's NSQ use beyond NSQ: publishing and subscribing to one
// partition, ordered subscriptions, headers in JSON ("ext"), trace ids, and seeking in the log. Stock clients notice
// none of it, since every difference depends on a verb or a parameter that they do not send.

// partitionArgs are the parameters of a command that stock NSQ does not have.
type partitionArgs struct {
	addressed bool   // the command names a partition
	partition int    // the partition if addressed: ≥ 0, but perhaps more than the topic has
	from      []byte // TYPE:VALUE in a SUB_ADVANCED: the place in the log at which to start
}

func lookupYouzanVerb(name []byte) verb {
	switch string(name) {
	case "PUB_EXT":
		return verbPubExt
	case "PUB_TRACE":
		return verbPubTrace
	case "MPUB_EXT":
		return verbMpubExt
	case "MPUB_TRACE":
		return verbMpubTrace
	case "SUB_ADVANCED":
		return verbSubAdvanced
	case "SUB_ORDERED":
		return verbSubOrdered
	}
	return verbNone
}

// plain returns the NSQ verb that v extends. v has the limits of that verb, and uses its name in error codes.
func (v verb) plain() verb {
	switch v {
	case verbPubExt, verbPubTrace:
		return verbPub
	case verbMpubExt, verbMpubTrace:
		return verbMpub
	case verbSubAdvanced, verbSubOrdered:
		return verbSub
	}
	return v
}

func (v verb) batches() bool    { return v.plain() == verbMpub }
func (v verb) subscribes() bool { return v.plain() == verbSub }

// partitionParam parses the number of a partition; -1 names none. nsqd ignores further parameters of PUB, MPUB and SUB,
// so after these verbs a text that is not a number is ignored.
func (cmd *command) partitionParam(rest []byte) *fault {
	text, _, _ := cut(rest)
	n, err := strconv.Atoi(string(text))
	switch {
	case err == nil && n >= 0 && n <= math.MaxInt32:
		cmd.addressed, cmd.partition = true, n
	case err == nil && n == -1:
	case cmd.verb.plain() != cmd.verb:
		return faultf("E_BAD_PARTITION %s partition %q is not valid", cmd.verb, text)
	}
	return nil
}

// subscribeParams parses the partition, and the place in a SUB_ADVANCED.
func (cmd *command) subscribeParams(rest []byte) *fault {
	f := cmd.partitionParam(rest)
	if f != nil || cmd.verb != verbSubAdvanced {
		return f
	}
	if _, rest, more := cut(rest); more {
		cmd.from, _, _ = cut(rest)
	}
	return nil
}

// beyondNSQ reports whether only a client of youzan's can have sent the command.
func (cmd *command) beyondNSQ() bool { return cmd.addressed || cmd.verb.plain() != cmd.verb }

// messageForm is the form of message frames for a client of youzan's, and the partition that it subscribed to. It is
// immutable.
type messageForm struct {
	ext           bool // each message carries its headers as JSON: the client identified with extend_support
	detail        bool // each message carries its place in the partition: SUB_ADVANCED and SUB_ORDERED
	partitionArgs      // the client's partition, if it named one
}

// formOf returns the form of messages for the subscription; nil: NSQ's own form.
func formOf(cmd *command, set *settings) *messageForm {
	if cmd.verb == verbSub && !cmd.addressed && !set.extendSupport {
		return nil
	}
	return &messageForm{
		ext: set.extendSupport, detail: cmd.verb != verbSub,
		partitionArgs: partitionArgs{addressed: cmd.addressed, partition: cmd.partition},
	}
}

// messageID parses the id in a FIN, REQ or TOUCH. In youzan's form the id is a number, followed by the trace id.
func (c *conn) messageID(id []byte) (batch.ID, error) {
	if c.form == nil {
		return batch.ParseID(id)
	}
	return batch.ID(binary.BigEndian.Uint64(id)), nil
}

// youzan's error codes. After the first three its clients look the topic up again.
const (
	codeTopicMissing = "E_TOPIC_NOT_EXIST"
	codeNotLeader    = "E_FAILED_ON_NOT_LEADER"
	codeNotWritable  = "E_FAILED_ON_NOT_WRITABLE"
	codeOrderNeeded  = "E_SUB_ORDER_IS_MUST"
	codeBadExt       = "E_INVALID_JSON_HEADER"
)

// youzanCode returns youzan's code for an error that its clients treat specially, or "" for other errors.
func youzanCode(err error) string {
	for _, x := range []struct {
		code string
		errs []error
	}{
		{codeTopicMissing, []error{node.ErrNoPartition, node.ErrNoTopic, node.ErrAutoCreateOff}},
		{codeNotLeader, []error{node.ErrNoLeader, node.ErrMoved}},
		{codeNotWritable, []error{node.ErrNoQuorum, node.ErrNoSpace, node.ErrReadOnly, node.ErrDisk}},
		{codeBadExt, []error{node.ErrHeaders}},
	} {
		for _, e := range x.errs {
			if errors.Is(err, e) {
				return x.code
			}
		}
	}
	return ""
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

// onlyPartition returns the partition that a SUB named, or nil.
func (cmd *command) onlyPartition() *uint32 {
	if !cmd.addressed {
		return nil
	}
	n := uint32(cmd.partition)
	return &n
}

// subscribeAt checks a SUB whose topic and channel exist. If the SUB names a partition, this node must lead it. A
// channel with declared order requires its consumers to declare that they keep the order. It refuses a SUB without
// that, from stock clients, too, since a client that does not keep the order must not read the channel. B58
func (c *conn) subscribeAt(cmd *command, t *node.Topic, ch *node.Channel) *fault {
	if cmd.addressed {
		switch {
		case cmd.partition >= t.Partitions():
			return faultf("%s topic %s has no partition %d", codeTopicMissing, t.Name(), cmd.partition)
		case !c.srv.leads(t, cmd.partition):
			return faultf("%s another node leads partition %d of topic %s", codeNotLeader, cmd.partition, t.Name())
		}
	}
	if cmd.verb == verbSubOrdered {
		if c.set.Load().sampleRate != 0 {
			return &fault{"E_INVALID SUB_ORDERED cannot take a sample: the order would have holes"}
		}
		return c.makeOrdered(ch)
	}
	if ch.Settings().Order == fold.OrderDeclared {
		return faultf("%s channel %s delivers in order: subscribe with SUB_ORDERED", codeOrderNeeded, ch.Name())
	}
	return nil
}

// orderTime is how long a SUB_ORDERED waits until this node has learned that the channel is ordered. The node that made
// it ordered may die before it has told all leaders; then the leader of partition 0 tells them after 2 s.
const orderTime = 5 * time.Second

// makeOrdered makes the channel ordered if nobody has configured it, and refuses a channel that is configured
// otherwise. When it returns nil, the order is in force at this node. A consumer that subscribed before that would be
// sent as many messages at once as its RDY allows.
func (c *conn) makeOrdered(ch *node.Channel) *fault {
	for {
		s, err := ch.ReadSettings(c.ctx)
		if err == nil && (s.Order == fold.OrderDeclared || s.Order == fold.OrderPartition) {
			return c.awaitOrder(ch, s.Version)
		}
		if err == nil && s.Version != 0 {
			return faultf(
				"E_INVALID SUB_ORDERED channel %s is configured without order: set its order to partition first", ch.Name())
		}
		if err == nil {
			s.Order = fold.OrderDeclared
			_, err = ch.Configure(c.ctx, s)
		}
		switch {
		case errors.Is(err, node.ErrVersion): // most likely set by another ordered consumer: read the settings again
		case err != nil:
			return faultf("E_SUB_FAILED SUB failed %v", err)
		default:
			return nil
		}
	}
}

// awaitOrder waits until this node has the settings of that version, which another leader already has.
func (c *conn) awaitOrder(ch *node.Channel, version uint64) *fault {
	for end := time.Now().Add(orderTime); ch.Settings().Version < version; {
		if time.Now().After(end) {
			return faultf("E_SUB_FAILED SUB failed channel %s is not ordered on this node yet, so nothing is delivered: "+
				"subscribe again", ch.Name())
		}
		select {
		case <-time.After(deletedPause):
		case <-c.ctx.Done():
			return faultf("E_SUB_FAILED SUB failed %v", c.ctx.Err())
		}
	}
	return nil
}

// seekFrom moves the channel to the place that a SUB_ADVANCED names. Only the first consumer of the channel, or of the
// partition if the command names one, may do that, because other consumers would lose their place. For later consumers
// seekFrom does nothing.
func (c *conn) seekFrom(cmd *command, ch *node.Channel) *fault {
	if len(cmd.from) == 0 {
		return nil
	}
	to, ok := placeOf(cmd)
	if !ok {
		return faultf("E_INVALID SUB_ADVANCED place %q is not valid", cmd.from)
	}
	if c.othersSubscribe(cmd, ch) {
		return nil
	}
	var err error
	if cmd.addressed {
		err = ch.SeekPartition(c.ctx, cmd.partition, to)
	} else {
		err = ch.Seek(c.ctx, to)
	}
	c.changed("seek", "topic="+ch.Topic().Name()+" channel="+ch.Name()+" to="+string(cmd.from), err)
	if err != nil {
		return faultf("E_SUB_FAILED SUB failed %v", err)
	}
	return nil
}

// othersSubscribe reports whether the channel has another consumer that may get messages from the part of the channel
// that the command names.
func (c *conn) othersSubscribe(cmd *command, ch *node.Channel) bool {
	for _, t := range c.srv.engine.Stats(ch.Topic().Name(), ch.Name()) {
		for i := range t.Channels {
			for _, cons := range t.Channels[i].Consumers {
				o, ok := cons.Label.(*conn)
				if !ok || o.form == nil || !o.form.addressed || !cmd.addressed || o.form.partition == cmd.partition {
					return true
				}
			}
		}
	}
	return false
}

// placeOf parses TYPE:VALUE. The place of a message in a partition is its number, which equals the number of messages
// before it.
func placeOf(cmd *command) (to node.SeekTo, ok bool) {
	kind, text, found := bytes.Cut(cmd.from, []byte(":"))
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
		return node.SeekTo{Kind: node.SeekID, ID: idAt(cmd.partition, n)}, n >= 0 && cmd.addressed
	}
	return to, false
}

// idAt returns the id of the message with this number. A number beyond the largest possible one gives the largest id,
// which a seek clamps.
func idAt(partition int, number int64) node.ID {
	n := segment.MsgID(min(max(number, 0), int64(segment.MaxMsgID)))
	return batch.MakeID(uint32(min(partition, batch.MaxPartition)), n)
}
