package node

import "penstock/internal/node/inbox"

// current returns the options of which some may change: see Change. Those that cannot are as they are in opts.
func (e *Engine) current() *Options { return e.changed.Load() }

// Change takes over from o what of the Options may change while the engine runs, and leaves the rest as it is: what is
// kept of topics that have no such setting of their own, how often retention runs, how many topics, partitions and
// channels there may be and a token's share of them, the sizes of messages, headers and inboxes, the longest delay, and
// the defaults of new topics. Topics, channels and messages that exceed a new limit stay. After an error, which is an
// ErrOptions, everything is as it was. Any goroutine may call it.
func (e *Engine) Change(o Options) error {
	if err := o.setDefaults(); err != nil {
		return err
	}
	e.changing.Lock()
	defer e.changing.Unlock()
	next := e.opts
	next.RetentionBytes, next.RetentionCount, next.RetentionAge = o.RetentionBytes, o.RetentionCount, o.RetentionAge
	next.RetentionInterval = o.RetentionInterval
	next.MaxTopics, next.MaxPartitions, next.MaxChannels = o.MaxTopics, o.MaxPartitions, o.MaxChannels
	next.TokenShare, next.MaxDefer = o.TokenShare, o.MaxDefer
	next.MaxMessageBytes, next.MaxHeaderBytes = o.MaxMessageBytes, o.MaxHeaderBytes
	next.MaxInboxBytes, next.MaxNodeInboxBytes = o.MaxInboxBytes, o.MaxNodeInboxBytes
	next.DefaultPartitions, next.DefaultQuotaBytes = o.DefaultPartitions, o.DefaultQuotaBytes
	next.DisableAutoCreate = o.DisableAutoCreate
	e.changed.Store(&next)
	e.limits.Change(next.sizes())
	e.store.Change(next.TokenShare, next.RetentionInterval, next.inboxes())
	e.channels.SweepEvery(next.RetentionInterval)
	e.shared.Change(next.ofTopics())
	return nil
}

func (o *Options) sizes() inbox.Sizes {
	return inbox.Sizes{MaxMessageBytes: o.MaxMessageBytes, MaxHeaderBytes: o.MaxHeaderBytes, MaxDefer: o.MaxDefer}
}

func (o *Options) inboxes() inbox.Bounds {
	return inbox.Bounds{
		MaxInboxBytes: o.MaxInboxBytes, MaxNodeInboxBytes: o.MaxNodeInboxBytes, PublishTimeout: o.PublishTimeout,
		AdmitTimeout: o.AdmitTimeout,
	}
}
