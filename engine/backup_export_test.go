package engine

// DataPathOf returns the data directory of an engine.
func DataPathOf(e *Engine) string { return e.opts.DataPath }
