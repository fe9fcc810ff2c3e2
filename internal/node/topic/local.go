package topic

import (
	"context"
	"errors"
	"slices"

	"penstock/internal/lock"
	"penstock/internal/node/errs"
	"penstock/internal/node/fanout"
	"penstock/internal/node/fold"
	"penstock/internal/node/inbox"
	"penstock/internal/node/names"
	"penstock/internal/node/partition"
	"penstock/internal/node/route"
)

// Local is this node's part of a topic: the channels that this node has, and which partitions it has given them.
// Package node, which makes and deletes topics and learns of those of the cluster, calls its exported methods.
//
// Operations on whole channels ask the leaders of all partitions (Topic.onLeaders); each leader executes them on its
// Local.
//
// mu guards channels, deletedChannels and unreconciled, and is held for a few instructions. changing is held during a
// whole creation, deletion, pause or expansion, which waits for commits; mu is taken inside it. A crash loses it all:
// Restore makes the channels of a single node from the logs, and syncChannels those of a leader.
type Local struct {
	t *Topic

	mu              lock.Mutex[lock.Topic]
	channels        map[string]*Channel
	deletedChannels fanout.DeletedNames // names of channels that were deleted a moment ago
	unreconciled    unreconciled        // channels whose settings the leaders may see differently
	// changing is held by one creation, deletion, pause or expansion at a time. The holder may wait for commits, the
	// disk or other nodes, so nothing that must answer in time may take it.
	changing lock.Mutex[lock.TopicChanging]
	adoption route.Adoption // which partitions the channels have; changing guards it

	incomplete []incompletePart // set by Restore, consumed by Complete
}

func (t *Topic) Local() *Local { return &t.local }

// create creates the channel in the partitions that this node leads, and returns when that is committed.
// It takes changing.
func (l *Local) create(ctx context.Context, name string, o origin) (*Channel, error) {
	if err := l.lockInitialized(ctx); err != nil {
		return nil, err
	}
	defer l.changing.Unlock()
	if c, ok := l.t.LookupChannel(name); ok {
		return c, nil
	}
	if l.t.shared.Deleted.Load() {
		return nil, errs.ErrDeleted
	}
	l.mu.Lock()
	n := len(l.channels)
	l.mu.Unlock()
	if n >= l.t.env.options().MaxChannels {
		return nil, &errs.LimitError{
			Err: errs.ErrTooManyChans, What: "with this one the number of the topic's channels", Value: n + 1,
			Most: l.t.env.options().MaxChannels, Setting: "max-channels",
		}
	}
	if !names.Ephemeral(name) {
		if err := l.t.stateFull(); err != nil {
			return nil, err
		}
	}
	c := newChannel(l.t, name)
	if err := c.create(ctx, o); err != nil {
		c.local.Shut(err)
		return nil, err
	}
	l.mu.Lock()
	closed := l.t.env.Closed()
	if !closed {
		l.channels[name] = c // Close shuts it from here on
	}
	l.mu.Unlock()
	if closed {
		c.local.Shut(errs.ErrClosed)
		return nil, errs.ErrClosed
	}
	c.local.Start()
	return c, nil
}

