package datadir

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"

	"penstock/internal/meta"
)

const (
	// FirstLevel is the lowest feature level of a data directory or a cluster. NewestLevel is the highest level that
	// this version knows; see node.Engine.Level.
	FirstLevel  = 1
	NewestLevel = 6

	// MarkLevel is the level from which on every data directory has a log.mark (package clog): older versions, which
	// make none, refuse it. A directory of this level without one has lost it.
	MarkLevel = 4

	// BackupFile is in every complete backup (package backup), and in no data directory.
	BackupFile = "backup.json"

	formatsPerLevel = 1 // the format in node.json is the level plus this
)

// FormatOf returns the format that node.json has in a directory at this feature level.
func FormatOf(level int) int { return level + formatsPerLevel }

// Level returns the feature level of the directory.
func (m *Node) Level() int { return m.Format - formatsPerLevel }

// CheckFormat refuses a directory whose level is above max, or whose format is older than the first level.
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

// Check returns an error if this version does not know the level of the directory, or if the directory is a backup,
// which would not verify any more if a node or a tool wrote there. Whoever is told of a data directory calls Check
// before anything else touches the directory. Open reports every other problem.
func Check(dir string, newest int) error {
	if _, err := os.Lstat(filepath.Join(dir, BackupFile)); err == nil {
		return fmt.Errorf("engine: %s is a backup: nothing was changed; make a data directory of it with penstock restore, "+
			"and name that", dir)
	}
	data, err := os.ReadFile(filepath.Join(dir, NodePath))
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
