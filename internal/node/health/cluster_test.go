package health

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"

	"penstock/internal/meta"
	"penstock/replicate"
)

// O1: the youngest fact says whether a node is there.
func TestPresence(t *testing.T) {
	const fresh, old = time.Second, 20 * time.Second
	for _, tc := range []struct {
		row       bool // what the store's row says
		age       time.Duration
		connected bool
		gone      time.Duration // 0: it was not seen to end
		want      Presence
		since     time.Duration
	}{
		{true, fresh, true, 0, Live, fresh},
		{true, fresh, false, 0, Live, fresh},                             // not connected yet
		{false, fresh, true, 0, Dead, fresh},                             // it stands still, and its connection is open
		{false, fresh, false, 0, Dead, fresh},                            //
		{true, fresh, false, 3 * time.Second, Dead, 3 * fresh},           // the row is older than its end
		{true, old, false, 19 * time.Second, Dead, 19 * fresh},           //
		{true, old, true, 0, Live, 0},                                    // only the store is silent
		{true, old, false, 0, Unknown, old},                              // nothing younger is known
		{false, old, false, 0, Dead, old},                                //
		{false, old, true, 0, Live, 0},                                   // it came back while the store was silent
		{true, 2500 * time.Millisecond, false, 0, Live, 2500e6},          // exactly the lease
		{true, 2500e6 + 1, false, 0, Unknown, 2500*time.Millisecond + 1}, //
	} {
		v := View{
			Self: 1, StoreAge: tc.age, LeaseLength: 2500 * time.Millisecond,
			Connected: map[replicate.NodeID]bool{2: tc.connected}, Gone: map[replicate.NodeID]time.Duration{},
		}
		if tc.gone > 0 {
			v.Gone[2] = tc.gone
		}
		if p, since := v.Presence(&meta.Node{ID: 2, Live: tc.row}); p != tc.want || since != tc.since {
			t.Errorf("%+v: %s since %v", tc, p, since)
		}
	}
	heard := View{
		Self: 1, StoreAge: 450 * time.Millisecond, LeaseLength: 2500 * time.Millisecond,
		Heard: map[replicate.NodeID]time.Duration{2: old},
	}
	for _, connected := range []bool{false, true} { // it stands still, and its connection may still be open
		heard.Connected = map[replicate.NodeID]bool{2: connected}
		if p, since := heard.Presence(&meta.Node{ID: 2}); p != Dead || since != old {
			t.Errorf("a node that was heard of %v ago: %s since %v", old, p, since)
		}
	}
	heard.StoreAge = time.Minute
	heard.Connected = nil
	if p, since := heard.Presence(&meta.Node{ID: 2, Live: true}); p != Unknown || since != old {
		t.Errorf("a node that was heard of %v ago, while the store is silent: %s since %v", old, p, since)
	}
	v := View{Self: 1, StoreAge: old}
	if p, since := v.Presence(&meta.Node{ID: 1, Live: true}); p != NoLease || since != old {
		t.Errorf("this node without a lease, although its row says that it is alive: %s since %v", p, since)
	}
	if v.Leased = true; !v.IsLive(&meta.Node{ID: 1}) {
		t.Error("this node with a lease is not live")
	}
}

// threeNodes has a topic whose partitions 0, 1 and 2 are led by the nodes 1, 2 and 3, and the row of 3 is missing.
func threeNodes() *meta.Snapshot {
	s := &meta.Snapshot{
		Nodes: map[replicate.NodeID]*meta.Node{}, Topics: map[uuid.UUID]*meta.Topic{},
	}
	topic := &meta.Topic{ID: uuid.UUID{1}, Name: "t", Partitions: 4}
	s.Topics[topic.ID] = topic
	var isr []replicate.Member
	for id := replicate.NodeID(1); id <= 3; id++ {
		s.Nodes[id] = &meta.Node{ID: id, Name: fmt.Sprintf("n%d", id), Boot: uuid.UUID{byte(id)}, Live: true}
		isr = append(isr, replicate.Member{Node: id})
	}
	for n := range uint32(3) {
		p := &meta.Partition{ID: meta.PartitionID{Topic: topic.ID, Partition: n}}
		p.State = replicate.State{
			Leader: replicate.NodeID(n + 1), Boot: uuid.UUID{byte(n + 1)}, MinISR: 2, ISR: isr,
			Replicas: []replicate.NodeID{1, 2, 3},
		}
		s.Partitions = s.Partitions.With(p.ID, p)
	}
	return s
}

