package node

import (
	"log/slog"
	"testing"

	"github.com/google/uuid"

	"penstock/internal/meta"
	"penstock/internal/node/datadir"
	"penstock/internal/node/partition"
	"penstock/segment/aio/faultaio"
)

// A leader does not wait for answers of other nodes if the question belongs to a feature level that is not in force.
//
// F3.
func TestNoFenceBelowItsLevel(t *testing.T) {
	cn := bareNode()
	cn.e.store.SetFeature(datadir.FirstLevel)
	if ms := cn.fenceTime(); ms != 0 {
		t.Errorf("a leader waits %d ms for nodes that know of no fence", ms)
	}
}

func (cn *clusterNode) fenceTime() int64 {
	t := &Topic{e: cn.e}
	t.list.Store(&[]*partition.Partition{cn.e.store.NewPartition(&t.shared, 0)})
	return channelTopic{t}.FenceMs(0, 2)
}

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
