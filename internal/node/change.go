package node

import (
	"time"

	"penstock/internal/node/budget"
	"penstock/internal/node/inbox"
	"penstock/internal/node/partition"
)

// current returns the options of now: see Change. Those that cannot change are as they are in opts.
func (e *Engine) current() *Options { return e.changed.Load() }

// publishTimeout is Options.PublishTimeout of now.
func (e *Engine) publishTimeout() time.Duration { return e.current().PublishTimeout }

// Change takes over from o what of the Options may change while the engine runs: see changes. It leaves the rest as it
// is: which files there are and how large, what sizes memory, what the node is, and what the program gave it. Topics,
// channels, consumers and messages that exceed a new limit stay. After an error, which is an ErrOptions, everything is
// as it was. Any goroutine may call it.
func (e *Engine) Change(o Options) error {
	next := e.opts
	next.changes(&o)
	if err := next.setDefaults(); err != nil {
		return err
	}
	e.changing.Lock()
	defer e.changing.Unlock()
	e.changed.Store(&next)
	e.limits.Change(next.sizes())
	e.store.Change(next.ofStore())
	e.channels.Change(next.ofChannels())
	e.shared.Change(next.ofTopics()) // wakes the channels
	e.disks.Change(next.DiskPatience, next.DiskFailedAfter)
	e.scrub.Every(next.ScrubInterval)
	_ = e.catalog.WhileOpen(func() { e.startScrub(next.ScrubInterval) }) // an error: the engine closes
	if e.cluster != nil {
		e.cluster.Retune(&next.Cluster.Replication)
		e.cluster.Net.LimitHandshakes(next.Cluster.MaxHandshakes)
	}
	return nil
}

// changes takes over from to what may change while the engine runs.
func (o *Options) changes(to *Options) {
	o.RetentionBytes, o.RetentionCount, o.RetentionAge = to.RetentionBytes, to.RetentionCount, to.RetentionAge
	o.RetentionInterval, o.ScrubInterval, o.ConfirmInterval = to.RetentionInterval, to.ScrubInterval, to.ConfirmInterval
	o.MaxMessageBytes, o.MaxBatchBytes, o.MaxHeaderBytes = to.MaxMessageBytes, to.MaxBatchBytes, to.MaxHeaderBytes
	o.MaxInflationRatio, o.MaxInflatedBytes = to.MaxInflationRatio, to.MaxInflatedBytes
	o.MaxInboxBytes, o.MaxNodeInboxBytes = to.MaxInboxBytes, to.MaxNodeInboxBytes
	o.MaxTopics, o.MaxPartitions, o.MaxChannels = to.MaxTopics, to.MaxPartitions, to.MaxChannels
	o.MaxConsumers, o.MaxRanges, o.MaxDeferred = to.MaxConsumers, to.MaxRanges, to.MaxDeferred
	o.MaxStateBytes, o.TokenShare = to.MaxStateBytes, to.TokenShare
	o.MaxDefer, o.MsgTimeout = to.MaxDefer, to.MsgTimeout
	o.MaxMsgTimeout, o.MaxReqTimeout = to.MaxMsgTimeout, to.MaxReqTimeout
	o.PublishTimeout, o.AdmitTimeout, o.SlowCommit = to.PublishTimeout, to.AdmitTimeout, to.SlowCommit
	o.DiskPatience, o.DiskFailedAfter = to.DiskPatience, to.DiskFailedAfter
	o.MaxOpenSegments, o.MaxMappedSegments = to.MaxOpenSegments, to.MaxMappedSegments
	o.ReadAheadBytes, o.MaxDeliveriesAtOne = to.ReadAheadBytes, to.MaxDeliveriesAtOne
	o.DefaultPartitions, o.DefaultQuotaBytes = to.DefaultPartitions, to.DefaultQuotaBytes
	o.DisableAutoCreate = to.DisableAutoCreate
	if o.Cluster != nil && to.Cluster != nil {
		c := *o.Cluster
		c.LeaveTimeout, c.MaxHandshakes = to.Cluster.LeaveTimeout, to.Cluster.MaxHandshakes
		c.Replication.LagMaxNs = to.Cluster.Replication.LagMaxNs
		c.Replication.CatchUpBytesPerSec = to.Cluster.Replication.CatchUpBytesPerSec
		o.Cluster = &c
	}
}

func (o *Options) sizes() inbox.Sizes {
	return inbox.Sizes{
		MaxMessageBytes: o.MaxMessageBytes, MaxBatchBytes: o.MaxBatchBytes, MaxHeaderBytes: o.MaxHeaderBytes,
		MaxDefer: o.MaxDefer, MaxInflationRatio: o.MaxInflationRatio, MaxInflatedBytes: o.MaxInflatedBytes,
		AdmitTimeout: o.AdmitTimeout,
	}
}

func (o *Options) ofStore() partition.Limits {
	return partition.Limits{
		State: budget.Limits{MaxStateBytes: o.MaxStateBytes, MaxRanges: o.MaxRanges, TokenShare: o.TokenShare},
		Inboxes: inbox.Bounds{
			MaxInboxBytes: o.MaxInboxBytes, MaxNodeInboxBytes: o.MaxNodeInboxBytes, PublishTimeout: o.PublishTimeout,
			AdmitTimeout: o.AdmitTimeout,
		},
		MaxOpenSegments: o.MaxOpenSegments, MaxMappedSegments: o.MaxMappedSegments,
		RetentionInterval: o.RetentionInterval, MaxReqTimeout: o.MaxReqTimeout, SlowCommit: o.SlowCommit,
	}
}
