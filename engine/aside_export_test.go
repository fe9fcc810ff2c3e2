package engine

import "penstock/engine/aside"

// Aside returns what keeps the batches that cuts took from copies on this node.
func Aside(e *Engine) *aside.Keeper { return e.store.Aside() }

// SweepAside does what the flusher does with it at intervals.
func SweepAside(e *Engine) { e.store.SweepAside() }
