package serve

import (
	"fmt"
	"log/slog"
	"math"
	"os"
	"path/filepath"
	"sync"

	"penstock/clog"
	"penstock/cmd/engine/internal/settings"
	"penstock/internal/cluster"
	"penstock/internal/cluster/etcd"
	"penstock/internal/meta"
	"penstock/internal/node"
	"penstock/internal/node/datadir"
	"penstock/segment/aio"
)

// past returns the function etcd.MemberOptions.Older for this node's data directory, or nil if no node has run on the
// directory yet. The function reads the directory when another member has answered, before the engine opens and locks
// it. This process has the node's addresses already, so no other process of the node changes the files.
func past(n *settings.Options, log *slog.Logger) func(etcd.Testimony) (string, int64) {
	if _, err := os.Stat(filepath.Join(n.Engine.DataPath, datadir.NodePath)); err != nil {
		return nil
	}
	read := sync.OnceValue(func() *pastOf {
		p, err := readPast(n.Engine.DataPath)
		if err != nil {
			log.Warn("what this data directory knows of its past cannot be read: whether its etcd member is of an older state "+
				"is not noticed at this start", "error", err)
		}
		return p
	})
	return func(t etcd.Testimony) (string, int64) {
		row, revision := cluster.NodeNamed(settings.KeyPrefix(n.Cluster.Name), t.Rows, n.Engine.NodeID)
		if p := read(); p != nil {
			return p.newer(t, row), revision
		}
		return "", 0
	}
}

// pastOf is what a data directory knows of its past.
type pastOf struct {
	seen meta.Seen
	end  uint64 // of the commit log; math.MaxUint64 if it is not known
	// behind is datadir.NodeFile.Behind.
	behind func(row *meta.Node, end uint64) bool
}

func readPast(path string) (*pastOf, error) {
	disk, err := aio.OpenDisk(path, aio.DiskOptions{Mode: aio.ModePwrite, ReadOnly: true, NoLock: true})
	if err != nil {
		return nil, err
	}
	defer disk.Close()
	f, err := datadir.ReadNode(disk, node.NewestLevel)
	if err != nil {
		return nil, err
	}
	p := &pastOf{end: math.MaxUint64, behind: f.Behind}
	if p.seen, err = datadir.ReadSeen(disk); err != nil {
		return nil, err
	}
	if end, known, err := clog.End(disk, f.StoreID()); err == nil && known { // recovery tells of errors
		p.end = end
	}
	return p, nil
}

// newer returns what other etcd members know of this node that its data directory should know; empty: nothing. t is
// their answer, and row the node's row in it. The answer of a single member counts only if its revision is not below
// the one that the directory saw: otherwise that member is of an older state itself.
func (p *pastOf) newer(t etcd.Testimony, row *meta.Node) string {
	switch {
	case row == nil || !p.behind(row, p.end) || !t.Majority && t.Revision < p.seen.Revision:
		return ""
	case p.behind(row, math.MaxUint64):
		return fmt.Sprintf("the process %s of this node registered in the cluster later, and the data directory does not "+
			"know it", row.Boot)
	}
	return fmt.Sprintf("its process %s wrote group %d to the commit log of the data directory, which ends with group %d",
		row.Boot, row.Logged, p.end)
}
