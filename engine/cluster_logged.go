package engine

import (
	"context"
	"math"
	"time"

	"penstock/engine/meta"
)

// The node's row says how far its commit log went at least (meta.Node.Logged). A start whose log ends before that knows
// that its directory is an older state of itself, although the row's process ran on it (dir.NodeFile.Life). Without the
// row nothing would tell a state that was taken while the last process ran from what that process left behind.
//
// The row never says more than what was durable before it was asked for, so a crash at any time leaves a directory that
// reaches it. It is written at most every loggedInterval: a state that is no older than that is not noticed if the
// process was killed.

const (
	// loggedInterval is the time between two looks at whether the row is to be written.
	loggedInterval = 5 * time.Second
	// loggedTimeout bounds one write of the row.
	loggedTimeout = 2 * time.Second
)

// keepLogged writes to the row how far the commit log goes, whenever that has changed. It runs on a goroutine of its
// own until the engine closes, and waits only for the store. It logs no errors: after one, the row still says what is
// true, and the lease's log lines tell of a store that does not answer.
func (cn *clusterNode) keepLogged() {
	for {
		cn.Pause(loggedInterval)
		if cn.Ctx.Err() != nil {
			return
		}
		cn.reportLogged(cn.Ctx)
	}
}

// reportLogged writes to the row how far the commit log goes, unless the row says so. Any goroutine may call it.
func (cn *clusterNode) reportLogged(ctx context.Context) {
	durable := cn.e.store.CommitLog().Durable() // before the store is asked: it must not hear of more
	if durable <= cn.logged.Load() {
		return
	}
	ctx, cancel := cn.e.host.WithTimeout(ctx, loggedTimeout)
	defer cancel()
	if cn.Rows.ReportLogged(ctx, durable) == nil {
		cn.logged.Store(durable)
	}
}

// life is meta.Registration.Life.
func (cn *clusterNode) life(row *meta.Node) meta.Life { return cn.e.node.Life(row, cn.comparedEnd()) }

// comparedEnd returns the number of the last group that recovery found, for dir.NodeFile.Life. If recovery itself found
// that the log lacks something, all copies are shortened or damaged already, and the row tells nothing new: then no row
// says more.
func (cn *clusterNode) comparedEnd() uint64 {
	if cn.e.forgotten || cn.e.logDamaged {
		return math.MaxUint64
	}
	return cn.e.logEnd
}