// deleteNamed deletes the channel in the partitions that this node leads, and returns when that is committed. It
// takes changing.
func (l *Local) deleteNamed(ctx context.Context, name string) error {
	if err := l.lockInitialized(ctx); err != nil {
		return err
	}
	defer l.changing.Unlock()
	if c, ok := l.t.LookupChannel(name); ok {
		return l.deleteChannel(ctx, c)
	}
	// The caller may be repeating a deletion that was refused or is not committed yet. Only another entry, behind it in
	// the log, makes sure that the channel is gone.
	held, open := l.inLogs(name)
	if held || open {
		if err := l.writeDeleted(ctx, name); held || err != nil {
			return err
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.deletedChannels.Missing(name, l.t.env.Now(), errs.ErrNoChannel)
}

// inLogs looks for a channel that this node does not have in the logs of the partitions that this node leads. held says
// that one of these logs has the channel nevertheless; open says that the end of one of them is not committed.
func (l *Local) inLogs(name string) (held, open bool) {
	for _, pt := range l.t.PartitionList() {
		if names.Ephemeral(name) || !pt.Leading.Load() {
			continue
		}
		has, end := pt.FindChannel(name)
		held, open = held || has, open || end
	}
	return held, open
}

// deleteChannel ends the channel and writes its deletion to the logs. changing is held.
func (l *Local) deleteChannel(ctx context.Context, c *Channel) error {
	c.local.Shut(errs.ErrDeleted)
	_, led := c.local.Settings()
	l.mu.Lock()
	delete(l.channels, c.name)
	if led { // otherwise the channel here only served clients of other leaders, and proves nothing about the deletion
		l.deletedChannels.Add(c.name, l.t.env.Now())
	}
	l.mu.Unlock()
	if c.ephemeral {
		return nil
	}
	return l.writeDeleted(ctx, c.name)
}

// writeDeleted writes the deletion of a channel into the logs of the partitions that this node leads. changing is held.
func (l *Local) writeDeleted(ctx context.Context, name string) error {
	return l.writeControls(ctx, []fold.Control{{Kind: fold.ChannelDeleted, Channel: name}})
}

// Start starts the goroutines of the channels that have none.
func (l *Local) Start() {
	for _, c := range l.t.Channels() {
		c.local.Start()
	}
}

// Close shuts the channels that this node has, and ends the remote consumers of the topic unless the partitions
// have only moved (ErrMoved).
func (l *Local) Close(err error) {
	for _, c := range l.t.Channels() {
		c.local.Shut(err)
	}
	if l.t.env.Cluster != nil && !errors.Is(err, errs.ErrMoved) {
		l.t.env.Cluster.Consumers.EndTopic(l.t.View(), err)
	}
}

// pause pauses or unpauses the partitions that this node leads, and returns when that is committed. It takes
// changing.
func (l *Local) pause(ctx context.Context, paused bool) error {
	if err := l.lockInitialized(ctx); err != nil {
		return err
	}
	defer l.changing.Unlock()
	// The entry is written even if the topic is already in that state: a partition that another node led until now may
	// have missed an earlier request.
	err := l.writeControls(ctx, []fold.Control{{Kind: fold.TopicPaused, Flag: paused}})
	if err != nil {
		return err
	}
	l.t.paused.Store(paused)
	for _, c := range l.t.Channels() {
		c.local.Wake()
	}
	return nil
}

// empty empties the partitions that this node leads, and returns when that is committed. It takes changing.
func (l *Local) empty(ctx context.Context) error {
	if err := l.lockInitialized(ctx); err != nil {
		return err
	}
	defer l.changing.Unlock()
	return l.writeControls(ctx, []fold.Control{{Kind: fold.TopicEmptied}})
}

// Restore makes the channels that are in the log of the first partition whose fold is known (WhyUnread). The channels
// do not get partitions whose fold is unknown. A single node calls it in Open, before the committer starts, so it needs
// no lock.
func (l *Local) Restore() {
	first := l.t.PartitionList()[0]
	for _, pt := range l.t.PartitionList() {
		if first.WhyUnread() != nil {
			first = pt
		}
	}
	var names []string
	paused := first.ReadChannels(func(cur *fold.Cursor) { names = append(names, cur.Name) })
	for _, name := range names {
		c := newChannel(l.t, name)
		for _, pt := range l.t.PartitionList() {
			if pt.WhyUnread() == nil {
				pt.Follow(c.local, c.name)
			}
		}
		l.channels[name] = c
		c.local.ApplyPosts()
	}
	l.t.paused.Store(paused)
	l.findIncomplete()
}

// Add adds a partition to the end. Only one goroutine at a time may call it; readers need no lock.
func (l *Local) Add(pt *partition.Partition) {
	parts := append(slices.Clone(l.t.PartitionList()), pt)
	l.t.list.Store(&parts)
	l.t.tally.recount()
}

// Abandon closes the logs of a topic that was made and never listed.
func (l *Local) Abandon() {
	for _, pt := range l.t.PartitionList() {
		if pt.Log() != nil {
			_ = pt.Log().Close() // nothing was written
		}
	}
}

// Delete deletes this node's copies (parts) of the topic; there is at least one. It takes changing, and waits for the
// tombstone to be durable. Then it calls gone, which takes the topic out of the catalog and moves its files to the
// trash; release frees the files of the commit log from the tombstone on. After a crash before the tombstone is
// durable, the topic is still there; after it, the next start moves the files to the trash.
func (l *Local) Delete(parts []*partition.Partition, gone func(release func())) error {
	l.t.shared.Deleted.Store(true)
	l.t.env.Host.Lock(&l.t.local.changing)
	defer l.t.local.changing.Unlock()
	l.t.local.Close(errs.ErrDeleted)
	for _, pt := range parts {
		pt.Tell()
	}
	for _, pt := range parts[1:] {
		pt.CloseAndRefuse(errs.ErrDeleted, false)
	}
	// The tombstone goes through the inbox of the first partition, behind all puts that the inbox has accepted.
	own := &inbox.Special{OnCommit: func() { l.t.env.Store.RemoveTopic(l.t.ID()) }}
	if err := parts[0].WriteTombstone(own); err != nil {
		return err
	}
	parts[0].CloseAndRefuse(errs.ErrDeleted, false)
	gone(own.Release)
	return nil
}

// writeControls appends the same control entries to every partition that this node leads, and returns when all are
// committed. For the other partitions, the same operation runs on their leaders (onLeaders). After an error or a crash
// the entries are in the logs of some of the partitions, or of none.
func (l *Local) writeControls(ctx context.Context, controls []fold.Control) error {
	return l.writeControlsOf(ctx, func(*partition.Partition) ([]fold.Control, error) {
		return slices.Clone(controls), nil // each log fills in its own
	}, nil)
}

// writeControlsOf is writeControls with entries of its own for each partition. An error of controls ends it. onCommit
// (nil: nothing) runs for each partition at the moment of its commit: see inbox.List.Committed for the lock.
func (l *Local) writeControlsOf(
	ctx context.Context, controls func(*partition.Partition) ([]fold.Control, error),
	onCommit func(*partition.Partition),
) error {
	var ws []*inbox.Waiter
	var err error
	for _, pt := range l.t.PartitionList() {
		if !pt.Leading.Load() {
			continue
		}
		own := new(inbox.Special)
		if own.Controls, err = controls(pt); err != nil {
			break
		}
		if onCommit != nil {
			own.OnCommit = func() { onCommit(pt) }
		}
		var w *inbox.Waiter
		if w, err = pt.AppendControls(ctx, own); err != nil {
			break
		}
		ws = append(ws, w)
	}
	for _, w := range ws {
		err = errors.Join(err, w.Result(l.t.env.Host))
	}
	return err
}
