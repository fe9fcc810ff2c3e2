package node

import (
	"fmt"
)

// heapBaseBytes is what a node uses besides the state of its channels.
const heapBaseBytes = 32 << 20

// MemoryError says that the state of the channels in the data directory needs more memory than the process may use.
// Nothing was changed.
type MemoryError struct {
	Needs int64 // bytes, at least
	Limit int64 // Options.MaxHeapBytes
}

func (e *MemoryError) Error() string {
	return fmt.Sprintf("engine: the deferred messages and confirmations that are stored need %d MiB of memory, and the "+
		"process may use %d MiB besides its buffers: nothing was changed, and nothing is lost; raise the limit of the "+
		"container, the service (MemoryMax) or GOMEMLIMIT", (e.Needs+1<<20-1)>>20, e.Limit>>20)
}

// checkMemory compares what replay found with what the process may use, before the channels are made.
func (e *Engine) checkMemory(state int64) error {
	if limit := e.opts.MaxHeapBytes; limit > 0 && state+heapBaseBytes > limit {
		return &MemoryError{state + heapBaseBytes, limit}
	}
	return nil
}
