package engine

// SetBeforeRun makes the commit log's goroutine do f before it begins.
func SetBeforeRun(o *Options, f func()) { o.beforeRun = f }
