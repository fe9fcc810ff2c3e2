package node

import (
	"context"
	"math"
	"time"

	"penstock/internal/meta"
)

// The node's row says how far its commit log went at least (meta.Node.Logged). A start whose log ends before that knows
// that its directory is an older state of itself, although the row's process ran on it (datadir.NodeFile.Life). Without
// the row nothing would tell a state that was taken while the last process ran from what that process left behind.
//
// The row never says more than what was durable before it was asked for, so a crash at any time leaves a directory that
// reaches it. It is written at most every dataInterval: a state that is no older than that is not noticed if the
// process was killed.
//
// The row also says how many topics the directory has that the cluster does not know (meta.Node.UnknownTopics), so that
// every node's health does. A registration writes none, and the first report follows the first snapshot at once.
// Whether the node's clock differs (meta.Node.ClockDiffers) goes the same way: see cluster_clocks.go.

const (
	// dataInterval is the time between two looks at whether the row is to be written.
	dataInterval = 5 * time.Second
	// dataTimeout bounds one write of the row.
	dataTimeout = 2 * time.Second
)

// keepData keeps the row true about what the directory holds. It runs on a goroutine of its own from the first snapshot
// that was applied until the engine closes, and waits only for the store. It logs no errors: after one, the row still
// says what is true, and the lease's log lines tell of a store that does not answer.
func (cn *clusterNode) keepData() {
	for cn.Ctx.Err() == nil {
		cn.reportData(cn.Ctx)
		cn.Pause(dataInterval)
	}
}

// reportData writes to the row what the directory holds and how the clock is, unless the row says so. Any goroutine may
// call it.
func (cn *clusterNode) reportData(ctx context.Context) {
	durable := cn.e.store.CommitLog().Durable() // before the store is asked: it must not hear of more
	unknown := len(cn.topics.unknown.names())
	differs := cn.clockVerdict().Differs
	own := snapshotNodes(cn.snapshot())[cn.Self.ID]
	if durable <= cn.logged.Load() && int64(unknown) == cn.unknownInRow.Load() &&
		(own == nil || own.ClockDiffers == differs) {
		return
	}
	ctx, cancel := cn.e.host.WithTimeout(ctx, dataTimeout)
	defer cancel()
	if cn.Rows.ReportData(ctx, durable, unknown, differs) == nil {
		cn.logged.Store(durable)
		cn.unknownInRow.Store(int64(unknown))
	}
}

// life is meta.Registration.Life.
func (cn *clusterNode) life(row *meta.Node) meta.Life { return cn.e.node.Life(row, cn.comparedEnd()) }

// comparedEnd returns the number of the last group that recovery found, for datadir.NodeFile.Life. If recovery itself
// found that the log lacks something, all copies are shortened or damaged already, and the row tells nothing new: then
// no row says more.
func (cn *clusterNode) comparedEnd() uint64 {
	if cn.e.forgotten || cn.e.logDamaged {
		return math.MaxUint64
	}
	return cn.e.logEnd
}
