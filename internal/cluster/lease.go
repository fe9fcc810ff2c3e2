package cluster

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"time"

	"penstock/internal/cluster/kv"
	"penstock/internal/meta"
)

// keepLease extends the lease until ctx ends, or until another process has taken this node's name. If the lease has run
// out, the same process gets a new one, and continues to lead the partitions that no other node could take over. It
// runs on its own goroutine, and closes leasing at its end.
func (s *store) keepLease(ctx context.Context, r *meta.Registration) {
	defer close(s.leasing)
	every := s.opts.LeaseTTL / 3
	wait := every
	var news leaseNews
	for {
		if s.await(ctx, wait, s.relive, nil) == byEnd {
			return
		}
		err := s.extend(ctx, r)
		switch {
		case err == nil:
			news.extended(s.log, leaseClock(r))
			wait = every
		case ctx.Err() != nil:
			return
		case errors.Is(err, errReplaced):
			s.log.Error("another process has registered under this node's name, or the node was removed: this process serves " +
				"nothing any more; stop it")
			s.endService(r)
			_ = s.kv.Revoke(ctx, s.leaseID())
			return
		default:
			news.failed(s.log, leaseClock(r), err)
			wait = every / 4
		}
	}
}

// leaseNewsTime is the time between two log lines about a lease that cannot be extended: an outage may last for days.
const leaseNewsTime = time.Minute

// leaseNews bounds what the log says of a lease that cannot be extended. keepLease's goroutine uses it.
type leaseNews struct {
	attempts    int       // that have failed since the lease was last extended
	since, told time.Time // of the first of them, and of the newest log line; set if attempts > 0
}

// failed tells of the first failure, and then of one in leaseNewsTime. A clock that is set back tells at once.
func (n *leaseNews) failed(log *slog.Logger, now time.Time, err error) {
	if n.attempts++; n.attempts == 1 {
		n.since = now
	} else if age := now.Sub(n.told); age >= 0 && age < leaseNewsTime {
		return
	}
	n.told = now
	log.Warn("the lease could not be extended; trying on, and saying so once a minute", "attempts", n.attempts,
		"for", max(now.Sub(n.since), 0).Round(time.Second), "error", err)
}

// extended tells that the failures are over, if there were any.
func (n *leaseNews) extended(log *slog.Logger, now time.Time) {
	if n.attempts > 0 {
		log.Info("the lease is extended again", "attempts", n.attempts,
			"after", max(now.Sub(n.since), 0).Round(time.Millisecond))
	}
	*n = leaseNews{}
}

// leaseClock returns the time. It is called before the store is asked for more time, so that the way of request and
// answer counts against this node.
func leaseClock(r *meta.Registration) time.Time {
	if r.Clock == nil {
		return time.Now()
	}
	return r.Clock()
}

// extend does one round. It returns nil only if the lease lives and its live row exists.
func (s *store) extend(ctx context.Context, r *meta.Registration) error {
	ctx, cancel := s.withTimeout(ctx, s.opts.LeaseTTL/2)
	defer cancel()
	self, boot := s.self()
	if st := s.cur.Load(); st != nil {
		if n := st.nodes[self]; n.rev == 0 || n.row.Boot != boot {
			_, err := s.ownRow(ctx) // the watch may be older than this process's own registration
			return err
		} else if n.liveRev == 0 {
			return s.revive(ctx, r)
		}
	}
	sent := leaseClock(r)
	ttl, err := s.kv.KeepAlive(ctx, s.leaseID())
	switch {
	case errors.Is(err, kv.ErrLeaseGone):
		return s.revive(ctx, r)
	case err != nil:
		return err
	}
	return s.serve(ctx, r, sent.Add(ttl-s.opts.LeaseMargin))
}

