package engine

import (
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"penstock/clog"
	"penstock/engine/base"
	"penstock/engine/core"
	"penstock/engine/host"
	"penstock/engine/inbox"
	"penstock/segment"
	"penstock/segment/aio"
)

// store is what the partitions of one data directory share: the machine below them, the commit log with the committer,
// the flusher of segments, and the limits and sums of the node. Engine makes it, recovery fills it, and the partitions,
// the replicas, the committer and the flusher use it; none of them knows the Engine.
//
// The fields of the first two groups are set before any goroutine runs and do not change. A crash loses the rest:
// recovery builds it from the commit log.
type store struct {
	host     host.Host
	log      *slog.Logger
	clock    *base.Clock
	disk     aio.Disk
	opts     storeOptions
	counters *Counters
	pulse    *aio.Pulse
	stop     <-chan struct{} // closed when background goroutines must end

	arena     *aio.Arena
	clog      *clog.Log
	replicas  *replicaNode // nil on a single node
	committer committer
	flusher   *flusher
	asyncFree inbox.AsyncPuts

	level    atomic.Int32 // the feature level in force, see Engine.Level
	inboxes  inbox.Node
	list     atomic.Pointer[[]*partition]
	poisoned atomic.Pointer[error]
	noSpace  atomic.Bool
	// stateBytes is the sum of partition.stateBytes.
	stateBytes atomic.Int64
	dueLog     base.LogLimiter // correctDelays's line
}

// storeOptions are the fields of Options that partitions use; Options says what they mean.
type storeOptions struct {
	CommitFileBytes   int64
	CommitLiveBytes   int64
	GroupsInFlight    int
	MinSegmentBytes   int64
	MaxSegmentBytes   int64
	RetentionInterval time.Duration
	MaxStateBytes     int64
	PublishTimeout    time.Duration

	unknownKind core.ControlKind
	markAfter   time.Duration
}

// newStore returns a store that has no commit log yet.
func newStore(e *Engine) *store {
	s := &store{
		host: e.host, log: e.log, clock: e.clock, disk: e.disk, opts: e.opts.forStore(), counters: &e.counters,
		pulse: &e.pulse, stop: e.stop,
	}
	s.inboxes.Limit(e.opts.MaxInboxBytes, e.opts.MaxNodeInboxBytes, e.opts.PublishTimeout, e.opts.AdmitTimeout)
	s.inboxes.Tell(&e.counters.Overloaded, func() { s.clog.Wake() })
	return s
}

func (o *Options) forStore() storeOptions {
	return storeOptions{
		CommitFileBytes: o.CommitFileBytes, CommitLiveBytes: o.CommitLiveBytes, GroupsInFlight: o.GroupsInFlight,
		MinSegmentBytes: o.MinSegmentBytes, MaxSegmentBytes: o.MaxSegmentBytes, RetentionInterval: o.RetentionInterval,
		MaxStateBytes: o.MaxStateBytes, PublishTimeout: o.PublishTimeout,
		unknownKind: o.unknownKind, markAfter: o.markAfter,
	}
}

// partitionList returns the partitions of all topics, in the order in which the node got them. The slice is never
// changed.
func (s *store) partitionList() []*partition {
	if list := s.list.Load(); list != nil {
		return *list
	}
	return nil
}

// addPartitions adds partitions to the list. Who must not miss one that Engine.Close looks for holds Engine.mu.
func (s *store) addPartitions(add []*partition) {
	s.replaceList(func(old []*partition) []*partition { return slices.Concat(old, add) })
}

// removePartitions removes the partitions of a topic from the list.
func (s *store) removePartitions(topic uuid.UUID) {
	s.replaceList(func(old []*partition) []*partition {
		return slices.DeleteFunc(slices.Clone(old), func(pt *partition) bool { return pt.t.uuid == topic })
	})
}

// replaceList replaces the list by what change makes of it. change does not modify the old list, and may run again.
func (s *store) replaceList(change func(old []*partition) []*partition) {
	for {
		old := s.list.Load()
		var parts []*partition
		if old != nil {
			parts = *old
		}
		parts = change(parts)
		if s.list.CompareAndSwap(old, &parts) {
			return
		}
	}
}

// poison ends storing until a restart: the commit log failed, or was found corrupt. Consumers can still read what is
// stored.
func (s *store) poison(err error) {
	why := ErrDisk
	if errors.As(err, new(*segment.CorruptError)) {
		why = ErrReadOnly
	}
	full := fmt.Errorf("%w (%w)", why, err)
	if s.poisoned.CompareAndSwap(nil, &full) && why == ErrDisk {
		s.log.Error("the commit log failed; nothing more is stored until this node is restarted. Messages answered OK "+
			"before are safe",
			"error", err)
	}
}

// refusal is the error for puts once the store is poisoned.
func (s *store) refusal() error {
	if err := s.poisoned.Load(); err != nil && errors.Is(*err, ErrReadOnly) {
		return ErrReadOnly
	}
	return ErrDisk
}

func (s *store) sizes() segment.Sizes {
	return segment.Sizes{MinSegmentBytes: s.opts.MinSegmentBytes, MaxSegmentBytes: s.opts.MaxSegmentBytes}
}

// now is the engine's clock, see Engine.now.
func (s *store) now() time.Time { return time.Unix(0, s.clock.NowNs()) }

// feature is the feature level in force.
func (s *store) feature() int { return int(s.level.Load()) }
