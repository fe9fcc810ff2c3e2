package dir

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"

	"penstock/engine/meta"
	"penstock/segment/aio"
)

const (
	// FirstLevel is the lowest feature level of a data directory or a cluster, and NewestLevel the highest that this
	// version knows; see engine.Engine.Level.
	FirstLevel  = 1
	NewestLevel = 2

	formatsPerLevel = 1 // the format in node.json is the level plus this
)

// FormatOf is the format in the node.json of a directory at this feature level.
func FormatOf(level int) int { return level + formatsPerLevel }

// Level is the feature level of the directory.
func (m *Node) Level() int { return m.Format - formatsPerLevel }

// CheckFormat refuses a directory whose level is above max, or that has none.
func (m *Node) CheckFormat(max int) error {
	known := FormatOf(max)
	switch {
	case m.Format > known:
		return fmt.Errorf("engine: the data directory has format %d (feature level %d), written by a newer version; this "+
			"version knows %d: nothing was changed, start the newer version: %w",
			m.Format, m.Level(), known, meta.ErrNewerLevel)
	case m.Format < FormatOf(FirstLevel):
		return fmt.Errorf("engine: the data directory has format %d, written by an older version that was never released; "+
			"this version knows %d to %d: nothing was changed, start that version, or name an empty directory",
			m.Format, FormatOf(FirstLevel), known)
	}
	return nil
}

// Check returns an error if this version does not know the level of the directory. A program that starts a
// node calls it before anything else touches the directory. It reads one file; Open reports every other problem.
func Check(dir string, newest int) error {
	data, err := os.ReadFile(filepath.Join(dir, NodeFile))
	if err != nil {
		return nil
	}
	var m Node
	plain, _, err := splitSum(data)
	if err != nil || len(data) > MaxFileBytes || json.Unmarshal(plain, &m) != nil {
		return nil
	}
	return m.CheckFormat(newest)
}

// Upgrade raises the data directory of a single node to the newest level, and returns the old and the new one. No node
// may run on the directory. Afterwards older versions refuse it. A crash leaves it at either level.
func Upgrade(dir string, newest int) (from, to int, err error) {
	if _, err := os.Stat(filepath.Join(dir, NodeFile)); errors.Is(err, fs.ErrNotExist) {
		return 0, 0, fmt.Errorf("engine: %s is not a data directory: it has no %s; nothing was changed", dir, NodeFile)
	}
	if err := Check(dir, newest); err != nil {
		return 0, 0, err
	}
	disk, err := aio.OpenDisk(dir, aio.DiskOptions{Mode: aio.ModePwrite})
	if err != nil {
		return 0, 0, err
	}
	defer func() { err = errors.Join(err, disk.Close()) }()
	m, err := readNode(disk, slog.New(slog.DiscardHandler), "", newest)
	if err != nil {
		return 0, 0, err
	}
	if m.Cluster != NoCluster {
		return 0, 0, fmt.Errorf("engine: the data directory belongs to cluster %s: nothing was changed; raise the cluster "+
			"with: engine cluster upgrade", m.Cluster)
	}
	from = m.Level()
	return from, newest, m.Raise(disk, newest)
}

// Raise durably raises the directory to level; it never lowers it.
func (m *Node) Raise(disk aio.Disk, level int) error {
	if m.Level() >= level {
		return nil
	}
	next := *m
	next.Format = FormatOf(level)
	if err := next.write(disk); err != nil {
		return err
	}
	m.Format = next.Format
	return nil
}
