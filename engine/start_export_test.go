package engine

import (
	"time"

	"penstock/clog"
	"penstock/engine/core"
)

// SetBeforeRun makes the commit log's goroutine do f before it begins.
func SetBeforeRun(o *Options, f func()) { o.beforeRun = f }

// SetUnknownKind makes the node a version that does not know a kind of control entries.
func SetUnknownKind(o *Options, k core.ControlKind) { o.unknownKind = k }

// SetMarkAfter changes how long the commit log rests before it promises its last group.
func SetMarkAfter(o *Options, d time.Duration) { o.markAfter = d }

// CommitLogOf is the node's commit log.
func CommitLogOf(e *Engine) *clog.Log { return e.store.CommitLog() }

// BalanceInterval is how often leaderships move to who should have them.
const BalanceInterval = balanceInterval
