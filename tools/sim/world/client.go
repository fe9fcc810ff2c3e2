package world

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"

	"penstock/internal/meta"
	"penstock/replicate"
)

// client is a process's way to the store: meta.Store. Requests and answers are late, or lost; the watch is late, and in
// order.
type client struct {
	w        *World
	n        *host
	life     int
	reg      meta.Registration
	self     meta.Node
	joined   bool
	closed   bool
	cur      *meta.Snapshot // what the engine has heard
	watching bool           // news are on the way
	leased   int64          // the end of the lease, by the node's monotonic clock
}

func newClient(w *World, n *host) *client { return &client{w: w, n: n, life: n.life} }

// call does request at the store and waits for its answer. Lost requests and answers are ErrUnavailable after a while;
// the request may have been done all the same. What is on its way when the machine's disk goes is lost, as wipe has
// looked at the store before it.
func (c *client) call(ctx context.Context, request func()) error {
	w := c.w
	done, disk := false, c.n.wipes
	lost := func() bool { return w.faults && (w.chance(w.opt.storeDrop) || w.net.cut[c.n.index][c.n.index]) }
	if !lost() {
		w.after(w.skewed(w.opt.storeDelay/4, 2*w.opt.storeDelay), func() {
			if w.now < w.store.out || c.n.wipes != disk {
				return
			}
			request()
			if !lost() {
				c.n.later(w.skewed(w.opt.storeDelay/4, 2*w.opt.storeDelay), func() { done = true })
			}
		})
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	until := w.now + 200*ms
	c.n.later(200*ms, func() {})
	c.n.m.WaitUntil(func() bool { return done || ctx.Err() != nil || w.now >= until })
	if !done {
		return meta.ErrUnavailable
	}
	return nil
}

// Join implements meta.Store.
func (c *client) Join(ctx context.Context, r meta.Registration) (meta.Node, error) {
	c.reg = r
	for {
		sent := c.n.local()
		var self meta.Node
		own := r.Node
		if _, wanted := c.w.store.snap.Levels(); r.Raise != nil && own.StoreLevel < wanted && own.Level >= wanted {
			if err := r.Raise(wanted); err != nil {
				return meta.Node{}, err
			}
			own.StoreLevel = wanted
		}
		before, ok := c.w.store.bootOf(r.Node.Name), false
		if r.Enter != nil {
			if err := r.Enter(c.w.store.rowOf(r.Node.Name)); err != nil {
				return meta.Node{}, err
			}
		}
		var refused error
		err := c.call(ctx, func() {
			if refused = c.w.store.admits(own.Level); refused != nil {
				return
			}
			// The real store compares, too: what a process asked for before it ended does not take the name from the next one.
			if ok = c.w.store.bootOf(r.Node.Name) == before; ok {
				self = c.w.store.register(own, r.Damaged, r.AllDamaged)
			}
		})
		if err == nil && ok {
			c.self, c.joined = self, true
			c.extend(sent)
			break
		}
		if refused != nil {
			return meta.Node{}, refused
		}
		if ctx.Err() != nil {
			return meta.Node{}, meta.ErrUnavailable
		}
		c.n.m.Sleep(ctx, 20*time.Millisecond)
	}
	now := c.w.store.snap
	old := c.cur
	c.cur = now
	c.reg.Changed(between(old, now))
	c.n.m.Go(c.keepLease)
	return c.self, nil
}

// extend tells the engine until when it may serve, by its own clock.
func (c *client) extend(sent int64) {
	c.leased = max(c.leased, sent+c.w.opt.leaseTTL-c.w.opt.leaseMargin)
	c.reg.Lease(time.Unix(0, c.leased))
}

// checkLeased: a node whose lease has ended does nothing of a leader (B83). With the real agreement, only that knows.
func (n *host) checkLeased(what string, args ...any) {
	if n.w.agreement == nil && n.client != nil && n.local() >= n.client.leased {
		n.w.fail("%s %s, and its lease has ended %v ago", n.name, fmt.Sprintf(what, args...),
			time.Duration(n.local()-n.client.leased))
	}
}

func (c *client) keepLease() {
	ctx := context.Background()
	for c.joined && !c.closed {
		c.n.m.Sleep(ctx, time.Duration(c.w.opt.leaseTTL/3))
		if !c.joined || c.closed {
			return
		}
		sent, ok := c.n.local(), false
		if c.call(ctx, func() { ok = c.w.store.keepAlive(c.self.ID, c.self.Boot) }) != nil || !c.joined {
			continue
		}
		if ok {
			c.extend(sent)
			continue
		}
		c.revive(ctx)
	}
}

// revive is for a lease that ran out: before the process serves again it hears of everything that was decided without
// it.
func (c *client) revive(ctx context.Context) {
	sent, revision, ok := c.n.local(), int64(0), false
	if c.call(ctx, func() { revision, ok = c.w.store.revive(c.self.ID, c.self.Boot) }) != nil || !ok {
		return
	}
	c.n.m.WaitUntil(func() bool { return c.cur.Revision >= revision || c.closed })
	if c.joined && !c.closed {
		c.extend(sent)
	}
}

// watch brings news to the engine.
func (c *client) watch() {
	w := c.w
	if !c.joined || c.closed || c.watching {
		return
	}
	c.watching = true
	d := w.skewed(w.opt.storeDelay/4, 2*w.opt.storeDelay)
	if w.faults && (w.net.cut[c.n.index][c.n.index] || w.now < w.store.out) {
		d = 50 * ms
	}
	c.n.later(d, func() {
		c.watching = false
		if c.closed {
			return
		}
		if w.faults && (w.net.cut[c.n.index][c.n.index] || w.now < w.store.out) {
			c.watch()
			return
		}
		now := w.store.snap
		if now == c.cur {
			return
		}
		old := c.cur
		c.cur = now
		c.reg.Changed(between(old, now))
	})
}

// Snapshot implements meta.Store.
func (c *client) Snapshot() *meta.Snapshot { return c.cur }

// heard waits until the engine has heard of what the store is now.
func (c *client) heard(ctx context.Context, revision int64) error {
	c.n.m.WaitUntil(func() bool { return c.cur.Revision >= revision || c.closed || ctx.Err() != nil })
	return ctx.Err()
}

// do is call for a request that ends with an error, and waits until the engine has heard.
func (c *client) do(ctx context.Context, request func() error) error {
	var err error
	var revision int64
	if lost := c.call(ctx, func() { err = request(); revision = c.w.store.snap.Revision }); lost != nil {
		return lost
	}
	if err == nil {
		return c.heard(ctx, revision)
	}
	return err
}

// CreateTopic implements meta.Store.
func (c *client) CreateTopic(ctx context.Context, t meta.Topic) (*meta.Topic, error) {
	t.MinISR = c.w.opt.min
	var made *meta.Topic
	err := c.do(ctx, func() (err error) { made, err = c.w.store.createTopic(t); return err })
	return made, err
}

// DeleteTopic implements meta.Store.
func (c *client) DeleteTopic(ctx context.Context, id uuid.UUID) error {
	return c.do(ctx, func() error { return c.w.store.deleteTopic(id) })
}

// ExpandTopic implements meta.Store.
func (c *client) ExpandTopic(ctx context.Context, id uuid.UUID, partitions int) error {
	return c.do(ctx, func() error { return c.w.store.expandTopic(id, partitions) })
}

// ConfigureTopic implements meta.Store.
func (c *client) ConfigureTopic(ctx context.Context, id uuid.UUID, s meta.TopicSettings) (*meta.Topic, error) {
	var made *meta.Topic
	err := c.do(ctx, func() (err error) { made, err = c.w.store.configureTopic(id, s); return err })
	return made, err
}

// ChangeISR implements meta.Store.
func (c *client) ChangeISR(ctx context.Context, id meta.PartitionID, want *replicate.State) (replicate.State, error) {
	var now replicate.State
	var err error
	if lost := c.call(ctx, func() { now, err = c.w.store.changeISR(id, want) }); lost != nil {
		return replicate.State{}, lost
	}
	return now, err
}

// ReadPartition implements meta.Store.
func (c *client) ReadPartition(ctx context.Context, id meta.PartitionID) (row *meta.Partition, err error) {
	err = c.do(ctx, func() (err error) { row, err = c.w.store.readPartition(id); return err })
	return row, err
}

// HandOver implements meta.Store.
func (c *client) HandOver(ctx context.Context, id meta.PartitionID, st *replicate.State, to replicate.NodeID) error {
	return c.do(ctx, func() error { return c.w.store.handOver(id, st, to) })
}

// ReportCopy implements meta.Store.
func (c *client) ReportCopy(ctx context.Context, id meta.PartitionID, m replicate.Member, s meta.CopyState) error {
	return c.do(ctx, func() error { return c.w.store.reportCopy(id, m, s) })
}

// ReportDown implements meta.Store.
func (c *client) ReportDown(ctx context.Context, node replicate.NodeID, boot uuid.UUID) error {
	return c.do(ctx, func() error { c.w.store.reportDown(node, boot); return nil })
}

// Export implements meta.Store. The simulation has no file systems, and so makes no backups.
func (c *client) Export(context.Context) ([]byte, error) { return nil, errors.ErrUnsupported }

// Leave implements meta.Store.
func (c *client) Leave(ctx context.Context) error {
	c.joined = false
	return c.call(ctx, func() { c.w.store.leave(c.self.ID, c.self.Boot) })
}

// Close implements meta.Store.
func (c *client) Close() error {
	c.closed, c.joined = true, false
	return nil
}

// Raised implements meta.Store.
func (c *client) Raised(ctx context.Context, level int) error {
	return c.do(ctx, func() error { return c.w.store.raised(c.self.ID, c.self.Boot, c.reg.Node.Level, level) })
}

// Operators do not come through a node: see move.go, topics.go and removal.go.

// SetReplicas implements meta.Store. Only worlds with the real agreement change the number of replicas.
func (c *client) SetReplicas(context.Context, uuid.UUID, int) (*meta.Topic, error) {
	return nil, meta.ErrUnavailable
}

// Rebalance implements meta.Store. Only worlds with the real agreement rebalance.
func (c *client) Rebalance(context.Context, meta.RebalanceOrder) error { return meta.ErrUnavailable }

// Tombstone implements meta.Store.
func (c *client) Tombstone(context.Context, meta.TombstoneKey, time.Time) error {
	return meta.ErrUnavailable
}

// CatchUp implements meta.Store.
func (c *client) CatchUp(context.Context) error { return meta.ErrUnavailable }

// RaiseLevel implements meta.Store.
func (c *client) RaiseLevel(context.Context, int) error { return meta.ErrUnavailable }

// Drain implements meta.Store.
func (c *client) Drain(context.Context, replicate.NodeID, bool) error { return meta.ErrUnavailable }

// RemoveNode implements meta.Store.
func (c *client) RemoveNode(context.Context, replicate.NodeID) error { return meta.ErrUnavailable }

// MovePartition implements meta.Store.
func (c *client) MovePartition(context.Context, meta.PartitionID, replicate.NodeID, replicate.NodeID) error {
	return meta.ErrUnavailable
}

// TransferLeader implements meta.Store. Only worlds with the real agreement transfer leaderships.
func (c *client) TransferLeader(context.Context, meta.PartitionID, replicate.NodeID) (replicate.NodeID, error) {
	return 0, meta.ErrUnavailable
}

// ForceLeader implements meta.Store.
func (c *client) ForceLeader(context.Context, meta.PartitionID, replicate.NodeID) error {
	return meta.ErrUnavailable
}
