package node

import "time"

// SetWallClock sets the wall clock of the engine that will be opened with o.
func SetWallClock(o *Options, wall func() time.Time) { o.wall = wall }

// ClockSteps returns how many steps of the wall clock e has seen.
func ClockSteps(e *Engine) uint64 { return e.clock.Steps() }

// SetEphemeralGrace sets how long a new leader waits before it ends an ephemeral topic that nobody uses.
func SetEphemeralGrace(o *Options, grace time.Duration) { o.ephemeralGrace = grace }
