package cluster

import (
	"log/slog"

	"penstock/cluster/kv"
	"penstock/engine/meta"
)

// SnapshotOf is what a node knows that has read these entries, of this revision, under a prefix: for a simulation,
// which compares what nodes believe with it.
func SnapshotOf(prefix string, entries []kv.Entry, revision int64) *meta.Snapshot {
	b := build(newState(), prefix, slog.New(slog.DiscardHandler))
	for i := range entries {
		b.apply(&kv.Event{Entry: entries[i]})
	}
	st, _ := b.finish(revision)
	return st.snap
}
