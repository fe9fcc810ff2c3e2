package native

import (
	"context"
	"time"

	"penstock/internal/node"
	"penstock/internal/node/errs"
	"penstock/internal/server/auth"
	"penstock/internal/server/native/wire"
	"penstock/netproto"
)

// This file begins a subscription: it finds or creates the channel, subscribes there, and answers the client.

// serveSubscribe starts the subscription that openSubscription has registered, on its own goroutine: it may create the
// channel and wait for that, which must not hold up what the client does with other topics.
func (s *session) serveSubscribe(t task, m *wire.Subscribe) {
	u := s.subscription(t.request)
	topic, status, why := s.useChannel(m.Topic, m.Channel)
	if topic == nil {
		s.forgetSubscription(u)
		if u.answers() {
			_ = s.fail(wire.TypeSubscribe, t.request, status, why)
		}
		s.done(&t)
		return
	}
	u.topic = topic
	s.srv.workers.Go(func() {
		began := u.begin()
		s.done(&t)
		if began {
			u.run()
		}
	})
}

// begin subscribes and answers the client. It returns false if the subscription is over: it could not begin, or the
// client has ended it meanwhile.
func (u *subscription) begin() bool {
	err := u.attach()
	if err != nil {
		u.s.forgetSubscription(u)
	}
	switch first := u.answers(); {
	case first && err != nil:
		status, out := u.outcome(err)
		_ = u.s.outcome(wire.TypeSubscribe, u.request, status, out)
		return false
	case err != nil:
		return false
	case !first:
		u.consumer.Close()
		u.s.forgetSubscription(u)
		return false
	}
	untouched, most := u.consumer.Timeouts()
	out := wire.Subscribed{TimeoutMs: uint32(untouched.Milliseconds()), MaxTimeoutMs: uint32(most.Milliseconds())}
	_ = u.s.answer(wire.TypeSubscribe, u.request, netproto.StatusOK, wire.Append(nil, &out))
	return true
}

// attach finds or creates the channel, and subscribes.
func (u *subscription) attach() error {
	m := u.ask
	if m.Partition != wire.NoPartition && int64(m.Partition) >= int64(u.topic.Partitions()) {
		return errs.ErrNoPartition
	}
	creates := u.creates()
	c, err := u.channel()
	if err != nil {
		return err
	}
	if creates {
		u.s.created("topic=" + u.topic.Name() + " channel=" + m.Channel)
	}
	o := node.ConsumerOptions{
		MsgTimeout: time.Duration(m.TimeoutMs) * time.Millisecond, SampleRate: int(m.SampleRate), Tag: m.Tag,
		Label: u.label(),
	}
	if m.Partition != wire.NoPartition {
		o.Partition = &m.Partition
	}
	u.consumer, err = c.AttachLeader(o, u.packer)
	return err
}

// askForChannel bounds the time for which a Subscribe waits to learn whether it creates its channel.
const askForChannel = time.Second

// creates reports whether the Subscribe is about to create the channel, for the audit.
func (u *subscription) creates() bool {
	if !u.ask.Create || u.s.srv.opts.Created == nil {
		return false
	}
	ctx, cancel := context.WithTimeout(u.wanted, askForChannel)
	defer cancel()
	return u.topic.LacksChannel(ctx, u.ask.Channel)
}

func (u *subscription) channel() (*node.Channel, error) {
	m := u.ask
	if _, ok := u.topic.LookupChannel(m.Channel); !ok && !m.Create {
		return nil, errs.ErrNoChannel
	}
	switch m.From {
	case wire.FromID:
		return u.topic.ChannelFrom(u.wanted, m.Channel, node.SeekTo{Kind: node.SeekID, ID: node.ID(m.Value)})
	case wire.FromTime:
		return u.topic.ChannelFrom(u.wanted, m.Channel, node.SeekTo{Kind: node.SeekTime, Time: time.Unix(0, m.Value)})
	case wire.FromOldest:
		return u.topic.ChannelFrom(u.wanted, m.Channel, node.SeekTo{Kind: node.SeekBeginning})
	case wire.FromNewest:
		return u.topic.ChannelFrom(u.wanted, m.Channel, node.SeekTo{Kind: node.SeekEnd})
	}
	return u.topic.Channel(u.wanted, m.Channel)
}

// useChannel returns the topic that a Subscribe names, if the client may subscribe to the channel. Otherwise it returns
// why not.
func (s *session) useChannel(id [16]byte, channel string) (*node.Topic, netproto.Status, string) {
	who, err := s.principal()
	if err != nil {
		return nil, netproto.StatusUnproven, "the token is no longer known"
	}
	topic := s.topic(id)
	if topic == nil {
		return nil, netproto.StatusNotLeader, "this node knows no such topic; ask for metadata"
	}
	if !auth.May(who, auth.Subscribe, auth.Channel(topic.Name(), channel)) {
		s.refused(typeName(wire.TypeSubscribe), "topic="+topic.Name()+" channel="+channel, "UNAUTHORIZED")
		return nil, netproto.StatusUnproven, "the token does not allow to consume this channel of the topic " + topic.Name()
	}
	return topic, netproto.StatusOK, ""
}
