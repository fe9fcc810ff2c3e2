package engine

import "penstock/segment"

// EvictCopy moves a copy's bytes from memory to its segments, as the flusher does when buffers run short. It says
// whether nothing of the copy is in memory any more.
func EvictCopy(e *Engine, topic string, n int) bool {
	t, ok := e.LookupTopic(topic)
	if !ok {
		return false
	}
	log, w := t.partitions()[n].Log(), segment.NewWriter()
	defer w.Close()
	if _, err := log.Flush(w, 64<<20); err != nil {
		return false
	}
	log.Evict(log.Flushed())
	_, inMemory := log.InMemory(0)
	return !inMemory
}
