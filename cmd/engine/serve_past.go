package main

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"

	"penstock/cluster"
	"penstock/cluster/etcd"
	"penstock/engine"
	"penstock/engine/dir"
	"penstock/engine/meta"
	"penstock/segment/aio"
)

// past returns what etcd.MemberOptions.Older is to be for this node's data directory; nil: the directory has no past
// that could be compared. It only reads, before the engine opens the directory; the node's addresses are taken, so no
// other process of this node changes the files.
func (c *clusterSettings) past(n *node, log *slog.Logger) func(etcd.Testimony) string {
	if _, err := os.Stat(filepath.Join(n.engine.DataPath, dir.NodePath)); err != nil {
		return nil
	}
	f, seen, err := readPast(n.engine.DataPath)
	if err != nil {
		log.Warn("what this data directory knows of its past cannot be read: whether its etcd member is of an older state "+
			"is not noticed at this start", "error", err)
		return nil
	}
	return func(t etcd.Testimony) string {
		row := cluster.NodeNamed(keyPrefix(c.name), t.Rows, n.engine.NodeID)
		return newer(t, seen, row, f.Behind(row))
	}
}

func readPast(path string) (f *dir.NodeFile, seen meta.Seen, err error) {
	disk, err := aio.OpenDisk(path, aio.DiskOptions{Mode: aio.ModePwrite, ReadOnly: true, NoLock: true})
	if err != nil {
		return nil, seen, err
	}
	defer disk.Close()
	if f, err = dir.ReadNode(disk, engine.NewestLevel); err != nil {
		return nil, seen, err
	}
	seen, err = dir.ReadSeen(disk)
	return f, seen, err
}

// newer says what a testimony has that the data directory should know; empty: nothing. behind says whether the row is
// of a process that the directory does not know. One member alone that knows less than this directory saw is itself of
// the past, and proves nothing.
func newer(t etcd.Testimony, seen meta.Seen, row *meta.Node, behind bool) string {
	if row == nil || !behind || !t.Majority && t.Revision < seen.Revision {
		return ""
	}
	return fmt.Sprintf("the process %s of this node registered in the cluster later, and the data directory does not know it",
		row.Boot)
}
