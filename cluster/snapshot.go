package cluster

import (
	"log/slog"

	"penstock/cluster/kv"
	"penstock/engine/meta"
)

// SnapshotOf returns the snapshot of a node that has read these entries, at this revision, under prefix. A simulation
// compares the nodes' own snapshots with it.
func SnapshotOf(prefix string, entries []kv.Entry, revision int64) *meta.Snapshot {
	b := build(newState(), prefix, slog.New(slog.DiscardHandler))
	for i := range entries {
		b.apply(&kv.Event{Entry: entries[i]})
	}
	st, _ := b.finish(revision)
	return st.snap
}
