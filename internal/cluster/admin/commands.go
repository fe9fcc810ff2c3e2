package admin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"penstock/batch"
	"penstock/internal/meta"
	"penstock/internal/node/health"
	"penstock/replicate"
)

// NodeRef names a node in a request: "n1", "1" or 1.
type NodeRef string

// UnmarshalJSON takes a string or a whole number.
func (n *NodeRef) UnmarshalJSON(data []byte) error {
	var number uint32
	if json.Unmarshal(data, &number) == nil && string(data) != "null" {
		*n = NodeRef(strconv.FormatUint(uint64(number), 10))
		return nil
	}
	var name string
	if err := json.Unmarshal(data, &name); err != nil {
		return errors.New("a node is a name or a number")
	}
	*n = NodeRef(name)
	return nil
}

// Bodies of the commands. Pointer fields must be present, because their zero value has a meaning of its own.
type (
	// Drain is the body of /cluster/drain.
	Drain struct {
		Node NodeRef `json:"node"`
		On   *bool   `json:"on"`
	}
	// Move is the body of /cluster/move. With Cancel it undoes the move that is under way, and names no nodes.
	Move struct {
		Topic     string  `json:"topic"`
		Partition *uint32 `json:"partition"`
		From      NodeRef `json:"from,omitempty"`
		To        NodeRef `json:"to,omitempty"`
		Cancel    bool    `json:"cancel,omitempty"`
	}
	// ForceLeader is the body of /cluster/force-leader. The command is refused without IAcceptDataLoss. With DryRun it
	// only says what would be lost.
	ForceLeader struct {
		Topic           string  `json:"topic"`
		Partition       *uint32 `json:"partition"`
		Node            NodeRef `json:"node"`
		IAcceptDataLoss bool    `json:"i_accept_data_loss"`
		DryRun          bool    `json:"dry_run,omitempty"`
	}
	// TransferLeader is the body of /cluster/transfer-leader. Without To, the best other replica is chosen.
	TransferLeader struct {
		Topic     string  `json:"topic"`
		Partition *uint32 `json:"partition"`
		To        NodeRef `json:"to,omitempty"`
	}
	// RemoveNode is the body of /cluster/remove-node.
	RemoveNode struct {
		Node NodeRef `json:"node"`
	}
	// Upgrade is the body of /cluster/upgrade. Level 0 means the newest level that the node which gets the request
	// knows.
	Upgrade struct {
		Level int `json:"level"`
	}
	// Verify is the body of /cluster/verify. At is the offset to continue from: 0, or Next of the previous answer.
	Verify struct {
		Topic     string  `json:"topic"`
		Partition *uint32 `json:"partition"`
		At        int64   `json:"at"`
	}
	// Expand is the body of /cluster/expand; Partitions is the new total.
	Expand struct {
		Topic      string `json:"topic"`
		Partitions int    `json:"partitions"`
	}
)

func (h *handler) drain(ctx context.Context, s *meta.Snapshot, b *Drain) (string, error) {
	n, err := nodeNamed(s, "node", b.Node)
	if err != nil {
		return "", err
	}
	if b.On == nil {
		return "", refuse(http.StatusBadRequest, "on is missing: true drains the node, false ends it")
	}
	if err := h.store.Drain(ctx, n.ID, *b.On); err != nil {
		return "", err
	}
	if !*b.On {
		return fmt.Sprintf("node %s takes leaderships and replicas again", n.Name), nil
	}
	return fmt.Sprintf(
		"node %s is draining: it gives away its leaderships and, where other nodes can take them, its replicas", n.Name), nil
}

