package engine

import "time"

// SetWallClock gives the engine that is opened with o another wall clock.
func SetWallClock(o *Options, wall func() time.Time) { o.wall = wall }

// ClockSteps is how many steps of the wall clock e has seen.
func ClockSteps(e *Engine) uint64 { return e.clock.Steps() }
