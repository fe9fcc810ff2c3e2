package native

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/uuid"

	"penstock/internal/meta"
	"penstock/internal/node/errs"
	"penstock/internal/server/native/wire"
	"penstock/netproto"
	"penstock/replicate"
)

// Who may send what in which phase.
func TestDecide(t *testing.T) {
	const ok, full = netproto.StatusOK, netproto.StatusFull
	for _, x := range []struct {
		phase  phase
		typ    netproto.Type
		flags  netproto.Flags
		status netproto.Status
		want   ruling
		answer netproto.Status
	}{
		{unproven, wire.TypeAuth, 0, ok, serve, 0},
		{unproven, wire.TypeMetadata, 0, ok, refuse, netproto.StatusUnproven},
		{unproven, 200, 0, ok, refuse, netproto.StatusRejected},
		{unproven, wire.TypeAuthAck, 0, ok, end, 0},
		{known, wire.TypeAuth, 0, ok, serve, 0},
		{known, wire.TypeMetadata, 0, ok, serve, 0},
		{known, wire.TypeMetadata, 0, full, end, 0},
		{known, wire.TypeMetadata, netproto.FlagSelfChecked, ok, end, 0},
		{known, 200, 0, ok, refuse, netproto.StatusRejected},
		{known, wire.TypeGoAway, 0, ok, end, 0},
		{known, netproto.TypeError, 0, ok, end, 0},
		{known, netproto.TypeForwardPut, 0, ok, end, 0},
		{unproven, wire.TypeProduce, netproto.FlagSelfChecked, ok, refuse, netproto.StatusUnproven},
		{unproven, wire.TypeOpenProducer, 0, ok, refuse, netproto.StatusUnproven},
		{known, wire.TypeOpenProducer, 0, ok, serve, 0},
		{known, wire.TypeProduce, netproto.FlagSelfChecked, ok, serve, 0},
		{known, wire.TypeProduce, 0, ok, end, 0},
		{known, wire.TypeProduced, 0, ok, end, 0},
		{leaving, wire.TypeProduce, netproto.FlagSelfChecked, ok, refuse, netproto.StatusClosed},
		{unproven, wire.TypeRead, 0, ok, refuse, netproto.StatusUnproven},
		{unproven, wire.TypeReadCredit, 0, ok, end, 0},
		{unproven, wire.TypeReadEnd, 0, ok, end, 0},
		{known, wire.TypeRead, 0, ok, serve, 0},
		{known, wire.TypeReadCredit, 0, ok, serve, 0},
		{known, wire.TypeReadEnd, 0, ok, serve, 0},
		{known, wire.TypeRecords, 0, ok, end, 0},
		{leaving, wire.TypeRead, 0, ok, refuse, netproto.StatusClosed},
		{leaving, wire.TypeReadCredit, 0, ok, serve, 0},
		{leaving, wire.TypeMetadata, 0, ok, refuse, netproto.StatusClosed},
		{unproven, wire.TypeSubscribe, 0, ok, refuse, netproto.StatusUnproven},
		{unproven, wire.TypeFinish, 0, ok, end, 0},
		{unproven, wire.TypeSync, 0, ok, refuse, netproto.StatusUnproven},
		{known, wire.TypeSubscribe, 0, ok, serve, 0},
		{known, wire.TypeSync, 0, ok, serve, 0},
		{known, wire.TypeSubscribed, 0, ok, end, 0},
		{known, wire.TypeDeliver, 0, ok, end, 0},
		{known, wire.TypeRefused, 0, ok, end, 0},
		{known, wire.TypeSynced, 0, ok, end, 0},
		{known, wire.TypeDeliver, netproto.FlagSelfChecked, ok, end, 0},
		{known, wire.TypeFinish, netproto.FlagSelfChecked, ok, end, 0},
		{leaving, wire.TypeSubscribe, 0, ok, refuse, netproto.StatusClosed},
		{leaving, wire.TypeCredit, 0, ok, serve, 0},
		{leaving, wire.TypeFinish, 0, ok, serve, 0},
		{leaving, wire.TypeFinishThrough, 0, ok, serve, 0},
		{leaving, wire.TypeRequeue, 0, ok, serve, 0},
		{leaving, wire.TypeTouch, 0, ok, serve, 0},
		{leaving, wire.TypeSync, 0, ok, serve, 0},
		{leaving, wire.TypeSubscribeEnd, 0, ok, serve, 0},
		{leaving, wire.TypeAuth, 0, ok, refuse, netproto.StatusClosed},
	} {
		h := netproto.Header{Type: x.typ, Flags: x.flags, Status: x.status}
		if x.flags != 0 {
			h.HeadBytes = wire.ProduceBytes
		}
		d := decide(x.phase, &h)
		if d.ruling != x.want || d.status != x.answer || (d.text == "") != (x.want == serve) {
			t.Errorf("%v in phase %d with flags %v and status %v: %+v", x.typ, x.phase, x.flags, x.status, d)
		}
	}
}