func (h *handler) move(ctx context.Context, s *meta.Snapshot, b *Move) (string, error) {
	p, err := partitionNamed(s, b.Topic, b.Partition)
	if err != nil {
		return "", err
	}
	if b.Cancel {
		return h.cancelMove(ctx, s, b)
	}
	from, err := nodeNamed(s, "from", b.From)
	if err != nil {
		return "", err
	}
	to, err := nodeNamed(s, "to", b.To)
	if err != nil {
		return "", err
	}
	name := fmt.Sprintf("partition %d of topic %s", p.ID.Partition, b.Topic)
	switch {
	case !slices.Contains(p.State.Replicas, from.ID):
		return "", refuse(http.StatusConflict, "%s has no replica on node %s: it is on %s",
			name, from.Name, replicaNames(s, p))
	case slices.Contains(p.State.Replicas, to.ID):
		return "", refuse(http.StatusConflict, "%s has a replica on node %s already: it is on %s",
			name, to.Name, replicaNames(s, p))
	case !to.Live:
		return "", refuse(http.StatusConflict, "node %s is not alive: start it or choose another one", to.Name)
	case to.Draining:
		return "", refuse(http.StatusConflict, "node %s is draining: end that or choose another one", to.Name)
	}
	if err := h.store.MovePartition(ctx, p.ID, from.ID, to.ID); err != nil {
		return "", err
	}
	return fmt.Sprintf("%s is moving: node %s gives its replica up once node %s is in sync", name, from.Name, to.Name), nil
}

// cancelMove undoes a move: of an operator, a drain or the rebalancer.
func (h *handler) cancelMove(ctx context.Context, s *meta.Snapshot, b *Move) (string, error) {
	id := meta.PartitionID{Topic: s.Names[b.Topic].ID, Partition: *b.Partition}
	m, moves := s.Moves[id]
	name := fmt.Sprintf("partition %d of topic %s", id.Partition, b.Topic)
	switch {
	case b.From != "" || b.To != "":
		return "", refuse(http.StatusBadRequest, "cancel ends the move of %s that is under way: from and to say nothing "+
			"to it; nothing was changed", name)
	case !moves:
		return "", refuse(http.StatusConflict, "%s is not moving: nothing was changed", name)
	}
	if err := h.store.MovePartition(ctx, id, m.From, m.From); err != nil {
		return "", err
	}
	return fmt.Sprintf("the move of %s from node %s to node %s is undone, unless node %[3]s leads it already", name,
		nodeName(s, m.From), nodeName(s, m.To)), nil
}

func (h *handler) removeNode(ctx context.Context, s *meta.Snapshot, b *RemoveNode) (string, error) {
	n, err := nodeNamed(s, "node", b.Node)
	if err != nil {
		return "", err
	}
	if err := h.removable(s, n); err != nil {
		return "", err
	}
	if h.self.Forget != nil {
		if err := h.self.Forget(ctx, n.Name); err != nil {
			return "", err
		}
	}
	if err := h.store.RemoveNode(ctx, n.ID); err != nil {
		return "", err
	}
	return fmt.Sprintf("node %s is no member any more", n.Name), nil
}

// removable refuses to remove a node that lives, or that nobody knows to be dead, that runs a part of the metadata
// store, or that has replicas. The store looks
// again: it knows nodes and topics by numbers only.
func (h *handler) removable(s *meta.Snapshot, n *meta.Node) error {
	if n.Live {
		view := &h.facts(s).Cluster.View
		presence, _ := view.Presence(n)
		switch {
		case presence == health.Live:
			return refuse(http.StatusConflict, "node %s is alive: drain it, stop it and then remove it", n.Name)
		case view.StoreSilent():
			return refuse(http.StatusServiceUnavailable, "the metadata store has not answered for %.1fs, and only it can "+
				"say that node %s is dead: nothing was changed; see whether a majority of etcd runs",
				view.StoreAge.Seconds(), n.Name)
		}
		return refuse(http.StatusConflict, "node %s is dead, and its lease has not ended yet: repeat this in %v; nothing "+
			"was changed", n.Name, view.LeaseLength)
	}
	if slices.Contains(h.facts(s).Cluster.View.StoreNodes, n.Name) {
		return refuse(http.StatusConflict, "node %s runs a member of the metadata store (cluster-peers names it), and "+
			"without it the cluster would not be healthy again: replace it under its own name, with an empty data "+
			"directory; nothing was changed", n.Name)
	}
	holds, topic := 0, ""
	for id, p := range s.Partitions.All() {
		if !slices.Contains(p.State.Replicas, n.ID) {
			continue
		}
		holds++
		if t := s.Topics[id.Topic]; t != nil && (topic == "" || t.Name < topic) {
			topic = t.Name
		}
	}
	if holds == 0 {
		return nil
	}
	return refuse(http.StatusConflict, "node %s holds %s of partitions, one of them of topic %s: drain it, so that other "+
		"nodes get them, or lower the number of replicas of these topics (set-replicas), and remove it once it has none; "+
		"nothing was changed", n.Name, counted(holds, "replica"), topic)
}

