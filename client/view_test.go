package client

import (
	"fmt"
	"slices"
	"testing"

	"github.com/google/uuid"

	"penstock/internal/server/native/wire"
	"penstock/netproto"
)

// An older answer does not replace a newer one, topics that nobody uses are dropped, and a node without an address is
// the one that answered.
func TestViewLearns(t *testing.T) {
	v := newView(&Client{})
	from := &link{node: &node{address: "here:1"}}
	id := uuid.New()
	say := func(revision uint64, leaders ...uint16) {
		m := wire.Metadata{Revision: revision, Nodes: []wire.Node{{Name: "a"}, {Name: "b", Address: "there:2"}}}
		for _, name := range []string{"orders", "unused"} {
			t := wire.Topic{Name: name, ID: id}
			for _, l := range leaders {
				t.Partitions = append(t.Partitions, wire.Partition{Leader: l})
			}
			m.Topics = append(m.Topics, t)
		}
		if err := v.learn(from, wire.Append(nil, &m), question{}); err != nil {
			t.Fatal(err)
		}
	}
	if err := v.want("orders", true); err != nil {
		t.Fatal(err)
	}
	if _, missing := v.wishes(); len(missing) != 1 {
		t.Errorf("to be created: %v", missing)
	}
	before := v.known.Load()
	say(7, 0, 1, wire.NoLeader)
	select {
	case <-before.changed:
	default:
		t.Error("those who wait are not woken")
	}
	say(6, 1)
	known := v.known.Load()
	at := known.topics["orders"]
	if len(known.topics) != 1 || len(at.leaders) != 3 || at.leaders[0] != "here:1" || at.leaders[1] != "there:2" ||
		at.leaders[2] != "" {
		t.Errorf("known: %+v", at)
	}
	if _, missing := v.wishes(); len(missing) != 0 {
		t.Errorf("to be created, although it exists: %v", missing)
	}
	v.unwant("orders", true)
	if all, _ := v.wishes(); len(all)+len(v.known.Load().topics) != 0 {
		t.Errorf("wanted: %v", all)
	}
	if v.learn(from, []byte{1}, question{}) == nil {
		t.Error("half a Metadata was taken")
	}
}

// A single node numbers its metadata anew in each process, and it may become part of a cluster, which numbers its own.
// What is older can only be told within one of these.
func TestViewLearnsOfAnotherEra(t *testing.T) {
	v := newView(&Client{})
	if err := v.want("orders", false); err != nil {
		t.Fatal(err)
	}
	alone, cluster := netproto.ID{1}, netproto.ID{2}
	for i, x := range []struct {
		peer     netproto.Hello
		revision uint64
		taken    bool
	}{
		{netproto.Hello{Cluster: alone, Store: alone, Boot: netproto.ID{10}}, 1_700_000_000_000_000_002, true},
		{netproto.Hello{Cluster: alone, Store: alone, Boot: netproto.ID{10}}, 1_700_000_000_000_000_001, false},
		{netproto.Hello{Cluster: alone, Store: alone, Boot: netproto.ID{11}}, 1_600_000_000_000_000_000, true},
		{netproto.Hello{Cluster: cluster, Store: alone, Boot: netproto.ID{12}}, 20, true},
		{netproto.Hello{Cluster: cluster, Store: netproto.ID{3}, Boot: netproto.ID{13}}, 19, false},
		{netproto.Hello{Cluster: cluster, Store: alone, Boot: netproto.ID{14}}, 21, true},
	} {
		id := uuid.New()
		m := wire.Metadata{Revision: x.revision, Topics: []wire.Topic{{Name: "orders", ID: id}}}
		if err := v.learn(&link{node: new(node), era: eraOf(&x.peer)}, wire.Append(nil, &m), question{}); err != nil {
			t.Fatal(err)
		}
		if taken := v.known.Load().topics["orders"].id == id; taken != x.taken {
			t.Errorf("step %d: it was taken: %t", i, taken)
		}
	}
}

