package node

import (
	"context"
	"math"
	"slices"
	"time"

	"github.com/google/uuid"

	"penstock/internal/meta"
	"penstock/internal/node/datadir"
	"penstock/replicate/peer"
	"penstock/segment"
)

// What this node knows of its own past when it registers: which processes ran on its directory (datadir.NodeFile.Life),
// and how new the metadata were that it saw (datadir.SeenFile). The store compares both with its rows before it writes
// any (meta.Registration). How far its commit log went is in its row, see cluster_data.go.

// seenInterval is the least time between two writes of datadir.SeenFile.
const seenInterval = 10 * time.Second

// enter is meta.Registration.Enter: this process is about to replace row. If the directory is unknown to the row, each
// of its copies may lack what the node acknowledged. They are listed as such before the row is written, and thereby
// before any copy is opened: ListUnnamed then names those that recovery does not know.
func (cn *clusterNode) enter(row *meta.Node) error {
	if cn.life(row) == meta.LifeUnknown {
		if err := cn.takeForOlder(row); err != nil {
			return err
		}
	}
	return cn.e.node.Begin(row, cn.comparedEnd(), cn.boot)
}

// shortenAll durably lists all copies of this node as shortened, those that it does not know by name included. It
// returns how many it knows.
func (cn *clusterNode) shortenAll() (copies int, err error) {
	ids := []segment.Identity{datadir.UnnamedCopies}
	for _, pt := range cn.e.store.Partitions() {
		ids = append(ids, pt.Identity())
	}
	return len(ids) - 1, cn.Shortened.Add(ids)
}

// takeForOlder lists all copies as shortened, and says so, because the process of row ran elsewhere, or wrote more to
// the commit log than the directory has.
func (cn *clusterNode) takeForOlder(row *meta.Node) error {
	copies, err := cn.shortenAll()
	if err != nil {
		return err
	}
	if cn.olderDirectory.Swap(true) {
		return nil
	}
	why := "this data directory is not the one that the node ran on last: it is an older state of it, such as a " +
		"snapshot or a restored volume, or the original of a copy that ran on"
	if cn.e.node.Life(row, math.MaxUint64) != meta.LifeUnknown { // only the end of its commit log tells that it is older
		why = "this data directory is an older state of itself, such as a snapshot or a restored volume: its commit log " +
			"ends before what the node wrote to it"
	}
	cn.Log.Warn(why+". Its copies may lack what the node answered OK for: each of them compares itself with other "+
		"replicas before it leads, and fetches what it lacks",
		"partitions", copies, "last_group", cn.e.logEnd, "wrote_group", row.Logged, "last_process", row.Boot,
		"last_at", row.Peer)
	if cn.opts.StoreRenewed == "" && slices.Contains(cn.opts.StoreNodes, cn.e.node.NodeID()) {
		cn.Log.Error("this node also runs a member of the embedded etcd. If its directory is as old as the data directory, " +
			"the member has forgotten what it promised, and its vote can undo what the cluster decided: stop this node, empty " +
			"the directory of its etcd (etcd in the data directory, or etcd-data-path), and start it again while the other " +
			"members run. It is then added anew")
	}
	return nil
}

// holder is meta.Registration.Holder. If the row has this node's own address, this process has bound it, so the one of
// the row is gone.
func (cn *clusterNode) holder(ctx context.Context, row *meta.Node, cluster uuid.UUID) meta.Holder {
	if row.Peer == "" || row.Peer == cn.address {
		return meta.HolderGone
	}
	answer, err := cn.e.host.Ask(ctx, peer.Options{
		Self:    peer.Node{Name: cn.e.node.NodeID(), Store: cn.e.node.StoreID(), Boot: cn.boot},
		Cluster: cluster, Trust: cn.opts.Trust,
	}, row.Peer)
	switch {
	case answer.Nobody:
		return meta.HolderGone
	case answer.Boot == row.Boot:
		return meta.HolderAnswers
	}
	cn.Log.Info("the process that has this node's name did not say who it is", "address", row.Peer, "error", err)
	return meta.HolderSilent
}

// seenBefore returns the newest metadata that an earlier process of this directory saw.
func (cn *clusterNode) seenBefore() meta.Seen {
	s, err := datadir.ReadSeen(cn.e.disk)
	if err != nil {
		cn.Log.Warn("how new the metadata were that this node saw last cannot be read; it is written anew, and older "+
			"metadata are not noticed at this start", "error", err)
	}
	return s
}

// logEpochs returns the newest epoch in the log of each copy.
func (cn *clusterNode) logEpochs() map[meta.PartitionID]segment.Epoch {
	epochs := map[meta.PartitionID]segment.Epoch{}
	for _, pt := range cn.e.store.Partitions() {
		if epoch := pt.Epoch(); epoch > 0 {
			epochs[pt.Identity()] = epoch
		}
	}
	return epochs
}

// keepPast writes what the next process has to know of this one: that it registered, and the newest metadata that it
// saw. It runs on a goroutine of its own until the engine closes, so that a start does not wait for it. What a crash
// leaves unwritten is not noticed at the next start.
func (cn *clusterNode) keepPast() {
	told := false
	var kept meta.Seen
	for registered := false; ; {
		var err error
		if !registered {
			err = cn.e.node.Registered(cn.boot)
			registered = err == nil
		}
		if now := seenIn(cn.Rows.Snapshot()); now != kept && err == nil {
			if err = datadir.WriteSeen(cn.e.disk, now); err == nil {
				kept = now
			}
		}
		if err != nil && !told {
			told = true
			cn.Log.Warn("what this process saw of the cluster could not be written; it is tried again. Until then the next "+
				"start does not notice it if the metadata, or this directory, are put back to an earlier moment", "error", err)
		}
		if cn.Ctx.Err() != nil {
			return
		}
		cn.Pause(seenInterval)
	}
}

func seenIn(snap *meta.Snapshot) meta.Seen {
	return meta.Seen{Cluster: snap.Cluster, Generation: snap.Generation, Revision: snap.Revision}
}
