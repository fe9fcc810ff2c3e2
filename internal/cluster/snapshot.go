package cluster

import (
	"log/slog"

	"penstock/internal/cluster/kv"
	"penstock/internal/meta"
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

// NodeRows returns the prefix of the rows of all nodes, below the prefix of a cluster's keys.
func NodeRows(prefix string) string { return prefix + nodesDir }

// NodeNamed returns the row of the node with this name among the entries, and its revision; nil: there is none. prefix
// is that of the cluster's keys.
func NodeNamed(prefix string, entries []kv.Entry, name string) (*meta.Node, int64) {
	for i := range entries {
		for _, n := range SnapshotOf(prefix, entries[i:i+1], 0).Nodes {
			if n.Name == name {
				return n, entries[i].ModRevision
			}
		}
	}
	return nil, 0
}
