package node

import "penstock/internal/node/topic"

// EngineOf returns the engine that a topic belongs to.
func EngineOf(t *Topic) *Engine { return topic.Hooks{T: t}.Catalog().(catalogView).e }
