package admin

import (
	"context"
	"fmt"
	"net/http"

	"penstock/internal/cluster"
	"penstock/internal/meta"
	"penstock/replicate"
)

// transferLeader answers with the chosen node besides the sentence.
func (h *handler) transferLeader(ctx context.Context, s *meta.Snapshot, b *TransferLeader) (*Done, error) {
	p, err := partitionNamed(s, b.Topic, b.Partition)
	if err != nil {
		return nil, err
	}
	var to replicate.NodeID
	if b.To != "" {
		n, err := nodeNamed(s, "to", b.To)
		if err != nil {
			return nil, err
		}
		to = n.ID
	}
	if _, refused := cluster.TransferTarget(s, p.ID, to); refused != "" {
		return nil, refuse(http.StatusConflict, "%s: nothing was changed", refused)
	}
	if to, err = h.store.TransferLeader(ctx, p.ID, to); err != nil {
		return nil, err
	}
	done := &Done{Leader: nodeName(s, to)}
	done.Message = fmt.Sprintf("node %s is to lead partition %d of topic %s, and is preferred from now on: node %s hands "+
		"over", done.Leader, p.ID.Partition, b.Topic, nodeName(s, p.State.Leader))
	if to == p.State.Leader {
		done.Message = fmt.Sprintf("node %s keeps leading partition %d of topic %s, and is preferred from now on",
			done.Leader, p.ID.Partition, b.Topic)
	}
	return done, nil
}
