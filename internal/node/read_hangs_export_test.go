package node

import "penstock/segment"

// EvictCopy flushes a copy's tail to its segments and evicts it from memory, as the flusher does when buffers run
// short. It says whether the copy has nothing in memory any more.
func EvictCopy(e *Engine, topic string, n int) bool {
	t, ok := e.Catalog().LookupTopic(topic)
	if !ok {
		return false
	}
	log, w := t.PartitionList()[n].Log(), segment.NewWriter()
	defer w.Close()
	if _, err := log.Flush(w, 64<<20); err != nil {
		return false
	}
	log.Evict(log.Flushed())
	_, inMemory := log.InMemory(0)
	return !inMemory
}