// A node says where to go, and only nodes that the client knows are gone to: for leaders until newer metadata comes,
// and for the next question once.
func TestViewIsSentElsewhere(t *testing.T) {
	v := newView(&Client{seeds: []string{"seed:1"}})
	if err := v.want("orders", false); err != nil {
		t.Fatal(err)
	}
	answer := func(revision uint64, leader uint16, to question) {
		m := wire.Metadata{
			Revision: revision, Nodes: []wire.Node{{Address: "a:1"}, {Address: "b:1"}},
			Topics: []wire.Topic{{Name: "orders", Partitions: []wire.Partition{{Leader: leader}, {Leader: 1}}}},
		}
		if err := v.learn(&link{node: new(node)}, wire.Append(nil, &m), to); err != nil {
			t.Fatal(err)
		}
	}
	say := func(revision uint64, leader uint16) { answer(revision, leader, question{}) }
	leaders := func(want ...string) {
		t.Helper()
		if got := v.known.Load().topics["orders"].leaders; !slices.Equal(got, want) {
			t.Fatalf("the leaders are %q, want %q", got, want)
		}
	}
	say(5, 0)
	for _, x := range []struct {
		partition int
		from, to  string
		want      string // the leader of partition 0
	}{
		{0, "a:1", "evil:1", "a:1"},
		{0, "a:1", "", "a:1"},
		{0, "b:1", "seed:1", "a:1"}, // it is not the one that was believed to lead
		{7, "a:1", "b:1", "a:1"},
		{0, "a:1", "b:1", "b:1"},
		{0, "b:1", "seed:1", "seed:1"},
	} {
		v.stale.Store(false)
		v.redirect("orders", x.partition, x.from, x.to)
		if leaders(x.want, "b:1"); !v.stale.Load() {
			t.Errorf("%s says that %s leads, and nobody is asked", x.from, x.to)
		}
	}
	v.redirect("none", 0, "a:1", "b:1")
	say(4, 0)
	say(5, 0)
	answer(5, 0, question{redirects: v.redirects - 1}) // it was asked before
	leaders("seed:1", "b:1")
	answer(5, 0, question{redirects: v.redirects})
	leaders("a:1", "b:1")
	v.redirect("orders", 0, "a:1", "b:1")
	say(6, 0)
	leaders("a:1", "b:1")

	for _, x := range []struct {
		hints []string
		want  []string // who is asked, on turns 0 and 1
	}{
		{nil, []string{"seed:1", "a:1"}},
		{[]string{"b:1"}, []string{"b:1", "a:1"}},
		{[]string{"evil:1", ""}, []string{"seed:1", "a:1"}},
		{[]string{"b:1", "evil:1"}, []string{"b:1", "a:1"}},
	} {
		for _, h := range x.hints {
			v.hint(h)
		}
		if a, b := v.next(0), v.next(1); a != x.want[0] || b != x.want[1] {
			t.Errorf("with the hints %q %s and %s are asked, want %q", x.hints, a, b, x.want)
		}
	}
}

// A client hears of a bounded number of topics.
func TestTopicsAreBounded(t *testing.T) {
	v := newView(&Client{})
	for i := range wire.MaxTopicCount {
		if err := v.want(fmt.Sprint(i), false); err != nil {
			t.Fatal(err)
		}
	}
	if v.want("one more", false) == nil {
		t.Error("one more was taken")
	}
	if err := v.want("7", true); err != nil {
		t.Error(err)
	}
}

// Every status has one meaning, and an unknown one leaves the outcome open.
func TestMeaning(t *testing.T) {
	want := map[verdict][]netproto.Status{
		verdictStored:  {netproto.StatusOK},
		verdictAgain:   {netproto.StatusNotLeader, netproto.StatusFull, netproto.StatusClosed, netproto.StatusOverloaded},
		verdictPerhaps: {netproto.StatusUnknown, netproto.StatusInternal, 999},
		verdictGap:     {netproto.StatusGap},
		verdictForgot:  {netproto.StatusDiverged},
		verdictFenced:  {netproto.StatusOldEpoch},
		verdictRefused: {netproto.StatusRejected, netproto.StatusTooBig, netproto.StatusUnproven},
	}
	for v, all := range want {
		for _, s := range all {
			if meaning(s) != v {
				t.Errorf("%v means %d", s, meaning(s))
			}
		}
	}
}
