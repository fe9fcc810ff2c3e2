package node

import (
	"context"

	"penstock/internal/node/channel"
	"penstock/internal/node/datadir"
	"penstock/internal/node/errs"
	"penstock/internal/node/flush"
	"penstock/internal/node/partition"
	"penstock/internal/node/topic"
)

// newChannelNode returns the channel.Shared, which the channels of this node share.
func (e *Engine) newChannelNode() *channel.Shared {
	o := &e.opts
	return channel.NewShared(channel.Config{
		Host: e.host, Log: e.log, Clock: e.clock, Tasks: &e.wg, Stop: e.stop, Cluster: e.members.others(),
		Limits: o.ofChannels(), Latencies: o.Latencies,
		Lease: e.members, Closing: e.isClosed, Context: e.members.context,
	})
}

// newTopicShared returns the topic.Shared, which the topics of this node share.
func (e *Engine) newTopicShared() *topic.Shared {
	env := topic.Env{
		Host: e.host, Log: e.log, Clock: e.clock, Store: e.store, Limits: &e.limits, News: &e.news, Channels: e.channels,
		Catalog: catalogView{e}, NodeID: e.node.NodeID(), Closed: e.isClosed,
		Options: e.opts.ofTopics(),
	}
	if cn := e.cluster; cn != nil {
		env.Cluster = &topic.Cluster{Env: cn.Env, Operations: cn.ops, Consumers: cn.remotes, View: cn.view}
	}
	return topic.NewShared(env)
}

// ofChannels are the options that channels use.
func (o *Options) ofChannels() channel.Limits {
	return channel.Limits{
		MaxConsumers: o.MaxConsumers, MaxRanges: o.MaxRanges, MaxDeferred: o.MaxDeferred,
		MsgTimeout: o.MsgTimeout, MaxMsgTimeout: o.MaxMsgTimeout, MaxReqTimeout: o.MaxReqTimeout,
		ConfirmInterval: o.ConfirmInterval, SweepInterval: o.RetentionInterval, ReadAheadBytes: o.ReadAheadBytes,
		MaxDeliveriesAtOne: o.MaxDeliveriesAtOne,
	}
}

// ofTopics are the options that topics use.
func (o *Options) ofTopics() topic.Options {
	return topic.Options{
		DisableAutoCreate: o.DisableAutoCreate, MaxChannels: o.MaxChannels, TokenShare: o.TokenShare,
		ReadAheadBytes: o.ReadAheadBytes, PublishTimeout: o.PublishTimeout, MsgTimeout: o.MsgTimeout,
		MaxMsgTimeout: o.MaxMsgTimeout, EphemeralGrace: o.ephemeralGrace,
		Retention: flush.Limits{
			RetentionBytes: o.RetentionBytes, RetentionCount: int64(o.RetentionCount), RetentionAge: o.RetentionAge,
		},
	}
}

// catalogView is the catalog of topics as the topics see it: see topic.Catalog.
type catalogView struct{ *Engine }

var _ topic.Catalog = catalogView{}

func (c catalogView) MakeTopic(ctx context.Context, name, madeBy string) (*Topic, error) {
	return c.CreateTopicWith(ctx, name, TopicOptions{MadeBy: madeBy})
}

func (c catalogView) RoomToGrow(t *Topic, partitions int) error { return c.roomToGrow(t, partitions) }

func (c catalogView) Grow(t *Topic, partitions int, by string) (done func(), err error) {
	return c.grow(t, partitions, by)
}

func (c catalogView) WriteFile(m *datadir.Topic) error { return c.createTopicFiles(m) }

func (c catalogView) AddCopies(parts []*partition.Partition) error {
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return errs.ErrClosed
	}
	c.store.Add(parts)
	c.mu.Unlock()
	c.refuseIfPoisoned(parts)
	return nil
}

func (c catalogView) Recounted(change func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	change()
}

// refuseIfPoisoned closes the inboxes of partitions that were just listed, if the commit log has failed. When the
// commit log fails, the failure is stored first, and then all listed inboxes are closed. So either that closes these
// inboxes, or this check sees the failure.
func (e *Engine) refuseIfPoisoned(parts []*partition.Partition) {
	if e.store.Failure() == nil {
		return
	}
	for _, pt := range parts {
		pt.CloseAndRefuse(e.store.Refusal(), false)
	}
}
