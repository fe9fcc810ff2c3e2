package partition

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"penstock/internal/meta"
	"penstock/internal/node/budget"
	"penstock/internal/node/clock"
	"penstock/internal/node/datadir"
	"penstock/internal/node/errs"
	"penstock/internal/node/flush"
	"penstock/internal/node/inbox"
	"penstock/internal/node/platform"
	"penstock/replicate"
	"penstock/segment/aio"
)

// bareReplica returns a replica at a node of a cluster, without a log, a disk, a network or a store.
func bareReplica() *Replica {
	h := platform.NewMachine()
	log := slog.New(slog.DiscardHandler)
	s := New(Options{
		Host: h, Log: log, Clock: clock.New(h.Wall, h.Mono), Counters: new(Counters), Pulse: new(aio.Pulse),
	})
	cn := NewEnv(context.Background(), s, log, nil, replicate.Config{}, nil, new(nobodyAbove))
	cn.Self = meta.Node{ID: 1, Store: uuid.UUID{1}, Boot: uuid.UUID{9}}
	s.Join(cn)
	pt := &Partition{store: s, topic: &Topic{Name: "t", ServingChanged: func() {}}}
	pt.Use(&s.inboxes)
	pt.begin()
	pt.replica = &Replica{node: cn, pt: pt}
	return pt.replica
}

// nobodyAbove is an Above that forwards no put, and remembers the partitions of TryLater.
type nobodyAbove struct {
	later []uint32 // the partitions that TryLater was called with
	news  platform.Notice
}

func (*nobodyAbove) ForwardPut(*Partition, *inbox.Put) error { return errs.ErrNoLeader }
func (*nobodyAbove) Freeze(*Partition)                       {}
func (*nobodyAbove) Reroute(*Partition)                      {}
func (*nobodyAbove) Confirm(context.Context, uuid.UUID)      {}
func (*nobodyAbove) HasExited(replicate.NodeID) bool         { return false }
func (a *nobodyAbove) TryLater(_ *meta.Topic, partition uint32) {
	a.later = append(a.later, partition)
}
func (a *nobodyAbove) News() *platform.Notice { return &a.news }

// runningStore is the store of a single node. It has one partition, small files, and a commit log that runs.
type runningStore struct {
	*Store
	part *Partition
	end  func() error // stops the store as Engine.Close does; a second call does nothing
}

// runStore opens a store on disk, and opens its partition or makes it.
func runStore(t *testing.T, disk aio.Disk) runningStore {
	t.Helper()
	h, stop := platform.NewMachine(), make(chan struct{})
	s := New(Options{
		Host: h, Log: slog.New(slog.DiscardHandler), Clock: clock.New(h.Wall, h.Mono), Disk: disk,
		Counters: new(Counters), Pulse: new(aio.Pulse), Stop: stop,
		CommitFileBytes: 256 << 10, CommitLiveBytes: 1 << 20, GroupsInFlight: 2, MinSegmentBytes: 16 << 10,
		MaxSegmentBytes: 64 << 10, MarkAfter: time.Millisecond,
		Limits: Limits{
			RetentionInterval: time.Hour, State: budget.Limits{MaxStateBytes: 1 << 20, MaxRanges: 1 << 10},
			Inboxes: inbox.Bounds{
				MaxInboxBytes: 1 << 20, MaxNodeInboxBytes: 1 << 20, PublishTimeout: 5 * time.Second, AdmitTimeout: time.Second,
			},
		},
	})
	s.level.Store(datadir.FirstLevel)
	topic := &Topic{Name: "t", ID: uuid.UUID{7}, ServingChanged: func() {}}
	topic.Limits.Store(new(flush.Limits))
	r := NewRecovery(s)
	defer r.Log.Release()
	err := errors.Join(disk.MkdirAll(datadir.TopicPath(topic.ID)), s.Begin(4<<20))
	if err == nil {
		err = r.Replay(uuid.UUID{1}, datadir.FirstLevel)
	}
	if err != nil {
		t.Fatal(err)
	}
	pt, err := r.OpenPartition(topic, 0)
	if err != nil {
		t.Fatal(err)
	}
	s.Add([]*Partition{pt})
	s.Accept()
	if err := h.RunLog(s.clog, s.clog.Run); err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	s.Run(func(f func()) { h.SpawnIn(&wg, f) })
	end := sync.OnceValue(func() error {
		pt.CloseToNew(errs.ErrClosed)
		err, _ := h.StopLog(s.clog, s.Drained, func() bool { return false })
		close(stop)
		wg.Wait()
		if s.poisoned.Load() == nil {
			s.flusher.Finish()
		}
		return errors.Join(err, s.Release(), disk.Close())
	})
	t.Cleanup(func() { _ = end() })
	return runningStore{s, pt, end}
}

// publish stores count messages of the same size, one after the other.
func (s runningStore) publish(t *testing.T, count, size int) {
	t.Helper()
	limits := inbox.NewLimits(inbox.Sizes{
		MaxBatchBytes: 1 << 20, MaxMessageBytes: 1 << 20, MaxHeaderBytes: 1 << 10, MaxDefer: time.Hour,
	})
	for range count {
		w := inbox.NewWaiter()
		w.Messages = [][]byte{make([]byte, size)}
		w.Alone, w.Waits = true, true
		err := limits.Measure(&w.Put)
		if err == nil {
			err = s.part.Enqueue(t.Context(), &w.Put)
		}
		if err == nil {
			_, err = w.Wait(t.Context())
		}
		if err != nil {
			t.Fatal(err)
		}
		w.Free()
	}
}
