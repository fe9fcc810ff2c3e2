package node

// SweepAside does what the flusher does at intervals with what cuts took from copies.
func SweepAside(e *Engine) { e.store.SweepAside() }