func (h *handler) expand(ctx context.Context, s *meta.Snapshot, b *Expand) (string, error) {
	t, err := topicNamed(s, b.Topic)
	if err != nil {
		return "", err
	}
	if b.Partitions <= t.Partitions || b.Partitions > batch.MaxPartition+1 {
		return "", refuse(http.StatusBadRequest, "topic %s has %d partitions and can have more, up to %d, but never fewer: "+
			"%d is none of these",
			t.Name, t.Partitions, batch.MaxPartition+1, b.Partitions)
	}
	if h.self.MayExpand != nil {
		if err := h.self.MayExpand(ctx, t.Name, b.Partitions); err != nil {
			return "", err
		}
	}
	if err := h.store.ExpandTopic(ctx, t.ID, b.Partitions); err != nil {
		return "", err
	}
	return fmt.Sprintf("topic %s has %d partitions; the first %d are as they were", t.Name, b.Partitions, t.Partitions),
		nil
}

func (h *handler) upgrade(ctx context.Context, s *meta.Snapshot, b *Upgrade) (string, error) {
	level, now := b.Level, s.FeatureLevel()
	if level == 0 {
		for _, n := range s.Nodes {
			if n.Name == h.self.Name {
				level = max(n.Level, 1)
			}
		}
	}
	if level < now {
		return "", refuse(http.StatusConflict, "the cluster is at feature level %d: it never goes down", now)
	}
	if level == now {
		return fmt.Sprintf("the cluster is at feature level %d", now), nil
	}
	if err := h.store.RaiseLevel(ctx, level); err != nil {
		return "", err
	}
	return fmt.Sprintf("the cluster is being raised from feature level %d to %d: it is done when every registered node "+
		"has raised its data directory; older versions cannot be started on those any more", now, level), nil
}

func topicNamed(s *meta.Snapshot, name string) (*meta.Topic, error) {
	if name == "" {
		return nil, refuse(http.StatusBadRequest, "topic is missing")
	}
	if t := s.Names[name]; t != nil {
		return t, nil
	}
	return nil, refuse(http.StatusNotFound, "there is no topic %q", name)
}

func partitionNamed(s *meta.Snapshot, topic string, partition *uint32) (*meta.Partition, error) {
	t, err := topicNamed(s, topic)
	if err != nil {
		return nil, err
	}
	if partition == nil {
		return nil, refuse(http.StatusBadRequest, "partition is missing")
	}
	if p := s.Partitions.Get(meta.PartitionID{Topic: t.ID, Partition: *partition}); p != nil {
		return p, nil
	}
	return nil, refuse(http.StatusNotFound, "topic %s has no partition %d: it has %d, counted from 0",
		t.Name, *partition, t.Partitions)
}

// nodeNamed finds a node by its name, or else by its number.
func nodeNamed(s *meta.Snapshot, field string, ref NodeRef) (*meta.Node, error) {
	if ref == "" {
		return nil, refuse(http.StatusBadRequest, "%s is missing: a node's name or number", field)
	}
	for _, n := range s.Nodes {
		if n.Name == string(ref) {
			return n, nil
		}
	}
	if id, err := strconv.ParseUint(string(ref), 10, 32); err == nil {
		if n := s.Nodes[replicate.NodeID(id)]; n != nil {
			return n, nil
		}
	}
	return nil, refuse(http.StatusNotFound, "there is no node %q: there are %s", string(ref), allNames(s))
}

func allNames(s *meta.Snapshot) string {
	names := make([]string, 0, len(s.Nodes))
	for _, n := range s.Nodes {
		names = append(names, n.Name)
	}
	slices.Sort(names)
	return strings.Join(names, ", ")
}

func replicaNames(s *meta.Snapshot, p *meta.Partition) string {
	names := make([]string, 0, len(p.State.Replicas))
	for _, n := range p.State.Replicas {
		names = append(names, nodeName(s, n))
	}
	return strings.Join(names, ", ")
}
