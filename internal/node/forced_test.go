package node_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"

	"penstock/internal/meta"
	"penstock/internal/node"
	"penstock/internal/node/errs"
)

// An operator chooses a leader that lacks what the others have committed. They do not refuse for ever: each gives its
// copy up, keeps what only it had aside, and follows. Until then what it committed is known after a restart, too.
func TestClusterForcedLeaderOverrules(t *testing.T) {
	t.Parallel()
	tc, h, _ := newLoggedCluster(t)
	x := tc.others(tc.leader("t", 0))[0]
	tc.kill(x)
	tc.eventually("the others go on", func() bool {
		return h.publish(context.Background(), tc.topic(tc.leader("t", 0), "t"), "go on") == nil
	})
	var late []string
	for i := 0; len(late) < 10; i++ {
		body := fmt.Sprint("late", i)
		switch err := h.publish(context.Background(), tc.topic(tc.leader("t", 0), "t"), body); {
		case err == nil:
			late = append(late, body)
		case !errors.Is(err, errs.ErrUnknown) || i > 50:
			t.Fatal(err)
		}
	}
	others := tc.others(x)
	for _, m := range others {
		tc.kill(m)
	}
	tc.start(x)
	id := meta.PartitionID{Topic: tc.topic(x, "t").ID()}
	if err := x.store.ForceLeader(t.Context(), id, x.e.Node().ID); err != nil {
		t.Fatal(err)
	}
	tc.eventually("the chosen copy leads", func() bool { return node.Leads(x.e, "t", 0) })
	tc.start(others[0])
	c, err := node.StateOf(others[0].e, "t", 0)
	if err != nil || c.Committed+2 < c.Next {
		t.Errorf("after a restart it knows %d of %d batches to be committed: %v", c.Committed, c.Next, err)
	}
	tc.start(others[1])
	tc.awaitInSync("t")
	for _, m := range others {
		var kept []string
		for _, e := range m.asides(t) {
			kept = append(kept, asideBodies(t, m.disk, &e)...)
		}
		for _, body := range late {
			if !slices.Contains(kept, body) {
				t.Errorf("%s does not keep %q aside; it keeps %q", m.name, body, kept)
			}
		}
	}
	tc.publishPart(newAckLog(), "b")
}
