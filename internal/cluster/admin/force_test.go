package admin

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"

	"penstock/internal/meta"
	"penstock/replicate"
)

// lossOf tells what is known from what is not: committed batches that are lost, batches of which nobody knows, and the
// copies that nobody can ask.
func TestLossOf(t *testing.T) {
	one := func(node string, end, committed, messages int64, epoch uint64, states ...string) Copy {
		return Copy{
			Node: node, End: end, Committed: committed, Messages: messages, Epoch: epoch, States: states,
			Leads: slices.Contains(states, "leads"),
		}
	}
	away := Copy{Node: "n3", Away: "its node is not alive"}
	for name, tc := range map[string]struct {
		copies []Copy
		want   string
	}{
		"nobody was asked": {nil, "what other copies have is not known, because no node was asked"},
		"the chosen one is mum": {
			[]Copy{{Node: "n2", Away: "x"}, one("n1", 9, 9, 9, 1)}, "node n2 does not say where its copy",
		},
		"all are equal":        {[]Copy{one("n1", 9, 9, 9, 1), one("n2", 9, 8, 9, 1)}, "no copy that can be asked has more"},
		"the others have less": {[]Copy{one("n1", 5, 5, 5, 1), one("n2", 9, 8, 9, 1)}, "no copy that can be asked has more"},
		"committed ones are lost": {
			[]Copy{one("n1", 12, 11, 40, 1), one("n2", 9, 8, 30, 1), away},
			"it lacks 2 batches that node n1 knows to be committed (positions 9 to 10); what those copies lose is kept aside " +
				"on their nodes; what only n3 may have is not known, and is cut when they come back",
		},
		"nobody knows whether they are committed": {
			[]Copy{one("n1", 12, 9, 40, 1), one("n2", 9, 8, 30, 1)},
			"node n1 has 3 batches more (10 messages), of which it is not known whether they were answered OK; what those",
		},
		"a newer epoch": {
			[]Copy{one("n1", 9, 9, 9, 2), one("n2", 9, 8, 9, 1)}, "node n1's log ends in a newer epoch (2, not 1) and may have",
		},
		"it is contested, and its leader has committed less than its end": {
			[]Copy{one("n1", 7, 7, 9, 2, "leads"), one("n2", 9, 8, 9, 1, "contested")},
			"node n1 has messages that it lacks and that were probably answered OK: one of the two is contested; what those",
		},
		"the other one is contested": {
			[]Copy{one("n1", 7, 7, 9, 2, "contested"), one("n2", 9, 8, 9, 1, "leads")}, "node n1 has messages that it lacks and",
		},
	} {
		if got := lossOf("n2", tc.copies); !strings.HasPrefix(got, tc.want) {
			t.Errorf("%s: %s", name, got)
		}
	}
}

// describes is Self.Copy of nodes whose copies end where it says; a node without an entry does not answer.
func describes(
	copies map[replicate.NodeID]Copy,
) func(context.Context, meta.PartitionID, replicate.NodeID) (*Copy, error) {
	return func(_ context.Context, _ meta.PartitionID, n replicate.NodeID) (*Copy, error) {
		if c, ok := copies[n]; ok {
			return &c, nil
		}
		return nil, errors.New("it does not answer")
	}
}

func force(t *testing.T, store *fakeStore, copies map[replicate.NodeID]Copy, body string) (code int, done Done) {
	t.Helper()
	w := ask(Handler(store, Self{Name: "n2", Copy: describes(copies)}), "POST", "/cluster/force-leader", body)
	if err := json.Unmarshal(w.Body.Bytes(), &done); err != nil {
		t.Fatal(err)
	}
	return w.Code, done
}

// A dry run says what would be lost, and asks the store for nothing.
func TestForceDryRun(t *testing.T) {
	store := &fakeStore{shown: testSnapshot()}
	copies := map[replicate.NodeID]Copy{
		1: {End: 9, Committed: 9, Messages: 20}, 2: {End: 12, Committed: 11, Shortened: true},
	}
	code, done := force(t, store, copies, `{"topic":"orders","partition":3,"node":"n1","dry_run":true}`)
	if code != 200 || len(store.calls) != 0 || !strings.HasPrefix(done.Message,
		"if node n1 is forced to lead partition 3 of topic orders: it lacks 2 batches that node n2 knows to be committed") ||
		!strings.HasSuffix(done.Message,
			"what only n3 may have is not known, and is cut when they come back; nothing was changed") {
		t.Errorf("%d %+v, %q", code, done, store.calls)
	}
	if len(done.Copies) != 3 || done.Copies[0].Node != "n1" || done.Copies[2].Away == "" ||
		!slices.Equal(done.Copies[1].States, []string{"damaged", "shortened"}) {
		t.Errorf("%+v", done.Copies)
	}
	code, done = force(t, store, copies, `{"topic":"orders","partition":3,"node":"n1","i_accept_data_loss":true}`)
	if code != 200 || len(store.calls) != 1 || !strings.Contains(done.Message, "are lost: it lacks 2 batches") {
		t.Errorf("%d %+v, %q", code, done, store.calls)
	}
}

// A contested copy may be chosen although the leader lives: that is what its message tells the operator to do. So may
// any other if the leader may lack something.
func TestForceContested(t *testing.T) {
	const body = `{"topic":"orders","partition":0,"node":"n2","i_accept_data_loss":true}`
	store := &fakeStore{shown: testSnapshot()}
	p := store.shown.Partitions.Get(meta.PartitionID{Topic: ordersID})
	p.SetCopy(replicate.Member{Node: 2, Store: testUUID('s', 2)}, meta.CopyContested)
	if code, done := force(t, store, nil, body); code != 200 || len(store.calls) != 1 {
		t.Errorf("the row says that it is contested: %d %+v, %q", code, done, store.calls)
	}
	for shortened, want := range map[bool]int{true: 200, false: 409} {
		store = &fakeStore{shown: testSnapshot()}
		copies := map[replicate.NodeID]Copy{1: {End: 9, Leads: true, Shortened: shortened}, 2: {End: 12}}
		if code, done := force(t, store, copies, body); code != want || len(store.calls) == 1 != (want == 200) {
			t.Errorf("the leader says that it may lack something: %v: %d %+v, %q", shortened, code, done, store.calls)
		}
	}
}

// What is called damaged is what an operator may wipe: a contested copy is in a list of its own.
func TestCopiesInLists(t *testing.T) {
	s := testSnapshot()
	m := func(n replicate.NodeID) replicate.Member {
		return replicate.Member{Node: n, Store: testUUID('s', byte(n))}
	}
	p := s.Partitions.Get(meta.PartitionID{Topic: ordersID})
	p.SetCopy(m(2), meta.CopyContested)
	p.SetCopy(m(3), meta.CopyDamaged)
	p.State.Short = []replicate.Member{m(1)}
	row := partitionOf(s, allTrusting(), p.ID)
	if !slices.Equal(row.Damaged, []string{"n3"}) || !slices.Equal(row.Contested, []string{"n2"}) ||
		!slices.Equal(row.Short, []string{"n1"}) {
		t.Errorf("%+v", row)
	}
	st := shown(s, "n2")
	if st.Damaged != 2 || st.Contested != 1 || st.Short != 1 {
		t.Errorf("%+v", st)
	}
	for i, want := range []struct{ damaged, contested, short int }{{0, 0, 1}, {1, 1, 0}, {1, 0, 0}} {
		if n := st.Nodes[i]; n.Damaged != want.damaged || n.Contested != want.contested || n.Short != want.short {
			t.Errorf("%+v, want %+v", n, want)
		}
	}
}
