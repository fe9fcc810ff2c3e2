package node

import (
	"errors"
	"fmt"
	"time"

	"penstock/internal/descriptors"
	"penstock/internal/meta"
	"penstock/internal/node/errs"
	"penstock/internal/node/health"
	"penstock/internal/node/machine"
	"penstock/replicate"
)

// Verdict says whether this node lives, is ready and serves, and what is wrong with it and with what it knows of its
// cluster. Everything that reports the health of the node calls it. It takes a lock of each partition's log, but waits
// neither for the disk nor for other nodes.
func (e *Engine) Verdict() health.Verdict {
	return health.Judge(e.HealthFacts())
}

// HealthFacts returns what Verdict is made from.
func (e *Engine) HealthFacts() *health.Facts {
	f := &health.Facts{Node: e.node.NodeID(), Closing: e.leaving.Load() || e.catalog.Closed(), Cluster: e.members.look()}
	f.ClockAhead = e.clock.Ahead()
	if s := e.disks.Stats().State; s == machine.DiskSlow || s == machine.DiskHung {
		f.DiskState = s.String()
	}
	f.AsideMessages, f.Forgotten = e.store.Aside().Stats().Messages, e.forgotten
	if ask := e.authSilence.Load(); ask != nil {
		_, f.AuthSilence = (*ask)()
	}
	f.Partitions, f.PartitionLimit = int(e.shared.Partitions()), e.current().MaxPartitions
	f.TopicLimit = e.current().MaxTopics
	f.StateBytes, f.StateLimit = e.store.Memory().State, e.current().MaxStateBytes
	f.Transience, f.FewDescriptors = e.transience, descriptors.RefusedWithin(10*time.Minute)
	f.Certificates, f.Wall = e.Certificates(), e.host.Wall()
	e.channelTroubles(f)
	if e.cluster != nil {
		clock := e.cluster.clockVerdict()
		f.Clock = e.cluster.clockFact(&clock)
		e.cluster.missing(f)
	}
	if err := e.store.Failure(); err != nil {
		f.Failure, f.Curable = health.Text(err), errors.Is(err, errs.ErrDisk)
	}
	if err := e.disks.Failure(); err != nil {
		f.Disk = health.Text(err)
	}
	if err := e.store.Flusher().Full(); err != nil {
		f.Full = health.Text(err)
	}
	if err := e.damage(); err != nil {
		f.Damage = health.Text(err)
	}
	return f
}

// Certificates returns Options.Certificates as they are now.
func (e *Engine) Certificates() []health.Certificate {
	if e.opts.Certificates == nil {
		return nil
	}
	return e.opts.Certificates()
}

// WatchAuth has the node tell, in its health and among its faults, that no auth server answers: for how long, 0 if they
// do, and a sentence about it. The server of its clients calls it once; silence may be called by any goroutine, and
// must not block. nil: there is no auth server.
func (e *Engine) WatchAuth(silence func() (time.Duration, string)) {
	if silence == nil {
		e.authSilence.Store(nil)
		return
	}
	e.authSilence.Store(&silence)
}

// authSilentSeconds is how long no auth server has answered, in seconds, and at least 1; 0: they do.
func (e *Engine) authSilentSeconds() int64 {
	ask := e.authSilence.Load()
	if ask == nil {
		return 0
	}
	silent, _ := (*ask)()
	if silent == 0 {
		return 0
	}
	return max(int64(silent/time.Second), 1)
}

// channelTroubles fills in how many topics there are, and what is wrong with them and their channels.
func (e *Engine) channelTroubles(f *health.Facts) {
	all := e.catalog.Topics()
	f.Topics = len(all)
	for _, t := range all {
		t.Local().Troubles(f)
	}
}

// View returns what this node knows of the other nodes besides the store's rows; on a single node, that it trusts them.
func (e *Engine) View() health.View {
	if e.cluster == nil {
		return health.Trusting(0)
	}
	return e.cluster.view()
}

// Health returns nil, or an error that says what is broken at this node's storage. ErrDisk or ErrReadOnly: the commit
// log failed or is damaged, and nothing more is stored until a restart. ErrDiskHung: the disk has not answered for
// Options.DiskFailedAfter. ErrNoSpace: the disk is full. Any other error lists damaged data, and copies with entries of
// a newer version. Verdict also knows the cluster.
func (e *Engine) Health() error {
	if err := e.store.Failure(); err != nil {
		return err
	}
	if err := e.disks.Failure(); err != nil {
		return err
	}
	if err := e.store.Flusher().Full(); err != nil {
		return err
	}
	return e.damage()
}

// damage lists the data of this node that does not read back, and the copies with entries of a newer version.
func (e *Engine) damage() error {
	bad := e.store.Flusher().RottenFile()
	for _, pt := range e.store.Partitions() {
		if err := errors.Join(pt.Log().Health(), pt.WhyUnread()); err != nil {
			bad = errors.Join(bad, fmt.Errorf("topic %s, partition %d: %w", pt.Topic().Name, pt.Number(), err))
		}
	}
	return bad
}

// look returns what this node knows of its cluster, or nil before it has joined.
func (cn *clusterNode) look() *health.Cluster {
	snap := cn.snapshot()
	if snap == nil {
		return nil
	}
	return health.Look(snap, cn.view())
}

// view reads the ages at one moment. It takes exitedMu, and asks the network which connections are open.
func (cn *clusterNode) view() health.View {
	v := health.View{
		Self: cn.Self.ID, Leased: cn.Leased(), Connected: map[replicate.NodeID]bool{},
		Gone: map[replicate.NodeID]time.Duration{}, StoreNodes: cn.opts.StoreNodes,
		Heard: map[replicate.NodeID]time.Duration{}, Shown: map[replicate.NodeID]*health.Certificate{},
		Wall: cn.e.host.Wall(), Unconnected: map[replicate.NodeID]time.Duration{},
	}
	v.StoreAge, v.LeaseLength = cn.Heard()
	if cn.opts.StoreState != nil {
		v.Store = cn.opts.StoreState()
	}
	if cn.Net != nil {
		for id := range snapshotNodes(cn.snapshot()) {
			if id != cn.Self.ID && cn.Net.Connected(id) {
				v.Connected[id] = true
			}
			if shown := cn.Net.Shown(id); shown != nil {
				v.Shown[id] = &health.Certificate{From: shown.NotBefore, Until: shown.NotAfter}
			}
		}
	}
	now := cn.Now()
	cn.exitedMu.Lock()
	defer cn.exitedMu.Unlock()
	for id, at := range cn.exited {
		v.Gone[id] = time.Duration(now - at)
	}
	for id, h := range cn.heard {
		v.Heard[id] = time.Duration(now - h.at)
		if without := time.Duration(now - h.linked); id != cn.Self.ID && !v.Connected[id] && without > v.LeaseLength {
			v.Unconnected[id] = without
		}
	}
	return v
}

func snapshotNodes(s *meta.Snapshot) map[replicate.NodeID]*meta.Node {
	if s == nil {
		return nil
	}
	return s.Nodes
}
