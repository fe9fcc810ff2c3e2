package world

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"

	"penstock/internal/cluster"
	"penstock/internal/cluster/kv"
	"penstock/internal/meta"
	"penstock/internal/node"
	"penstock/replicate"
)

// Operators ask the model of the store, which answers at once, or the real agreement through a node: then the answer
// comes later, or never, and what came of it shows in the store.

// operatorTimeout is how long an operator waits for the agreement.
const operatorTimeout = 2 * time.Second

// ask lets a node do something for an operator, if one is open that will do. what says it in the trace.
func (a *agreement) ask(n *host, what string, do func(context.Context, meta.Store) error) {
	if n == nil {
		return
	}
	n.task(func(*node.Engine) error {
		ctx, cancel := n.m.WithTimeout(context.Background(), operatorTimeout)
		defer cancel()
		return do(ctx, n.agreed)
	}, func(err error) { a.w.tracef("%s, through %s: %v", what, n.name, err) })
}

// movePartition wants a replica elsewhere, or (to = from) not any more.
func (w *World) movePartition(what string, id meta.PartitionID, from, to replicate.NodeID) {
	if a := w.agreement; a != nil {
		a.ask(w.anyNode(), what, func(ctx context.Context, s meta.Store) error { return s.MovePartition(ctx, id, from, to) })
		return
	}
	w.tracef("%s: %v", what, w.store.movePartition(id, from, to))
}

// drainNode begins to empty a node, or ends that.
func (w *World) drainNode(id replicate.NodeID, on bool) {
	if a := w.agreement; a != nil {
		what := fmt.Sprintf("node %d is to be drained: %v", id, on)
		a.ask(w.anyNode(), what, func(ctx context.Context, s meta.Store) error { return s.Drain(ctx, id, on) })
		return
	}
	w.store.drain(id, on)
}

// drainNone ends all drains when the faults have ended; what is on its way to the agreement may still begin one.
func (w *World) drainNone() {
	for _, id := range sortedNodes(w.store.snap) {
		if w.corpse.drains {
			break
		}
		if w.agreement == nil || w.store.snap.Nodes[id].Draining {
			w.drainNode(id, false)
		}
	}
	if w.agreement != nil {
		w.after(500*ms, w.drainNone)
	}
}

// expandTopic gives a topic more partitions.
func (w *World) expandTopic(what string, id uuid.UUID, partitions int) {
	if a := w.agreement; a != nil {
		a.ask(w.anyNode(), what, func(ctx context.Context, s meta.Store) error { return s.ExpandTopic(ctx, id, partitions) })
		return
	}
	w.tracef("%s: %v", what, w.store.expandTopic(id, partitions))
}

// raise begins to raise the cluster to the newest level. An operator has the tool of the newest version.
func (w *World) raise() {
	a := w.agreement
	if a == nil {
		if w.store.raise(node.NewestLevel) {
			w.Stats.Raised++
		}
		return
	}
	if n := w.anyNode(); n != nil && n.binary >= node.NewestLevel {
		a.ask(n, "the cluster is to be raised", func(ctx context.Context, s meta.Store) error {
			return s.RaiseLevel(ctx, node.NewestLevel)
		})
	}
}

// dismiss drains a node that is dead and removes it. It says whether the store has done so.
func (w *World) dismiss(id replicate.NodeID) bool {
	a := w.agreement
	switch {
	case a == nil:
		w.store.drain(id, true)
		return w.store.removeNode(id) == nil
	case w.store.snap.Nodes[id] == nil:
		return true
	}
	a.ask(w.anyNode(), fmt.Sprintf("node %d is to be removed", id), func(ctx context.Context, s meta.Store) error {
		if err := s.Drain(ctx, id, true); err != nil {
			return err
		}
		return s.RemoveNode(ctx, id)
	})
	return false
}

// lookAtTopics follows what was made, deleted and given more partitions.
func (a *agreement) lookAtTopics(old, now *meta.Snapshot) {
	w := a.w
	for _, id := range sortedTopics(old) {
		if now.Topics[id] == nil {
			w.deleted(id)
		}
	}
	for _, id := range sortedTopics(now) {
		t, was := now.Topics[id], old.Topics[id]
		if was == nil {
			w.made(t)
		} else {
			w.Stats.Expanded += t.Partitions - was.Partitions
		}
		if was == nil || was.Settings.Version != t.Settings.Version {
			w.models[id].want(&t.Settings)
		}
	}
}

// lookAtReplicas follows who gets a copy of a partition, and who loses one.
func (a *agreement) lookAtReplicas(old *meta.Snapshot, was, is *meta.Partition, m move) {
	s := a.w.store
	for _, id := range was.State.Replicas {
		if slices.Contains(is.State.Replicas, id) {
			continue
		}
		key := nodePart{a.w.nodeIn(old, id), is.ID}
		s.left[key], a.w.checks.left[key] = true, true
		switch {
		case m.cancel:
			a.w.Stats.Undone++
		case m.from == 0:
			a.w.Stats.Shrunk++
		default:
			a.w.Stats.Moves++
		}
	}
	for _, id := range is.State.Replicas {
		if !slices.Contains(was.State.Replicas, id) && s.left[nodePart{a.w.nodeOf(id), is.ID}] {
			a.w.Stats.Back++
		}
	}
}

// movesIn reads the rows of moves; the snapshot does not have them.
func movesIn(entries []kv.Entry) map[meta.PartitionID]move {
	moves := map[meta.PartitionID]move{}
	for i := range entries {
		e := &entries[i]
		text, ok := strings.CutPrefix(e.Key, cluster.DefaultPrefix+"moves/")
		if !ok {
			continue
		}
		var row struct {
			From, To      replicate.NodeID
			Drain, Cancel bool
		}
		topic, number, _ := strings.Cut(text, "/")
		partition, bad := strconv.ParseUint(number, 10, 32)
		if bad != nil || json.Unmarshal(e.Value, &row) != nil {
			panic("BUG: world: the row of a move cannot be read: " + e.Key)
		}
		id := meta.PartitionID{Topic: uuid.MustParse(topic), Partition: uint32(partition)}
		moves[id] = move{from: row.From, to: row.To, cancel: row.Cancel, drain: row.Drain}
	}
	return moves
}
