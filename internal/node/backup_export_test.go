package node

// DataPathOf returns the data directory of an engine.
func DataPathOf(e *Engine) string { return e.opts.DataPath }

// NotedTopics returns the names and numbers of partitions of the topics that a backup would note if during ran before
// its moment.
func NotedTopics(e *Engine, during func()) map[string]int {
	r := &backupRun{e: e}
	r.noteTopics()
	during()
	noted := map[string]int{}
	for _, m := range r.notedTopics() {
		noted[m.Name] = m.Partitions
	}
	return noted
}
