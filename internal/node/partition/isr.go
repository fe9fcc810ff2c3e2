package partition

import (
	"errors"
	"slices"
	"strconv"
	"strings"
	"time"

	"penstock/internal/loglimit"
	"penstock/internal/meta"
	"penstock/replicate"
)

// isrLogInterval is the least time between two log lines about replicas that left the ISR or joined it, and between two
// about changes that the store refused. A hanging disk or a leaving node concerns every partition of which it has a
// copy.
const isrLogInterval = time.Second

// isrLogs limits the log lines about in-sync replicas, each kind of line separately.
type isrLogs struct{ left, joined, refused, stranded, strandedFailed loglimit.Limiter }

// propose asks the store, on a new goroutine, to change the ISR to that of st, and passes the store's answer to the
// machine. This replica leads. r.mu is held.
func (cn *Env) propose(r *Replica, st *replicate.State) {
	want := *st
	want.ISR, want.Short, want.Replicas = slices.Clone(st.ISR), slices.Clone(st.Short), slices.Clone(st.Replicas)
	before := slices.Clone(r.state.ISR)
	cn.Spawn(func() {
		ctx, cancel := cn.store.host.WithTimeout(cn.Ctx, StoreTimeout)
		defer cancel()
		now, err := cn.Rows.ChangeISR(ctx, r.pt.Identity(), &want)
		if err != nil && !errors.Is(err, meta.ErrConflict) {
			if others, may := cn.isrLogs.refused.Allow(cn.Now(), isrLogInterval); may && cn.Ctx.Err() == nil {
				cn.Log.Warn("the in-sync replicas of a partition could not be changed; the leader asks again",
					"topic", r.pt.topic.Name, "partition", r.pt.number, "others", others, "error", err)
			}
			return
		}
		if err == nil {
			cn.logISRChange(r.pt, before, want.ISR)
		}
		r.run(func() {
			if !r.isClosed() && now.Epoch > 0 {
				r.step(&replicate.Event{Kind: replicate.EvState, State: &now})
				r.retryStalled()
			}
		})
	})
}

// logISRChange logs which replicas left or joined the ISR in a change that the store has accepted.
func (cn *Env) logISRChange(pt *Partition, before, after []replicate.Member) {
	missing := func(from, in []replicate.Member) (out []replicate.Member) {
		for _, m := range from {
			if !slices.Contains(in, m) {
				out = append(out, m)
			}
		}
		return out
	}
	if left := missing(before, after); len(left) > 0 {
		if others, may := cn.isrLogs.left.Allow(cn.Now(), isrLogInterval); may {
			cn.Log.Warn("a replica left the in-sync replicas: it is down, or does not store what it is sent. Publishing "+
				"goes on without it; it joins again by itself when it has caught up",
				"replica", cn.names(left), "topic", pt.topic.Name, "partition", pt.number, "isr_before", cn.names(before),
				"isr_after", cn.names(after), "others", others)
		}
	}
	if joined := missing(after, before); len(joined) > 0 {
		if others, may := cn.isrLogs.joined.Allow(cn.Now(), isrLogInterval); may {
			cn.Log.Info("a replica is in sync",
				"replica", cn.names(joined), "topic", pt.topic.Name, "partition", pt.number, "isr_before", cn.names(before),
				"isr_after", cn.names(after), "others", others)
		}
	}
}

// names returns the members' nodes for a log line, separated by commas.
func (cn *Env) names(members []replicate.Member) string {
	out := make([]string, 0, len(members))
	for _, m := range members {
		out = append(out, cn.NodeName(m.Node))
	}
	return strings.Join(out, ",")
}

// NodeName returns the name of a node, or its number if the store does not know it any more.
func (cn *Env) NodeName(id replicate.NodeID) string {
	if cn.Rows != nil { // nil in tests of a lone replica
		if snap := cn.Rows.Snapshot(); snap != nil && snap.Nodes[id] != nil {
			return snap.Nodes[id].Name
		}
	}
	return strconv.FormatUint(uint64(id), 10)
}

// present returns the members whose nodes are not known to be down.
func (cn *Env) present(members []replicate.Member) (out []replicate.Member) {
	for _, m := range members {
		if m.Node == cn.Self.ID || !cn.above.HasExited(m.Node) && cn.IsLive(m.Node) {
			out = append(out, m)
		}
	}
	return out
}
