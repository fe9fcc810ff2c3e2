package cluster

import (
	"encoding/json"
	"fmt"
	"slices"

	"github.com/google/uuid"

	"penstock/internal/meta"
	"penstock/replicate"
	"penstock/segment"
)

// The rows, encoded as JSON. Rows of nodes and topics are meta.Node and meta.Topic.

// processRow is the row of live/, down/ and the controller: a node and the boot of its process.
type processRow struct {
	Node replicate.NodeID `json:"node"`
	Boot uuid.UUID        `json:"boot"`
}

type memberRow struct {
	Node  replicate.NodeID `json:"node"`
	Store uuid.UUID        `json:"store"`
}

type partitionRow struct {
	Epoch     segment.Epoch      `json:"epoch"`
	Version   uint64             `json:"version"`
	Leader    replicate.NodeID   `json:"leader"`
	Boot      uuid.UUID          `json:"boot"`
	MinISR    int                `json:"min_isr"`
	Replicas  []replicate.NodeID `json:"replicas"`
	ISR       []memberRow        `json:"isr"`
	Short     []memberRow        `json:"short,omitempty"` // from feature level 4 on
	Forced    segment.Epoch      `json:"forced,omitempty"`
	Damaged   []memberRow        `json:"damaged,omitempty"`
	Contested []memberRow        `json:"contested,omitempty"` // also in Damaged
	Transfer  meta.Transfer      `json:"transfer,omitzero"`
	Leaders   []meta.Term        `json:"leaders,omitempty"` // see meta.Partition.Terms
	Restored  segment.Epoch      `json:"restored,omitempty"`
}

type moveRow struct {
	From   replicate.NodeID `json:"from"`
	To     replicate.NodeID `json:"to"`
	Drain  bool             `json:"drain,omitempty"`  // the controller began it, for a drain or a rebalance
	Cancel bool             `json:"cancel,omitempty"` // undo the move, unless To leads already
}

type deletedRow struct {
	Name string `json:"name"`
	AtNs int64  `json:"at_ns"`
}

type tombstoneRow struct {
	UntilNs int64 `json:"until_ns"`
}

// forcedRow records that an operator forced a leader that may lack committed messages.
type forcedRow struct {
	Epoch     segment.Epoch    `json:"epoch"` // the epoch that the forced leader began
	Node      replicate.NodeID `json:"node"`
	FormerISR []memberRow      `json:"former_isr"`
	AtNs      int64            `json:"at_ns"`
}

// encode encodes a row of this package. These rows can always be encoded.
func encode(row any) []byte {
	b, err := json.Marshal(row)
	if err != nil {
		panic("BUG: a row cannot be encoded: " + err.Error())
	}
	return b
}

func memberRows(members []replicate.Member) []memberRow {
	rows := make([]memberRow, 0, len(members))
	for _, m := range members {
		rows = append(rows, memberRow(m))
	}
	return rows
}

func members(rows []memberRow) []replicate.Member {
	var ms []replicate.Member
	for _, r := range rows {
		ms = append(ms, replicate.Member(r))
	}
	return ms
}

func encodePartition(p *meta.Partition) []byte {
	s := &p.State
	short := slices.DeleteFunc(slices.Clone(s.Short), func(m replicate.Member) bool { return !slices.Contains(s.ISR, m) })
	return encode(partitionRow{
		Epoch: s.Epoch, Version: s.Version, Leader: s.Leader, Boot: s.Boot, MinISR: s.MinISR,
		Replicas: s.Replicas, ISR: memberRows(s.ISR), Damaged: memberRows(p.Damaged), Transfer: p.Transfer,
		Leaders: p.Terms, Restored: s.Restored, Short: memberRows(short), Forced: s.Forced,
		Contested: memberRows(p.Contested),
	})
}

func decodePartition(id meta.PartitionID, value []byte) (*meta.Partition, error) {
	var r partitionRow
	if err := json.Unmarshal(value, &r); err != nil {
		return nil, err
	}
	if len(r.Replicas) > replicate.MaxReplicaCount || len(r.ISR) > replicate.MaxReplicaCount {
		return nil, fmt.Errorf("it has %d replicas", len(r.Replicas))
	}
	return &meta.Partition{
		ID: id,
		State: replicate.State{
			Epoch: r.Epoch, Version: r.Version, Leader: r.Leader, Boot: r.Boot, MinISR: r.MinISR,
			Replicas: r.Replicas, ISR: members(r.ISR), Restored: r.Restored,
			Short: members(r.Short), Forced: r.Forced,
		},
		Damaged: members(r.Damaged), Contested: members(r.Contested), Transfer: r.Transfer,
		Terms: r.Leaders[max(0, len(r.Leaders)-meta.MaxTermCount):],
	}, nil
}

// edit returns a copy of p with the next version, for the caller to change.
func edit(p *meta.Partition) *meta.Partition {
	c := *p
	c.State.Version++
	c.State.Replicas = slices.Clone(p.State.Replicas)
	c.State.ISR = slices.Clone(p.State.ISR)
	c.State.Short = slices.Clone(p.State.Short)
	c.Damaged, c.Contested = slices.Clone(p.Damaged), slices.Clone(p.Contested)
	c.Terms = slices.Clone(p.Terms)
	return &c
}

// lead makes n the leader in a copy made by edit: it begins a new epoch of that process, with which the order of a
// transfer ends.
func lead(p *meta.Partition, n *meta.Node) {
	if len(p.Terms) == 0 && p.State.Leader != 0 { // a row of a version that did not note the leaders
		noteTerm(p)
	}
	p.State.Epoch++
	p.State.Leader, p.State.Boot = n.ID, n.Boot
	p.Transfer = meta.Transfer{}
	noteTerm(p)
}

// noteTerm notes who leads p, and forgets the oldest term beyond meta.MaxTermCount.
func noteTerm(p *meta.Partition) {
	p.Terms = append(p.Terms, meta.Term{Epoch: p.State.Epoch, Node: p.State.Leader})
	p.Terms = p.Terms[max(0, len(p.Terms)-meta.MaxTermCount):]
}