func TestLook(t *testing.T) {
	view := View{
		Self: 1, Leased: true, StoreAge: time.Second, LeaseLength: 2 * time.Second,
		Connected: map[replicate.NodeID]bool{2: true}, StoreNodes: []string{"n1", "n2", "n4", "n3"},
	}
	c := Look(threeNodes(), view)
	want := Partitions{Count: 4, Led: 1, Forwarded: 1, Leaderless: 1}
	if c.Partitions != want || c.NodeCount != 3 || c.Dead != nil || c.Unknown != nil {
		t.Errorf("all is well: %+v", c)
	}
	view.Gone = map[replicate.NodeID]time.Duration{3: time.Second}
	c = Look(threeNodes(), view)
	want = Partitions{Count: 4, Led: 1, Forwarded: 1, Leaderless: 2, UnderReplicated: 3}
	if c.Partitions != want || !slices.Equal(c.Dead, []string{"n3"}) {
		t.Errorf("node 3 has just ended, and the rows do not say so: %+v", c)
	}
	view.Gone[2], view.Connected = time.Second, nil
	view.Leased, view.StoreAge = false, 10*time.Second
	c = Look(threeNodes(), view)
	want = Partitions{Count: 4, Leaderless: 4, UnderReplicated: 3, BelowMinISR: 3}
	if c.Partitions != want || !slices.Equal(c.Dead, []string{"n2", "n3"}) {
		t.Errorf("two of three nodes have ended: %+v", c)
	}
	view.Gone = nil
	c = Look(threeNodes(), view)
	if !slices.Equal(c.Unknown, []string{"n2", "n3"}) || c.UnknownFor != 10*time.Second || c.Leaderless != 4 {
		t.Errorf("the store is silent, and nothing is known of two nodes: %+v", c)
	}
	if !slices.Equal(c.NotJoined, []string{"n4"}) {
		t.Errorf("nobody misses the node that shall run the store and has never joined: %+v", c)
	}
	s := threeNodes()
	s.Nodes[2].Boot = uuid.UUID{99}
	if c = Look(s, Trusting(1)); c.Leaderless != 2 {
		t.Errorf("a leader that was restarted leads nothing yet: %+v", c)
	}
}

// Any node knows which others have topics that the cluster does not know, also of a node that is dead. Of itself it
// knows more than its row says.
func TestLookAtUnknownTopics(t *testing.T) {
	s := threeNodes()
	if c := Look(s, Trusting(1)); len(c.WithUnknownTopics) != 0 {
		t.Errorf("nobody has such a topic: %v", c.WithUnknownTopics)
	}
	for id := range s.Nodes {
		s.Nodes[id].UnknownTopics = int(id)
	}
	s.Nodes[3].Live = false
	if c := Look(s, Trusting(1)); !slices.Equal(c.WithUnknownTopics, []string{"n2", "n3"}) {
		t.Errorf("node 1 knows of %v", c.WithUnknownTopics)
	}
}

// A contested copy is in the row's list of damaged ones, for older versions, and is not counted as one: an operator may
// wipe a damaged copy.
func TestLookAtCopies(t *testing.T) {
	s := threeNodes()
	row := func(n uint32) *meta.Partition {
		return s.Partitions.Get(meta.PartitionID{Topic: uuid.UUID{1}, Partition: n})
	}
	row(0).SetCopy(replicate.Member{Node: 2}, meta.CopyContested)
	row(1).SetCopy(replicate.Member{Node: 1}, meta.CopyContested)
	row(1).SetCopy(replicate.Member{Node: 3}, meta.CopyDamaged)
	row(2).State.Short = []replicate.Member{{Node: 2}, {Node: 9}}
	c := Look(s, Trusting(1))
	if c.Damaged != 1 || c.Contested != 2 || c.Short != 1 {
		t.Errorf("%+v", c.Partitions)
	}
	if c.FirstContested == nil || *c.FirstContested != (Copy{"t", 0, "n2", "n1"}) ||
		c.FirstShort == nil || *c.FirstShort != (Copy{"t", 2, "9", "n3"}) {
		t.Errorf("named are %+v and %+v", c.FirstContested, c.FirstShort)
	}
}
