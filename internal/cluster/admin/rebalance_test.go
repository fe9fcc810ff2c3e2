package admin

import (
	"encoding/json"
	"strings"
	"testing"

	"penstock/internal/meta"
)

// Status and the plan show what moves and what is left.
func TestRebalanceIsShown(t *testing.T) {
	s := testSnapshot()
	ask3 := func() (st Status, p Plan) {
		h := Handler(&fakeStore{shown: s}, Self{Name: "n2"})
		for path, into := range map[string]any{"/cluster/status": &st, "/cluster/rebalance": &p} {
			if w := ask(h, "GET", path, ""); w.Code != 200 || json.Unmarshal(w.Body.Bytes(), into) != nil {
				t.Fatalf("%s: %d %s", path, w.Code, w.Body)
			}
		}
		return st, p
	}
	st, p := ask3()
	if r := st.Rebalance; r.State != RebalanceIdle || r.RemainingCount != 0 || len(p.Moves) != 0 {
		t.Errorf("at rest: %+v, %+v", r, p.Moves)
	}
	if len(p.Steps) == 0 || p.Steps[0].Topic != "orders" || p.Steps[0].To != "n4" { // it would be moved
		t.Errorf("the plan of an uneven cluster: %+v", p.Steps)
	}
	all := len(p.Steps)
	s.Rebalance = meta.Rebalance{Wanted: true, Gone: 3}
	s.Moves = map[meta.PartitionID]meta.Move{{Topic: ordersID, Partition: 1}: {From: 1, To: 4}}
	st, p = ask3()
	if r := st.Rebalance; r.State != RebalanceRunning || !r.Wanted || r.MoveCount != 1 || r.Gone != "n3" ||
		r.RemainingCount != len(p.Steps) || len(p.Steps) == all {
		t.Errorf("while it runs: %+v, %d steps", r, len(p.Steps))
	}
	want := Step{Topic: "orders", Partition: 1, From: "n1", To: "n4", Owner: OwnerOperator, State: "begins"}
	if len(p.Moves) != 1 || p.Moves[0] != want || st.Rebalance.WaitingCount != 0 {
		t.Errorf("under way: %+v, %+v", p.Moves, st.Rebalance)
	}
	s.Nodes[4].Live = false
	s.Moves = map[meta.PartitionID]meta.Move{{Topic: ordersID, Partition: 1}: {From: 1, To: 4, Drain: true}}
	st, p = ask3()
	want.Owner, want.State = OwnerController, "waits for node n4, which is dead: if that lasts, it is undone"
	if len(p.Moves) != 1 || p.Moves[0] != want || st.Rebalance.WaitingCount != 1 {
		t.Errorf("under way: %+v, %+v", p.Moves, st.Rebalance)
	}
	s.Nodes[4].Live = true
	s.Rebalance.Paused = true
	if st, _ = ask3(); st.Rebalance.State != RebalancePaused {
		t.Errorf("paused: %+v", st.Rebalance)
	}
	h := Handler(&fakeStore{shown: s}, Self{Name: "n2"})
	if w := ask(h, "POST", "/cluster/rebalance", `{"action":"dance"}`); w.Code != 400 ||
		!strings.Contains(sentence(t, w), "start, pause, resume or cancel") {
		t.Errorf("%d %s", w.Code, w.Body)
	}
	if w := ask(h, "PUT", "/cluster/rebalance", ``); w.Code != 405 {
		t.Errorf("%d %s", w.Code, w.Body)
	}
}
