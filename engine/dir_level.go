package engine

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
	firstLevel      = 1
	formatsPerLevel = 1 // the format in node.json is the level plus this
)

// formatOf is the format in the node.json of a directory at this feature level.
func formatOf(level int) int { return level + formatsPerLevel }

// level is the feature level of the directory.
func (m *nodeMeta) level() int { return m.Format - formatsPerLevel }

// checkFormat refuses a directory whose level is above max, or that has none.
func (m *nodeMeta) checkFormat(max int) error {
	known := formatOf(max)
	switch {
	case m.Format > known:
		return fmt.Errorf("engine: the data directory has format %d (feature level %d), written by a newer version; this "+
			"version knows %d: nothing was changed, start the newer version: %w",
			m.Format, m.level(), known, meta.ErrNewerLevel)
	case m.Format < formatOf(firstLevel):
		return fmt.Errorf("engine: the data directory has format %d, written by an older version that was never released; "+
			"this version knows %d to %d: nothing was changed, start that version, or name an empty directory",
			m.Format, formatOf(firstLevel), known)
	}
	return nil
}

// checkDirectory returns an error if this version does not know the level of the directory. A program that starts a
// node calls it before anything else touches the directory. It reads one file; Open reports every other problem.
func checkDirectory(dir string, newest int) error {
	data, err := os.ReadFile(filepath.Join(dir, nodeFile))
	if err != nil {
		return nil
	}
	var m nodeMeta
	plain, _, err := splitSum(data)
	if err != nil || len(data) > maxMetaBytes || json.Unmarshal(plain, &m) != nil {
		return nil
	}
	return m.checkFormat(newest)
}

// upgrade raises the data directory of a single node to the newest level, and returns the old and the new one. No node
// may run on the directory. Afterwards older versions refuse it. A crash leaves it at either level.
func upgrade(dir string, newest int) (from, to int, err error) {
	if _, err := os.Stat(filepath.Join(dir, nodeFile)); errors.Is(err, fs.ErrNotExist) {
		return 0, 0, fmt.Errorf("engine: %s is not a data directory: it has no %s; nothing was changed", dir, nodeFile)
	}
	if err := checkDirectory(dir, newest); err != nil {
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
	if m.Cluster != noCluster {
		return 0, 0, fmt.Errorf("engine: the data directory belongs to cluster %s: nothing was changed; raise the cluster "+
			"with: engine cluster upgrade", m.Cluster)
	}
	from = m.level()
	return from, newest, m.raise(disk, newest)
}

// raise durably raises the directory to level; it never lowers it.
func (m *nodeMeta) raise(disk aio.Disk, level int) error {
	if m.level() >= level {
		return nil
	}
	next := *m
	next.Format = formatOf(level)
	if err := next.write(disk); err != nil {
		return err
	}
	m.Format = next.Format
	return nil
}
