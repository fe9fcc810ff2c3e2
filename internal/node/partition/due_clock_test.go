package partition

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"

	"penstock/internal/node/fold"
	"penstock/internal/node/machine"
	"penstock/segment"
)

// Delays are corrected once: before the next correction, this process has been the writer itself.
func TestDelaysAreCorrectedOnce(t *testing.T) {
	const second = int64(1e9)
	pt := bareReplica().pt
	pt.machine = new(machine.Partition)
	pt.fold = &fold.Cursors{Deferred: []fold.DeferredMessage{{ID: 1, DueMs: 100_000}}}
	pt.writer.Saw(&segment.Header{Epoch: 1, Created: 90 * second, Appended: 90 * second}, 80*second)
	for range 2 {
		pt.correctDelays()
		if due := pt.fold.Deferred[0].DueMs; due != 90_000 {
			t.Fatalf("it is due at %d ms", due)
		}
	}
}

// More delayed messages than a batch can tell the other replicas of are not corrected, and the log says so.
func TestTooManyDelaysAreTold(t *testing.T) {
	const second = int64(1e9)
	pt := bareReplica().pt
	var log bytes.Buffer
	pt.store.log = slog.New(slog.NewTextHandler(&log, nil))
	pt.machine = new(machine.Partition)
	pt.fold = new(fold.Cursors)
	for id := segment.MsgID(1); pt.fold.MaxBytes(0) <= segment.MaxBatchBytes/2; id += 1000 {
		for i := range segment.MsgID(1000) {
			pt.fold.Deferred = append(pt.fold.Deferred, fold.DeferredMessage{ID: id + i, DueMs: 100_000})
		}
	}
	pt.writer.Saw(&segment.Header{Epoch: 1, Created: 90 * second, Appended: 90 * second}, 80*second)
	pt.correctDelays()
	if due := pt.fold.Deferred[0].DueMs; due != 100_000 {
		t.Errorf("it is due at %d ms", due)
	}
	if text := log.String(); !strings.Contains(text, "too many delayed messages") || !strings.Contains(text, "ahead=10s") {
		t.Errorf("the log says %q", text)
	}
}
