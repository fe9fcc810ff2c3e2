package admin

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"penstock/internal/meta"
	"penstock/internal/node/health"
	"penstock/replicate"
)

// Copy is one copy of a partition, as its node describes it.
type Copy struct {
	Node string `json:"node"`
	// States are in which states the copy is: leads, damaged, contested, short, shortened, in sync. Empty: none of these.
	States []string `json:"states"`
	// Away is the reason why the node did not describe its copy. Then the fields below are not known. It is empty if the
	// node described its copy.
	Away      string    `json:"away,omitempty"`
	End       int64     `json:"end"`       // position of the next batch
	Committed int64     `json:"committed"` // every batch below is known to be committed
	Messages  int64     `json:"messages"`  // id of the next message: how many the partition ever had
	Epoch     uint64    `json:"epoch"`     // of the last batch
	Written   time.Time `json:"written,omitzero"`

	Leads     bool `json:"-"`
	Damaged   bool `json:"-"`
	Shortened bool `json:"-"`
	Contested bool `json:"-"`
}

// forceLeader refuses requests that cannot be intended. Whether messages are lost depends on which other replicas held
// them; forcing a leader on a partition that is served would lose them for nothing. The exception is a contested copy,
// which has messages that the leader's log lacks: an operator chooses between the two. The present leader itself may be
// named. If it waits because its log may lack something and the replica that may have more cannot lead, it then goes on
// without that replica. If it waits for nobody, it has everything that was acknowledged, and the other replicas return
// to the ISR.
func (h *handler) forceLeader(ctx context.Context, s *meta.Snapshot, b *ForceLeader) (*Done, error) {
	p, err := partitionNamed(s, b.Topic, b.Partition)
	if err != nil {
		return nil, err
	}
	n, err := nodeNamed(s, "node", b.Node)
	if err != nil {
		return nil, err
	}
	name := fmt.Sprintf("partition %d of topic %s", p.ID.Partition, b.Topic)
	switch {
	case !b.IAcceptDataLoss && !b.DryRun:
		return nil,
			refuse(http.StatusBadRequest, "acknowledged messages of %s that node %s does not hold would be lost for ever: "+
				"say \"i_accept_data_loss\": true if that is meant; \"dry_run\": true says what is known of it", name, n.Name)
	case !slices.Contains(p.State.Replicas, n.ID):
		return nil, refuse(http.StatusConflict, "%s has no replica on node %s: it is on %s", name, n.Name, replicaNames(s, p))
	case !n.Live:
		return nil, refuse(http.StatusConflict, "node %s is not alive: start it first", n.Name)
	}
	copies := h.askCopies(ctx, s, p)
	if !mayForce(s, p, n.ID, copies) {
		return nil, refuse(http.StatusConflict, "%s is led by node %s, which is alive: there is nothing to force; to move "+
			"the leadership, transfer it, "+
			"and if it waits for another replica that cannot come back, force node %[2]s itself",
			name, nodeName(s, p.State.Leader))
	}
	done := &Done{Copies: copies}
	lost := lossOf(n.Name, copies)
	if b.DryRun {
		done.Message = fmt.Sprintf("if node %s is forced to lead %s: %s; nothing was changed", n.Name, name, lost)
		return done, nil
	}
	if err := h.store.ForceLeader(ctx, p.ID, n.ID); err != nil {
		return nil, err
	}
	done.Message = fmt.Sprintf("node %s leads %s: acknowledged messages that it does not hold are lost: %s", n.Name, name,
		lost)
	return done, nil
}

// mayForce says whether it can be intended to force a node to lead. A leader that may lack something may be replaced:
// it may be waiting for that node, which the store does not elect.
func mayForce(s *meta.Snapshot, p *meta.Partition, node replicate.NodeID, copies []Copy) bool {
	rows := health.Trusting(0) // the store decides by its rows
	if !rows.Serves(s, p) || node == p.State.Leader || replicate.HasNode(p.Damaged, p.State.Leader) ||
		replicate.HasNode(p.Contested, node) {
		return true
	}
	return slices.ContainsFunc(copies, func(c Copy) bool { return c.Leads && c.Shortened })
}

