package etcd

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/metadata"

	"penstock/internal/cluster/kv"
)

// errStalled ends one stream of a watch, not the watch.
var errStalled = errors.New("etcd: the member says nothing")

// Watch implements kv.Store. It uses as many streams as it needs, one after the other; next is the only state that they
// share.
func (s *store) Watch(
	ctx context.Context, prefix string, after int64, changed func(events []kv.Event, revision int64),
) error {
	next := after + 1
	for {
		used, from := s.inUse(), next
		err := s.watchOnce(ctx, prefix, &next, changed)
		switch {
		case ctx.Err() != nil:
			return nil
		case s.ctx.Err() != nil:
			return fmt.Errorf("%w: the watch of %s ends", kv.ErrClosed, strconv.Quote(prefix))
		case errors.Is(err, rpctypes.ErrCompacted), errors.Is(err, kv.ErrCompacted):
			return fmt.Errorf("%w: the watch of %s stands at revision %d", kv.ErrCompacted, strconv.Quote(prefix), next)
		case errors.Is(err, rpctypes.ErrPermissionDenied):
			return s.answered("the watch of "+strconv.Quote(prefix), err)
		}
		s.o.Log.Debug("etcd: a watch goes on at another member", "prefix", prefix, "endpoint", s.endpointInUse(), "revision",
			next, "error", err)
		if next == from {
			s.leave(used)
			if s.wentBack(ctx, next-1) {
				return fmt.Errorf("%w: the watch of %s has seen revision %d, which etcd at %s has not reached: it was put back "+
					"to an older state or replaced",
					kv.ErrCompacted, strconv.Quote(prefix), next-1, s.where())
			}
		}
		pause(ctx, retryPause)
	}
}

// watchOnce watches on one stream until the stream breaks or the member falls silent.
func (s *store) watchOnce(ctx context.Context, prefix string, next *int64, changed func([]kv.Event, int64)) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(s.ctx, cancel)()
	// The client puts watches with equal metadata on one stream. A number keeps each watch on a stream of its own, so
	// that leaving a silent member really opens a new one.
	ctx = metadata.AppendToOutgoingContext(ctx, "penstock-watch", strconv.FormatInt(s.watches.Add(1), 10))
	ctx = clientv3.WithRequireLeader(ctx)

	watchdog := time.AfterFunc(s.o.StallAfter, cancel) // Watch only returns when the member has accepted it
	answers := s.client.Watch(ctx, prefix, clientv3.WithPrefix(), clientv3.WithRev(*next))
	if !watchdog.Stop() {
		return errStalled
	}
	tick := time.NewTimer(s.o.ProgressEvery)
	defer tick.Stop()
	asked := false
	for {
		select {
		case answer, ok := <-answers:
			if !ok {
				return errStalled
			}
			if err := answer.Err(); err != nil {
				return err
			}
			s.take(&answer, next, changed)
			asked = false
			tick.Reset(s.o.ProgressEvery) // after changed has returned: its time is not the member's silence
		case <-tick.C:
			if asked {
				return errStalled
			}
			if err := s.client.RequestProgress(ctx); err != nil {
				return err
			}
			asked = true
			tick.Reset(s.o.StallAfter)
		}
	}
}

// take hands over the events of an answer, one revision at a time. An answer without events only reports progress: the
// member has sent everything up to that revision, which is news if others use the same etcd.
func (s *store) take(answer *clientv3.WatchResponse, next *int64, changed func([]kv.Event, int64)) {
	s.heardOf(answer.Header.RaftTerm)
	if answer.IsProgressNotify() {
		if revision := answer.Header.Revision; revision >= *next {
			changed(nil, revision)
			*next = revision + 1
		}
		return
	}
	events := answer.Events
	for len(events) > 0 {
		revision, count := events[0].Kv.ModRevision, 1
		for count < len(events) && events[count].Kv.ModRevision == revision {
			count++
		}
		if revision >= *next {
			changed(converted(events[:count]), revision)
			*next = revision + 1
		}
		events = events[count:]
	}
}

// wentBack is called after a stream that brought nothing. A member that has not reached the revision that the watch has
// seen reports no progress. It may merely lag. But if the majority has not reached that revision either, the watch
// would wait for revisions that will have other changes.
func (s *store) wentBack(ctx context.Context, seen int64) bool {
	ctx, cancel := context.WithTimeout(clientv3.WithRequireLeader(ctx), s.o.AttemptTimeout)
	defer cancel()
	answer, err := s.client.Get(ctx, "\x00", clientv3.WithCountOnly())
	return err == nil && answer.Header.Revision < seen
}

func converted(events []*clientv3.Event) []kv.Event {
	out := make([]kv.Event, len(events))
	for i, e := range events {
		out[i] = kv.Event{Entry: entryOf(e.Kv), Deleted: e.Type == mvccpb.DELETE}
	}
	return out
}
