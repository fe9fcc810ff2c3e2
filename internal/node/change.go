package node

// current returns the options of which some may change: see Change. Those that cannot are as they are in opts.
func (e *Engine) current() *Options { return e.changed.Load() }

// Change takes over from o what of the Options may change while the engine runs, and leaves the rest as it is: what is
// kept of topics that have no such setting of their own, how often retention runs, how many topics, partitions and
// channels there may be and a token's share of them, the longest delay, and what new topics get. What is beyond a limit
// stays. After an error, which is an ErrOptions, everything is as it was. Any goroutine may call it.
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
	next.DefaultPartitions, next.DefaultQuotaBytes = o.DefaultPartitions, o.DefaultQuotaBytes
	next.DisableAutoCreate = o.DisableAutoCreate
	e.changed.Store(&next)
	e.limits.Defer(next.MaxDefer)
	e.store.Change(next.TokenShare, next.RetentionInterval)
	e.channels.SweepEvery(next.RetentionInterval)
	e.shared.Change(next.ofTopics())
	return nil
}