// askCopies asks this node and all live ones that have a copy of the partition to describe it, at the same time. The
// copies are in the order of the replicas.
func (h *handler) askCopies(ctx context.Context, s *meta.Snapshot, p *meta.Partition) []Copy {
	if h.self.Copy == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, FaultsTimeout)
	defer cancel()
	copies := make([]Copy, len(p.State.Replicas))
	var wg sync.WaitGroup
	for i, id := range p.State.Replicas {
		c := &copies[i]
		if n := s.Nodes[id]; n == nil || !n.Live {
			c.Away = "its node is not alive"
			continue
		}
		wg.Go(func() {
			if got, err := h.self.Copy(ctx, p.ID, id); err != nil {
				c.Away = err.Error()
			} else {
				*c = *got
			}
		})
	}
	wg.Wait()
	for i, id := range p.State.Replicas {
		copies[i].Node = nodeName(s, id)
		copies[i].States = statesOf(p, id, &copies[i])
	}
	return copies
}

// statesOf lists in which states a copy is, by the row and its node.
func statesOf(p *meta.Partition, id replicate.NodeID, c *Copy) []string {
	row := func(list []replicate.Member) bool { return replicate.HasNode(list, id) }
	out := []string{}
	for _, s := range []struct {
		is   bool
		name string
	}{
		{c.Leads, "leads"},
		{c.Damaged || row(p.Unreadable()), "damaged"},
		{c.Contested || row(p.Contested), "contested"},
		{row(p.State.Short), "short"},
		{c.Shortened, "shortened"},
		{row(p.State.ISR), "in sync"},
	} {
		if s.is {
			out = append(out, s.name)
		}
	}
	return out
}

// lossOf says what is known to be lost if the node named chosen leads.
func lossOf(chosen string, copies []Copy) string {
	if len(copies) == 0 {
		return "what other copies have is not known, because no node was asked"
	}
	i := slices.IndexFunc(copies, func(c Copy) bool { return c.Node == chosen })
	if i < 0 || copies[i].Away != "" {
		return "node " + chosen + " does not say where its copy ends, so what is lost is not known"
	}
	at := &copies[i]
	var known, more, away []string
	for i := range copies {
		c := &copies[i]
		switch {
		case c.Node == chosen:
		case c.Away != "":
			away = append(away, c.Node)
		case c.Committed > at.End:
			known = append(known, fmt.Sprintf("it lacks %s that node %s knows to be committed (positions %d to %d)",
				counted(int(c.Committed-at.End), "batch"), c.Node, at.End, c.Committed-1))
		case isContested(c), isContested(at) && c.Leads:
			more = append(more, fmt.Sprintf("node %s has messages that it lacks and that were probably answered OK: one of "+
				"the two is contested", c.Node))
		case c.End > at.End:
			more = append(more, fmt.Sprintf("node %s has %s more (%s), of which it is not known whether they were answered OK",
				c.Node, counted(int(c.End-at.End), "batch"), counted(int(max(0, c.Messages-at.Messages)), "message")))
		case c.Epoch > at.Epoch:
			more = append(more, fmt.Sprintf("node %s's log ends in a newer epoch (%d, not %d) and may have messages that it "+
				"lacks", c.Node, c.Epoch, at.Epoch))
		}
	}
	all := slices.Concat(known, more)
	if len(all) == 0 {
		all = []string{"no copy that can be asked has more"}
	} else {
		all = append(all, "what those copies lose is kept aside on their nodes")
	}
	if len(away) > 0 {
		all = append(all, "what only "+strings.Join(away, ", ")+" may have is not known, and is cut when they come back")
	}
	return strings.Join(all, "; ")
}

func isContested(c *Copy) bool { return slices.Contains(c.States, "contested") }
