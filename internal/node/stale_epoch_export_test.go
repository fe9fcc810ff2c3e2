package node

import tp "penstock/internal/node/topic"

// HoldChanges holds topic.Local.changing until release is called, as a pause that waits for a quorum does: other
// changes of the topic's channels on this node wait.
func HoldChanges(e *Engine, topic string) (release func()) {
	t, _ := e.Catalog().LookupTopic(topic)
	return tp.Hooks{T: t}.Hold()
}
