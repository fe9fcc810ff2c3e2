package diskwatch

import (
	"context"
	"errors"
	"log/slog"
	"sync/atomic"
	"time"

	"penstock/internal/meta"
	"penstock/internal/node/machine"
	"penstock/internal/node/platform"
)

const (
	// reportTimeout bounds one report to the store. reportPause is the pause before the next attempt.
	reportTimeout = 5 * time.Second
	reportPause   = 200 * time.Millisecond

	// evacuateTime bounds one attempt to hand over the leaderships of a node whose disk hangs.
	evacuateTime = 30 * time.Second
	// evacuatePause is the pause between two rounds of an attempt.
	evacuatePause = 250 * time.Millisecond
	// maxEvacuateCount is how many partitions are handed over at the same time.
	maxEvacuateCount = 8
)

// MemberConfig is what a Member needs of its node. The functions are called without a lock.
type MemberConfig struct {
	Watch *Watch
	Host  platform.Host
	Log   *slog.Logger
	Ctx   context.Context // ends when the node closes
	Spawn func(f func())  // starts a goroutine that the node waits for when it closes
	// Report tells the store, and through it the other nodes, the state of this node's disk: meta.Store.ReportDisk.
	Report func(ctx context.Context, s meta.DiskState) error
	// Led returns one function for each partition that this node leads. The function asks the store at once to make
	// another replica the leader. handed says that this succeeded. again says that this node still leads the partition
	// although another replica is in sync. If Led is nil, the node keeps its leaderships while its disk hangs
	// (Options.DiskPatience).
	Led func() []func() (handed, again bool)
}

// Member represents this node's disk in the cluster: it tells the other nodes the state of the disk, and hands over the
// node's leaderships while the disk hangs. Judged may be called with a lock held. Everything else runs on the Member's
// own goroutines, which wait for the store, never for the disk. A crash loses the state: the next process takes its
// disk for good until it finds otherwise.
type Member struct {
	MemberConfig
	wanted     atomic.Uint32 // the machine.DiskState to report
	reporting  atomic.Bool   // a goroutine of announce runs
	evacuating atomic.Bool
}

// NewMember returns the Member of a node. It does nothing before Judged is called.
func NewMember(c MemberConfig) *Member { return &Member{MemberConfig: c} }

// Judged takes a result of the watch: it is Config.Judged. It does not wait.
func (m *Member) Judged(v machine.DiskVerdict) {
	if v.Tell {
		m.announce(v.State)
	}
	if v.HandOver && m.Led != nil {
		m.Spawn(m.evacuate)
	}
}

// announce makes a goroutine report the state, and repeat the report until the store accepts it. announce does not
// wait.
func (m *Member) announce(state machine.DiskState) {
	m.wanted.Store(uint32(state))
	if !m.reporting.CompareAndSwap(false, true) {
		return // the reporting goroutine will see the new state
	}
	m.Spawn(func() {
		for m.Ctx.Err() == nil {
			want := machine.DiskState(m.wanted.Load())
			if err := m.report(want); err == nil || errors.Is(err, meta.ErrNotFound) {
				m.reporting.Store(false)
				if machine.DiskState(m.wanted.Load()) == want || !m.reporting.CompareAndSwap(false, true) {
					return
				}
				continue
			}
			m.Host.Pause(reportPause, m.Ctx.Done())
		}
	})
}

func (m *Member) report(state machine.DiskState) error {
	ctx, cancel := m.Host.WithTimeout(m.Ctx, reportTimeout)
	defer cancel()
	return m.Report(ctx, metaState(state))
}

func metaState(s machine.DiskState) meta.DiskState {
	switch s {
	case machine.DiskGood:
		return meta.DiskGood
	case machine.DiskHung:
		return meta.DiskHung
	case machine.DiskFailed:
		return meta.DiskFailed
	}
	return meta.DiskSlow
}

// evacuate hands over every leadership to a replica whose disk is good, because this node's disk hangs. Publishers
// whose batches were appended but not committed learn that the outcome is unknown, as after a failover. Puts still in
// the inboxes are forwarded to the new leaders. machine.DiskWatch decides how often evacuate runs, and is told if
// nothing was handed over.
func (m *Member) evacuate() {
	if !m.evacuating.CompareAndSwap(false, true) {
		return
	}
	defer m.evacuating.Store(false)
	ctx, cancel := m.Host.WithTimeout(m.Ctx, evacuateTime)
	defer cancel()
	// First tell the other nodes; otherwise one of them might give a leadership back. If they cannot be told, go on
	// nevertheless.
	if err := m.report(m.Watch.State()); err != nil {
		m.Log.Warn("the other nodes could not be told that the disk hangs", "error", err)
	}
	before := m.Watch.handOvers.Load()
	left := 0
	for ctx.Err() == nil && m.Watch.Hangs() {
		if left = m.evacuateRound(); left == 0 || !m.Host.Pause(evacuatePause, ctx.Done()) {
			break
		}
	}
	handed := m.Watch.handOvers.Load() - before
	if handed == 0 {
		m.Watch.movedNone.Store(true)
	}
	if m.Ctx.Err() == nil && (handed > 0 || left > 0) {
		m.Log.Warn("the disk hangs: leaderships go to replicas whose disks are good; of what no other can take publishers "+
			"hear that it is unknown",
			"handed_over", handed, "nobody_can_take", left)
	}
}

// evacuateRound tries each partition once. It returns how many partitions this node still leads although another
// replica is in sync.
func (m *Member) evacuateRound() int {
	led := m.Led()
	var next, left atomic.Int64
	workers := min(len(led), maxEvacuateCount)
	ended := make(chan struct{}, workers)
	for range workers {
		m.Spawn(func() {
			for i := next.Add(1) - 1; i < int64(len(led)); i = next.Add(1) - 1 {
				handed, again := led[i]()
				if handed {
					m.Watch.handOvers.Add(1)
				}
				if again {
					left.Add(1)
				}
			}
			ended <- struct{}{}
		})
	}
	for range workers {
		m.Host.Receive(ended)
	}
	return int(left.Load())
}
