package node

// DataPathOf returns the data directory of an engine.
func DataPathOf(e *Engine) string { return e.opts.DataPath }

// NotedTopics returns the names and numbers of partitions of the topics that a backup would note if during ran before
// its moment.
func NotedTopics(e *Engine, during func()) map[string]int {
	e.catalog.Note()
	during()
	noted := map[string]int{}
	for _, m := range e.catalog.Noted() {
		noted[m.Name] = m.Partitions
	}
	return noted
}
