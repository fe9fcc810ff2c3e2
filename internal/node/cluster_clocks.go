package node

import (
	"errors"
	"maps"
	"slices"
	"strings"
	"time"

	"penstock/internal/node/errs"
	"penstock/internal/node/health"
	"penstock/internal/node/machine"
	"penstock/replicate"
	"penstock/replicate/wire"
)

// The nodes of a cluster compare their clocks. Each one asks every node that it is connected to for its engine clock,
// and machine.ClockPeers judges the answers. A node whose clock differs from those of most says so in its row
// (meta.Node.ClockDiffers): it gets no leadership that another node can have, and balance gives away those that it has.
// Otherwise delays would end, and messages be dated, by a clock that the next leader does not have. A node of an older
// version does not answer: its clock is not known, and nothing is said of it.

const (
	// clockInterval is the time between two questions to a node that answered, and clockRetry that after a question
	// that was lost, or whose answer took so long that it says little (vagueClock).
	clockInterval = time.Minute
	clockRetry    = 5 * time.Second
	vagueClock    = 100 * time.Millisecond
	// clockTimeout bounds one question.
	clockTimeout = 2 * time.Second
)

// clockWatch is what a node knows of the clocks of the others. clusterNode.exitedMu guards it. A crash loses it; the
// next process asks all again.
type clockWatch struct {
	peers machine.ClockPeers
	asks  map[replicate.NodeID]*clockAsk // one of each node that this one has been connected to
	told  machine.ClockVerdict           // of the last judgeClock
}

// clockAsk is when a node is asked next.
type clockAsk struct {
	next     int64 // by Now
	underWay bool
}

// askClocks judges the answers so far, and asks the nodes whose time has come, each on a goroutine of its own, with at
// most one question to each under way. runTicker calls it after listen, every half second; Up makes it ask a node anew
// that has just connected.
func (cn *clusterNode) askClocks() {
	cn.judgeClock() // all that were asked together have answered by now: it does not say first that nobody can tell
	known, now := snapshotNodes(cn.snapshot()), cn.Now()
	due := map[replicate.NodeID]*clockAsk{}
	cn.exitedMu.Lock()
	if cn.clocks.asks == nil {
		cn.clocks.asks = map[replicate.NodeID]*clockAsk{}
	}
	maps.DeleteFunc(cn.clocks.asks, func(id replicate.NodeID, _ *clockAsk) bool { return known[id] == nil })
	cn.clocks.peers.Keep(now, func(id uint32) bool { return known[replicate.NodeID(id)] != nil })
	for _, id := range slices.Sorted(maps.Keys(known)) {
		if id == cn.Self.ID || !cn.Net.Connected(id) {
			continue
		}
		a := cn.clocks.asks[id]
		if a == nil {
			a = new(clockAsk)
			cn.clocks.asks[id] = a
		}
		if !a.underWay && now >= a.next {
			a.underWay = true
			due[id] = a
		}
	}
	cn.exitedMu.Unlock()
	for _, id := range slices.Sorted(maps.Keys(due)) {
		cn.Spawn(func() { cn.askClock(id, due[id]) })
	}
}

// askClock asks one node for its clock, and notes the answer, unless the node has connected anew meanwhile: then it is
// asked anew, and this answer may be that of its former process.
func (cn *clusterNode) askClock(id replicate.NodeID, a *clockAsk) {
	ctx, cancel := cn.e.host.WithTimeout(cn.Ctx, clockTimeout)
	defer cancel()
	before := cn.e.clock.NowNs()
	answer, err := cn.ops.Ask(ctx, id, wire.Operation{Kind: wire.OpClock})
	after := cn.e.clock.NowNs()
	var c wire.ClockAnswer
	if err == nil {
		err = wire.DecodeResult(answer, &c)
	}
	s := machine.SampleClock(uint32(id), before, c.NowNs, after)
	now, wait := cn.Now(), clockInterval
	// ErrNoTopic: it is of an older version, and looked for the topic of an operation that it does not know.
	if err != nil && !errors.Is(err, errs.ErrNoTopic) || err == nil && s.ErrorNs > int64(vagueClock) {
		wait = clockRetry
	}
	cn.exitedMu.Lock()
	if cn.clocks.asks[id] == a {
		a.underWay, a.next = false, now+int64(wait)
		if err == nil {
			cn.clocks.peers.Saw(s, now)
		}
	}
	cn.exitedMu.Unlock()
}

// judgeClock logs when the verdict on this node's clock changes, and tells the store so that all nodes know. If the
// store does not answer, keepData repeats that.
func (cn *clusterNode) judgeClock() {
	cn.exitedMu.Lock()
	v := cn.clocks.peers.Judge()
	was := cn.clocks.told
	changed := v.Differs != was.Differs || v.Undecided != was.Undecided
	cn.clocks.told = v
	cn.exitedMu.Unlock()
	if !changed {
		return
	}
	if f := cn.clockFact(&v); f != nil {
		cn.Log.Warn(f.Words())
	} else {
		cn.Log.Info("the clock of this node agrees with those of most other nodes again")
	}
	if v.Differs != was.Differs {
		cn.Spawn(func() { cn.reportData(cn.Ctx) })
	}
}

// clockVerdict returns the last verdict on this node's clock.
func (cn *clusterNode) clockVerdict() machine.ClockVerdict {
	cn.exitedMu.Lock()
	defer cn.exitedMu.Unlock()
	return cn.clocks.told
}

// clockFact returns what health says of this node's clock; nil: nothing.
func (cn *clusterNode) clockFact(v *machine.ClockVerdict) *health.Clock {
	if !v.Differs && !v.Undecided {
		return nil
	}
	known := snapshotNodes(cn.snapshot())
	f := &health.Clock{Ahead: time.Duration(v.AheadNs), Wrong: v.Differs}
	for _, id := range v.From {
		if n := known[replicate.NodeID(id)]; n != nil {
			f.From = append(f.From, n.Name)
		}
	}
	slices.SortFunc(f.From, strings.Compare)
	return f
}

// clockAheadMs is how far this node's clock is ahead of those that it differs from, in ms; below 0: behind; 0: it does
// not differ, or only from fewer than half of the nodes.
func (e *Engine) clockAheadMs() int64 {
	if e.cluster == nil {
		return 0
	}
	return time.Duration(e.cluster.clockVerdict().AheadNs).Milliseconds()
}

// clockSamples returns, by node, how far this node's clock is ahead of that node's.
func (cn *clusterNode) clockSamples() map[replicate.NodeID]time.Duration {
	cn.exitedMu.Lock()
	defer cn.exitedMu.Unlock()
	all := map[replicate.NodeID]time.Duration{}
	for _, s := range cn.clocks.peers.Samples() {
		all[replicate.NodeID(s.Node)] = time.Duration(s.AheadNs)
	}
	return all
}
