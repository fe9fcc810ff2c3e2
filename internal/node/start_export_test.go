package node

import (
	"time"

	"penstock/clog"
	"penstock/internal/node/fold"
)

// SetBeforeRun makes the commit log's goroutine call f before it begins.
func SetBeforeRun(o *Options, f func()) { o.beforeRun = f }

// SetUnknownKind makes the node behave like a version that does not know a kind of control entry.
func SetUnknownKind(o *Options, k fold.ControlKind) { o.unknownKind = k }

// SetMarkAfter changes how long the commit log must be idle before it marks its last group as durable.
func SetMarkAfter(o *Options, d time.Duration) { o.markAfter = d }

// CommitLogOf returns the node's commit log.
func CommitLogOf(e *Engine) *clog.Log { return e.store.CommitLog() }

// BalanceInterval is the pause between two rounds in which leaderships are handed to the preferred leaders.
const BalanceInterval = balanceInterval
