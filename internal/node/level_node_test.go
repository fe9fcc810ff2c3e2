package node

import (
	"log/slog"
	"testing"

	"github.com/google/uuid"

	"penstock/internal/meta"
	"penstock/internal/node/datadir"
	"penstock/tests/support/faultaio"
)

// The cluster's level comes into force at this node when its own directory has that level, and not before: otherwise an
// older version could open the directory.
//
// F3.
func TestLevelNeedsItsDirectory(t *testing.T) {
	cn := bareNode()
	cn.e.store.SetFeature(1)
	disk, log := faultaio.New(faultaio.Options{}), slog.New(slog.DiscardHandler)
	var err error
	if cn.e.node, err = datadir.OpenNodeFile(disk, log, "n", NewestLevel, true, uuid.New); err != nil {
		t.Fatal(err)
	}
	cn.raising.Store(true) // as if a goroutine were raising the directory
	snap := &meta.Snapshot{Level: 2}
	if cn.learnLevel(snap); cn.e.Level() != 1 {
		t.Errorf("level %d is in force, and the directory has level 1", cn.e.Level())
	}
	if err := cn.e.node.Raise(2); err != nil {
		t.Fatal(err)
	}
	if cn.learnLevel(snap); cn.e.Level() != 2 {
		t.Errorf("level %d is in force, and everything has level 2", cn.e.Level())
	}
	if cn.learnLevel(&meta.Snapshot{}); cn.e.Level() != 2 {
		t.Error("the level went back")
	}
}
