package node

import (
	"errors"

	"github.com/google/uuid"

	"penstock/internal/meta"
	"penstock/internal/node/datadir"
	"penstock/internal/node/partition"
)

// Feature levels. An older version cannot read everything that a newer one writes: control kinds, frames, records, and
// fields of rows that must be kept. Each of these belongs to a feature level, and is written only while that level is
// in force. A data directory has a level: the format in node.json, less one. A version refuses a directory whose level
// it does not know. A cluster has a level in its metadata.
//
//	level 1  until the first version that knows of levels
//	level 2  versions without producers, and without messages that are kept after they were confirmed
//	level 3  versions whose directories do not know their lives (datadir.Node.Lives), and whose copies do not say that
//	         they may have forgotten something
//	level 4  versions whose named producers have an epoch in each partition, and no tenure (fold.ProducerOpening)
//	level 5  versions whose settings of channels have a fixed list of fields (fold.ChannelRows)
//	level 6  this version
//
// A directory is raised before anything of the new level is written into it. Upgrade raises the directory of a single
// node. When a cluster is being raised, each member raises its own directory; the new level comes into force when all
// members have done so.
const (
	// NewestLevel is the highest feature level that this version knows.
	NewestLevel = datadir.NewestLevel
)

// Level returns the feature level in force: nothing of a higher level may go into a partition's log, to another node or
// into the metadata. In a cluster it is the cluster's level, and level 1 until the node has joined. It only rises.
// Level costs one atomic load.
func (e *Engine) Level() int { return e.store.Feature() }

// DirectoryLevel returns the level of the data directory: nothing of a higher level may be written into files that only
// this node reads. It is never below Level.
func (e *Engine) DirectoryLevel() int { return e.node.Level() }

// logLevel logs that the level can be raised, if that is so.
func (e *Engine) logLevel() {
	switch level := e.Level(); {
	case level >= e.opts.MaxLevel:
	case !e.members.others():
		e.log.Info("the data directory is at an older feature level and stays so until it is raised: older versions can be "+
			"started on it. To raise it stop the node and run penstock upgrade",
			"level", level, "known", e.opts.MaxLevel)
	default:
		e.log.Info("the cluster is at an older feature level and stays so until it is raised: nodes can go back to the "+
			"older version. To raise it run penstock cluster upgrade when all nodes run this version",
			"level", level, "known", e.opts.MaxLevel)
	}
}

// foundingLevel returns the level of a new cluster whose first node this is. That is the newest level, unless the
// directory holds topics or belonged to a cluster: then it is the directory's level.
func (cn *clusterNode) foundingLevel() int {
	if e := cn.e; len(e.catalog.Topics()) == 0 && e.node.Cluster() == uuid.Nil {
		return e.opts.MaxLevel
	}
	return cn.e.DirectoryLevel()
}

// learnLevel applies the cluster's level. The worker calls it with each change of the store, and must not wait for the
// disk there; so raiseLater writes node.json on another goroutine.
func (cn *clusterNode) learnLevel(snap *meta.Snapshot) {
	e := cn.e
	level, wanted := snap.Levels()
	if n := snap.Nodes[cn.Self.ID]; max(level, wanted) > e.DirectoryLevel() ||
		n != nil && n.Boot == cn.Self.Boot && (n.StoreLevel != e.DirectoryLevel() || n.Level != e.opts.MaxLevel) {
		cn.raiseLater(max(level, wanted))
	}
	if level > e.Level() && level <= e.DirectoryLevel() {
		e.store.SetFeature(level)
		cn.Log.Info("the feature level of the cluster was raised: older versions cannot join it any more", "level", level)
	}
}

// raiseLater raises this node's directory to level and reports that to the store, on a new goroutine that retries until
// both have succeeded. Only one such goroutine runs at a time. The store then reports a change, which calls learnLevel
// again.
func (cn *clusterNode) raiseLater(level int) {
	if !cn.raising.CompareAndSwap(false, true) {
		return
	}
	cn.Spawn(func() {
		defer cn.raising.Store(false)
		told := false
		for cn.Ctx.Err() == nil {
			err := cn.e.node.Raise(level)
			if err == nil {
				ctx, cancel := cn.e.host.WithTimeout(cn.Ctx, partition.StoreTimeout)
				err = cn.Rows.Raised(ctx, cn.e.DirectoryLevel())
				cancel()
			}
			if err == nil || errors.Is(err, meta.ErrNotFound) {
				return
			}
			if !told && cn.Ctx.Err() == nil {
				told = true
				cn.Log.Warn("this node's directory could not be raised to the cluster's feature level, or the store could not be "+
					"told; it is tried again, and until then the cluster keeps its level",
					"level", level, "error", err)
			}
			cn.Pause(openRetryInterval)
		}
	})
}

// CheckDirectory returns ErrNewerLevel if the directory is at a level that this version does not know, and an error if
// it is of a version that was never released, or a backup. A program that starts a node calls it before anything else
// touches the directory. It only reads node.json, and returns nil if it cannot: Open reports every other problem.
func CheckDirectory(path string) error { return datadir.Check(path, NewestLevel) }

// Upgrade raises the data directory of a single node to the newest level, and returns the old and the new level. It
// fails while a node runs on the directory, and if the directory belongs to a cluster. Afterwards older versions refuse
// the directory. A crash leaves it at either level.
func Upgrade(path string) (from, to int, err error) { return datadir.Upgrade(path, NewestLevel) }