// serve tells the engine how long it may serve, but not before the engine has heard of everything up to the live row
// that this process wrote last. Every decision from the time without a live row is older than that row. So a leader
// that was replaced while its process stood still does not serve for even a moment (B83).
func (s *store) serve(ctx context.Context, r *meta.Registration, until time.Time) error {
	s.mu.Lock()
	joined, alive := s.joined, s.aliveSince
	s.mu.Unlock()
	if joined {
		if err := s.waitDelivered(ctx, alive); err != nil {
			return err
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.replaced {
		return errReplaced
	}
	if r.Lease != nil {
		r.Lease(until)
	}
	return nil
}

// ownRow returns the revision of this node's registration, or errReplaced if the registration is another process's.
func (s *store) ownRow(ctx context.Context) (int64, error) {
	self, boot := s.self()
	e, err := s.get(ctx, nodeKey(nodesDir, self))
	if err != nil {
		return 0, err
	}
	var n meta.Node
	if e.ModRevision == 0 || json.Unmarshal(e.Value, &n) == nil && n.Boot != boot {
		return 0, errReplaced
	}
	return e.ModRevision, nil
}

// revive writes the live row again, because the lease ran out, or because this process was wrongly reported gone.
func (s *store) revive(ctx context.Context, r *meta.Registration) error {
	rev, err := s.ownRow(ctx)
	if err != nil {
		return err
	}
	self, boot := s.self()
	live := s.key(nodeKey(liveDir, self))
	sent := leaseClock(r)
	lease := s.leaseID()
	if _, err := s.kv.KeepAlive(ctx, lease); err != nil {
		if !errors.Is(err, kv.ErrLeaseGone) {
			return err
		}
		sent = leaseClock(r)
		if lease, err = s.kv.Grant(ctx, s.opts.LeaseTTL); err != nil {
			return err
		}
	}
	ok, revision, err := s.kv.Txn(ctx,
		[]kv.Cond{{Key: s.key(nodeKey(nodesDir, self)), ModRevision: rev}, {Key: live}},
		[]kv.Op{{Key: live, Value: encode(processRow{Node: self, Boot: boot}), Lease: lease}})
	if err == nil && !ok && lease == s.leaseID() {
		// The row exists: the watch is behind, or an answer was lost.
		var e kv.Entry
		e, err = s.get(ctx, nodeKey(liveDir, self))
		ok, revision = e.ModRevision != 0, e.ModRevision
	}
	if err != nil || !ok {
		if lease != s.leaseID() {
			_ = s.kv.Revoke(ctx, lease)
		}
		return cmp.Or(err, meta.ErrConflict)
	}
	s.mu.Lock()
	s.lease, s.aliveSince = lease, revision
	s.mu.Unlock()
	s.log.Info("this node is registered as alive again", "id", self)
	return s.serve(ctx, r, sent.Add(s.opts.LeaseTTL-s.opts.LeaseMargin))
}

func (s *store) leaseID() kv.LeaseID {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.lease
}

// Leave implements meta.Store.
func (s *store) Leave(ctx context.Context) error {
	s.mu.Lock()
	if !s.joined {
		s.mu.Unlock()
		return errNotJoined
	}
	s.joined = false
	stop := s.stopLease
	s.broadcast()
	s.mu.Unlock()
	stop()
	s.receive(s.leasing)
	err := s.kv.Revoke(ctx, s.leaseID()) // the live row ends with the lease, and the controller's if it is this node's
	if errors.Is(err, kv.ErrLeaseGone) {
		return nil
	}
	return unavailable(err)
}

// Close implements meta.Store. The lease is left to run out, as if the process had died; Leave ends it at once.
func (s *store) Close() error {
	s.mu.Lock()
	s.joined = false
	cancel, leasing := s.cancel, s.leasing
	s.broadcast()
	s.mu.Unlock()
	if cancel == nil {
		return nil
	}
	cancel()
	s.receive(leasing)
	if ended := s.running.ended(); ended != nil {
		s.receive(ended)
	}
	return nil
}