// A request that is larger than a limit is served if nothing else is; a further one is not.
func TestLoad(t *testing.T) {
	most := limits{count: 2, bytes: 100}
	for _, x := range []struct {
		have load
		n    int
		says string // of the limit; "": none
	}{
		{load{}, 1, ""},
		{load{}, 1000, ""},
		{load{1, 50}, 50, ""},
		{load{1, 50}, 51, "is 101, and at most 100 is allowed: see the node's setting max-conn-in-flight-bytes"},
		{load{1, 1000}, 1, "is 1001, and at most 100 is allowed"},
		{load{2, 2}, 1, "is 3, and at most 2 is allowed, which no setting changes"},
	} {
		got := x.have.beyond(x.n, most)
		if (got == nil) != (x.says == "") || got != nil && !strings.Contains(got.Text(), x.says) {
			t.Errorf("%d more bytes beside %+v: %v, and not %q", x.n, x.have, got, x.says)
		}
	}
}

func TestStatusOf(t *testing.T) {
	for err, want := range map[error]netproto.Status{
		nil:                          netproto.StatusOK,
		errs.ErrNoLeader:             netproto.StatusNotLeader,
		errs.ErrQuota:                netproto.StatusFull,
		errs.ErrFenced:               netproto.StatusOldEpoch,
		errs.ErrSequence:             netproto.StatusGap,
		errs.ErrUnknownProducer:      netproto.StatusDiverged,
		errs.ErrNoQuorum:             netproto.StatusOverloaded,
		errs.ErrUnknown:              netproto.StatusUnknown,
		errs.ErrClosed:               netproto.StatusUnknown, // it may have been stored
		errs.ErrBatchTooBig:          netproto.StatusTooBig,
		errs.ErrTopicName:            netproto.StatusRejected,
		errors.New("something else"): netproto.StatusInternal,
	} {
		wrapped := err
		if err != nil {
			wrapped = fmt.Errorf("more: %w", err)
		}
		if got := statusOf(wrapped); got != want {
			t.Errorf("%v has the status %v, want %v", err, got, want)
		}
	}
}

// What a node of a cluster tells of leaders: those that clients can connect to, and that are the processes that were
// elected.
func TestPlaceInACluster(t *testing.T) {
	boots := []uuid.UUID{{}, {1}, {2}, {3}}
	id := uuid.UUID{9}
	row := func(n uint32, leader replicate.NodeID, boot uuid.UUID) *meta.Partition {
		return &meta.Partition{
			ID:    meta.PartitionID{Topic: id, Partition: n},
			State: replicate.State{Epoch: 7, Leader: leader, Boot: boot},
		}
	}
	orders := &meta.Topic{ID: id, Name: "orders", Partitions: 6}
	snap := &meta.Snapshot{
		Revision: 42, Names: map[string]*meta.Topic{"orders": orders},
		Nodes: map[replicate.NodeID]*meta.Node{
			1: {ID: 1, Name: "a", Boot: boots[1]}, // this one; it announces no address
			2: {ID: 2, Name: "b", Boot: boots[2], Native: "b:4250"},
			3: {ID: 3, Name: "c", Boot: boots[3]},
		},
		Partitions: partitionsOf(row(0, 2, boots[2]), row(1, 1, boots[1]), row(2, 2, uuid.UUID{8}), row(3, 3, boots[3]),
			row(4, 0, uuid.UUID{})),
	}
	p := place{snap: snap, self: *snap.Nodes[1]}
	m := p.describe([]string{"orders", "none", "secret"}, func(name string) netproto.Status {
		if name == "secret" {
			return netproto.StatusUnproven
		}
		return netproto.StatusOK
	})
	none := wire.NoLeader
	want := []uint16{0, 1, uint16(none), uint16(none), uint16(none), uint16(none)}
	if m.Revision != 42 || len(m.Nodes) != 2 || m.Nodes[0] != (wire.Node{Name: "b", Address: "b:4250"}) ||
		m.Nodes[1] != (wire.Node{Name: "a"}) || len(m.Topics) != 3 || len(m.Topics[0].Partitions) != 6 {
		t.Fatalf("%+v", m)
	}
	for i, pt := range m.Topics[0].Partitions {
		if pt.Leader != want[i] || i < 5 && pt.Epoch != 7 {
			t.Errorf("partition %d: %+v, want the leader %d", i, pt, want[i])
		}
	}
	if a, b := m.Topics[1].Status, m.Topics[2].Status; a != netproto.StatusRejected || b != netproto.StatusUnproven {
		t.Errorf("no topic: %v; no permission: %v", a, b)
	}
}

