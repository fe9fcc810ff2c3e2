package engine

// HoldChanges keeps everything that changes a topic's channels on this node waiting, as a pause does that waits for a
// quorum, until release is called.
func HoldChanges(e *Engine, topic string) (release func()) {
	t, _ := e.LookupTopic(topic)
	e.host.Lock(&t.changing)
	return t.changing.Unlock
}
