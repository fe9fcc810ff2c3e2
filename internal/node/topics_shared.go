package node

import (
	"context"

	"penstock/internal/node/catalog"
	"penstock/internal/node/channel"
	"penstock/internal/node/flush"
	"penstock/internal/node/topic"
)

// newChannelNode returns the channel.Shared, which the channels of this node share.
func (e *Engine) newChannelNode() *channel.Shared {
	o := &e.opts
	return channel.NewShared(channel.Config{
		Host: e.host, Log: e.log, Clock: e.clock, Tasks: &e.wg, Stop: e.stop, Cluster: e.members.others(),
		Limits: o.ofChannels(), Latencies: o.Latencies,
		Lease: e.members, Closing: e.catalog.Closed, Context: e.members.context,
	})
}

// newTopicShared returns the topic.Shared, which the topics of this node share.
func (e *Engine) newTopicShared() *topic.Shared {
	env := topic.Env{
		Host: e.host, Log: e.log, Clock: e.clock, Store: e.store, Limits: &e.limits, News: &e.news, Channels: e.channels,
		Catalog: catalogView{e.catalog, e}, NodeID: e.node.NodeID(), Closed: e.catalog.Closed,
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

// newCatalog returns the catalog of this node. The topics that it lists come with newTopicShared.
func (e *Engine) newCatalog() *catalog.Catalog {
	return catalog.New(catalog.Env{
		Host: e.host, Log: e.log, Clock: e.clock, Disk: e.disk, Store: e.store, News: &e.news,
		Listed: func() int64 { return e.shared.Partitions() },
		Limits: func() catalog.Limits {
			o := e.current()
			return catalog.Limits{
				MaxTopics: o.MaxTopics, MaxPartitions: o.MaxPartitions, TokenShare: o.TokenShare, MaxStateBytes: o.MaxStateBytes,
			}
		},
	})
}

// catalogView is the catalog as the topics see it, which also make and delete topics: see topic.Catalog.
type catalogView struct {
	*catalog.Catalog
	e *Engine
}

var _ topic.Catalog = catalogView{}

func (c catalogView) MakeTopic(ctx context.Context, name, madeBy string) (*Topic, error) {
	return c.e.CreateTopicWith(ctx, name, TopicOptions{MadeBy: madeBy})
}

func (c catalogView) DeleteTopic(ctx context.Context, name string) error {
	return c.e.DeleteTopic(ctx, name)
}
