package nsq

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math"
	"strconv"
	"time"

	"penstock/engine"
	"penstock/engine/core"
	"penstock/engine/meta"
	"penstock/segment"
)

// The files youzan*.go are what clients of youzan's NSQ use beyond NSQ: publishing to and subscribing at one partition,
// ordered subscriptions, headers in JSON ("ext"), trace ids and places in the log. Stock clients see none of it: every
// difference depends on a verb or a parameter that they do not send.

// partitionArgs are the parameters of a command that stock NSQ does not have.
type partitionArgs struct {
	addressed bool   // a partition was named
	partition int    // if addressed: 0 and above, perhaps beyond what the topic has
	from      []byte // of a SUB_ADVANCED: TYPE:VALUE, where to begin
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

// plain is the verb that v extends: it has the same limits and, in error codes, its name.
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

// partitionParam reads the number of a partition; -1: none is named. After PUB, MPUB and SUB, where nsqd ignores
// further parameters, what is no number is ignored.
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

// subscribeParams reads the partition, and the place of a SUB_ADVANCED.
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

// beyondNSQ says that only a client of youzan's can have sent the command.
func (cmd *command) beyondNSQ() bool { return cmd.addressed || cmd.verb.plain() != cmd.verb }

// messageForm is how message frames look to a client of youzan's, and of which partition it gets messages. Immutable.
type messageForm struct {
	ext           bool // headers as JSON in each message: the client identified with extend_support
	detail        bool // where in the partition it is: SUB_ADVANCED and SUB_ORDERED
	partitionArgs      // its partition, if it named one
}

// formOf is how messages go to the subscription; nil: as NSQ says.
func formOf(cmd *command, set *settings) *messageForm {
	if cmd.verb == verbSub && !cmd.addressed && !set.extendSupport {
		return nil
	}
	return &messageForm{
		ext: set.extendSupport, detail: cmd.verb != verbSub,
		partitionArgs: partitionArgs{addressed: cmd.addressed, partition: cmd.partition},
	}
}

// messageID reads the id of a FIN, REQ or TOUCH. In youzan's form it is a number, followed by the trace id.
func (c *conn) messageID(id []byte) (core.ID, error) {
	if c.form == nil {
		return core.ParseID(id)
	}
	return core.ID(binary.BigEndian.Uint64(id)), nil
}

// Codes of youzan's. After the first three its clients look the topic up again.
const (
	codeTopicMissing = "E_TOPIC_NOT_EXIST"
	codeNotLeader    = "E_FAILED_ON_NOT_LEADER"
	codeNotWritable  = "E_FAILED_ON_NOT_WRITABLE"
	codeOrderNeeded  = "E_SUB_ORDER_IS_MUST"
	codeBadExt       = "E_INVALID_JSON_HEADER"
)

// youzanCode is youzan's code for an error that its clients treat specially; "": none.
func youzanCode(err error) string {
	for _, x := range []struct {
		code string
		errs []error
	}{
		{codeTopicMissing, []error{engine.ErrNoPartition, engine.ErrNoTopic, engine.ErrAutoCreateOff}},
		{codeNotLeader, []error{engine.ErrNoLeader, engine.ErrMoved}},
		{codeNotWritable, []error{engine.ErrNoQuorum, engine.ErrNoSpace, engine.ErrReadOnly, engine.ErrDisk}},
		{codeBadExt, []error{engine.ErrHeaders}},
	} {
		for _, e := range x.errs {
			if errors.Is(err, e) {
				return x.code
			}
		}
	}
	return ""
}

// leads says whether this node leads a partition, as the newest snapshot has it.
func (s *Server) leads(t *engine.Topic, partition int) bool {
	snap := s.engine.Snapshot()
	if snap == nil {
		return true
	}
	p, n := partitionRow(snap, t.Name(), uint32(partition)), snap.Nodes[s.engine.Node().ID]
	return p != nil && n != nil && p.State.Leader == n.ID && p.State.Boot == n.Boot
}

// partitionRow is the agreed state of a partition; nil: there is none.
func partitionRow(s *meta.Snapshot, topic string, number uint32) *meta.Partition {
	t := s.Names[topic]
	if t == nil {
		return nil
	}
	return s.Partitions[meta.PartitionID{Topic: t.ID, Partition: number}]
}

// onlyPartition is the partition that a SUB named; nil: none.
func (cmd *command) onlyPartition() *uint32 {
	if !cmd.addressed {
		return nil
	}
	n := uint32(cmd.partition)
	return &n
}

// subscribeAt checks a SUB whose topic and channel exist. A partition that it names must be led here. A channel whose
// order consumers have to declare takes no SUB without that, not from stock clients either: a client that does not keep
// the order must not read it. B58
func (c *conn) subscribeAt(cmd *command, t *engine.Topic, ch *engine.Channel) *fault {
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
	if ch.Settings().Order == core.OrderDeclared {
		return faultf("%s channel %s delivers in order: subscribe with SUB_ORDERED", codeOrderNeeded, ch.Name())
	}
	return nil
}

// orderTime is how long a SUB_ORDERED waits until this node has heard that the channel is ordered. The node that
// ordered it may die before it told all leaders; then the leader of partition 0 tells them after 2 s.
const orderTime = 5 * time.Second

// makeOrdered makes a channel ordered that nobody configured. One that somebody configured otherwise is refused. When
// it returns nil, the order is in force at this node: a consumer that subscribed earlier would be sent as many messages
// at once as it has RDY for.
func (c *conn) makeOrdered(ch *engine.Channel) *fault {
	for {
		s, err := ch.ReadSettings(c.ctx)
		if err == nil && (s.Order == core.OrderDeclared || s.Order == core.OrderPartition) {
			return c.awaitOrder(ch, s.Version)
		}
		if err == nil && s.Version != 0 {
			return faultf(
				"E_INVALID SUB_ORDERED channel %s is configured without order: set its order to partition first", ch.Name())
		}
		if err == nil {
			s.Order = core.OrderDeclared
			_, err = ch.Configure(c.ctx, s)
		}
		switch {
		case errors.Is(err, engine.ErrVersion): // another consumer of the same kind, most likely
		case err != nil:
			return faultf("E_SUB_FAILED SUB failed %v", err)
		default:
			return nil
		}
	}
}

// awaitOrder waits until this node has settings of the version, which another leader has already.
func (c *conn) awaitOrder(ch *engine.Channel, version uint64) *fault {
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
// partition if it names one, may do that: the others would lose their place.
func (c *conn) seekFrom(cmd *command, ch *engine.Channel) *fault {
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
	if err != nil {
		return faultf("E_SUB_FAILED SUB failed %v", err)
	}
	return nil
}

// othersSubscribe says whether the channel has a consumer that may get messages of what the command names.
func (c *conn) othersSubscribe(cmd *command, ch *engine.Channel) bool {
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

// placeOf reads TYPE:VALUE. A message's place in a partition is its number, which is also how many were before it.
func placeOf(cmd *command) (to engine.SeekTo, ok bool) {
	kind, text, found := bytes.Cut(cmd.from, []byte(":"))
	n, err := strconv.ParseInt(string(text), 10, 64)
	if !found || err != nil {
		return to, false
	}
	switch string(kind) {
	case "timestamp": // seconds
		return engine.SeekTo{Kind: engine.SeekTime, Time: time.Unix(n, 0)}, n >= 0
	case "special":
		return engine.SeekTo{Kind: engine.SeekEnd}, n == -1
	case "virtual_queue", "msgcount":
		return engine.SeekTo{Kind: engine.SeekID, ID: idAt(cmd.partition, n)}, n >= 0 && cmd.addressed
	}
	return to, false
}

// idAt is the id of a message's number; one that no partition can have is the largest, which a seek clamps.
func idAt(partition int, number int64) engine.ID {
	n := segment.MsgID(min(max(number, 0), int64(segment.MaxMsgID)))
	return core.MakeID(uint32(min(partition, core.MaxPartition)), n)
}
