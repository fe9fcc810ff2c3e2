package engine

import "time"

// SetWallClock sets the wall clock of the engine that will be opened with o.
func SetWallClock(o *Options, wall func() time.Time) { o.wall = wall }

// ClockSteps returns how many steps of the wall clock e has seen.
func ClockSteps(e *Engine) uint64 { return e.clock.Steps() }