// Where clients go when this node stops: to who leads the most of their topics, and to different nodes if several do.
func TestRefuge(t *testing.T) {
	boot, orders, logs := uuid.UUID{1}, uuid.UUID{9}, uuid.UUID{8}
	row := func(topic uuid.UUID, n uint32, leader replicate.NodeID) *meta.Partition {
		return &meta.Partition{
			ID: meta.PartitionID{Topic: topic, Partition: n}, State: replicate.State{Leader: leader, Boot: boot},
		}
	}
	node := func(id replicate.NodeID, address string, live, draining bool) *meta.Node {
		return &meta.Node{ID: id, Boot: boot, Native: address, Live: live, Draining: draining}
	}
	snap := &meta.Snapshot{
		Names: map[string]*meta.Topic{
			"orders": {ID: orders, Name: "orders", Partitions: 4}, "logs": {ID: logs, Name: "logs", Partitions: 3},
		},
		Nodes: map[replicate.NodeID]*meta.Node{
			1: node(1, "a", true, false), 2: node(2, "b", true, false), 3: node(3, "c", true, false),
			4: node(4, "d", true, true), 5: node(5, "e", false, false), 6: node(6, "", true, false),
		},
		Partitions: partitionsOf(row(orders, 0, 1), row(orders, 1, 1), row(orders, 2, 3), row(orders, 3, 2),
			row(logs, 0, 3), row(logs, 1, 4), row(logs, 2, 4)),
	}
	for _, x := range []struct {
		self   replicate.NodeID
		topics []string
		turn   int
		want   string
	}{
		{1, []string{"orders", "logs"}, 0, "c"},
		{1, []string{"orders", "logs"}, 1, "c"},
		{1, []string{"orders"}, 0, "b"},
		{1, []string{"orders"}, 3, "c"},
		{1, []string{"none"}, 0, "b"},
		{3, []string{"orders", "logs"}, 7, "a"},
		{2, nil, 1, "c"},
	} {
		p := place{snap: snap, self: *snap.Nodes[x.self]}
		if got := p.refuge(x.topics, x.turn); got != x.want {
			t.Errorf("from node %d, with topics %v and turn %d: to %q, want %q", x.self, x.topics, x.turn, got, x.want)
		}
	}
	alone := place{snap: &meta.Snapshot{Nodes: map[replicate.NodeID]*meta.Node{1: snap.Nodes[1]}}, self: *snap.Nodes[1]}
	single := place{}
	if a, b := alone.refuge(nil, 0), single.refuge([]string{"orders"}, 0); a != "" || b != "" {
		t.Errorf("a node without others sends clients to %q and %q", a, b)
	}
}

// A client is told what differs from what it knows, and the answer to what it asks; the revision never falls.
func TestTold(t *testing.T) {
	var x told
	with := func(revision uint64, topic string) *wire.Metadata {
		return &wire.Metadata{Revision: revision, Topics: []wire.Topic{{Name: topic}}}
	}
	for i, step := range []struct {
		m        *wire.Metadata
		asked    bool
		revision uint64 // 0: nothing is told
	}{
		{with(5, "a"), true, 5},
		{with(6, "a"), false, 0},
		{with(6, "b"), false, 6},
		{with(4, "a"), false, 6},
		{with(7, "a"), true, 7},
	} {
		payload := x.next(step.m, step.asked)
		var got wire.Metadata
		if payload != nil {
			if err := wire.Decode(payload, &got); err != nil {
				t.Fatal(err)
			}
		}
		if got.Revision != step.revision || payload != nil && got.Topics[0].Name != step.m.Topics[0].Name {
			t.Errorf("step %d: %+v", i, got)
		}
	}
}

// partitionsOf returns the table of these rows.
func partitionsOf(rows ...*meta.Partition) (all meta.Partitions) {
	for _, p := range rows {
		all = all.With(p.ID, p)
	}
	return all
}
