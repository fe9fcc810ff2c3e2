package client

import (
	"fmt"
	"testing"

	"github.com/google/uuid"

	"penstock/native/wire"
	"penstock/netproto"
)

// An older answer does not replace a newer one, topics that nobody uses are dropped, and a node without an address is
// the one that answered.
func TestViewLearns(t *testing.T) {
	v := newView(&Client{})
	from := &node{address: "here:1"}
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
		if err := v.learn(from, m.AppendTo(nil), false); err != nil {
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
	if v.learn(from, []byte{1}, false) == nil {
		t.Error("half a Metadata was taken")
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
