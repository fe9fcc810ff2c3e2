package part

import (
	"testing"

	"penstock/engine/core"
	"penstock/segment"
)

// Delays are corrected once: before the next correction, this process has been the writer itself.
func TestDelaysAreCorrectedOnce(t *testing.T) {
	const second = int64(1e9)
	pt := bareReplica().pt
	pt.machine = new(core.Partition)
	pt.fold = &core.Cursors{Deferred: []core.DeferredMessage{{ID: 1, DueMs: 100_000}}}
	pt.writer.Saw(&segment.Header{Epoch: 1, Created: 90 * second, Appended: 90 * second}, 80*second)
	for range 2 {
		pt.correctDelays()
		if due := pt.fold.Deferred[0].DueMs; due != 90_000 {
			t.Fatalf("it is due at %d ms", due)
		}
	}
}
