package admin

import (
	"context"
	"encoding/json"
	"errors"
	"sync/atomic"
	"testing"

	"penstock/replicate"
)

// Live nodes are asked for their faults only on request: a node that hangs must not delay every status.
func TestStatusAsksForFaults(t *testing.T) {
	var asked atomic.Int32
	faults := func(_ context.Context, node replicate.NodeID) ([]Fault, error) {
		asked.Add(1)
		switch node {
		case 1:
			return []Fault{{"disk_hangs", 2, "times"}}, nil
		case 4:
			return nil, errors.New("it hangs")
		}
		return nil, nil
	}
	h := Handler(&fakeStore{shown: testSnapshot()}, Self{Name: "n2", Faults: faults})
	if w := ask(h, "GET", "/cluster/status", ""); w.Code != 200 || asked.Load() != 0 {
		t.Fatalf("%d, %d nodes were asked", w.Code, asked.Load())
	}
	st := new(Status)
	if err := json.Unmarshal(ask(h, "GET", "/cluster/status?faults", "").Body.Bytes(), st); err != nil {
		t.Fatal(err)
	}
	live := 0
	for _, n := range st.Nodes {
		if n.Live {
			live++
		}
		if n.ID == 1 != (len(n.Faults) == 1) || n.ID == 4 != (n.NoFaults == "it hangs") {
			t.Errorf("node %s: %+v, %q", n.Name, n.Faults, n.NoFaults)
		}
	}
	if int(asked.Load()) != live {
		t.Errorf("%d of %d live nodes were asked", asked.Load(), live)
	}
}
