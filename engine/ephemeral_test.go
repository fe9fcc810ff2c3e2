package engine_test

import "testing"

// An ephemeral channel begins at the end when another node becomes the leader, although no channel is in the log.
func TestClusterEphemeralAtANewLeader(t *testing.T) {
	t.Parallel()
	tc := newTestCluster(t, 3)
	tc.create("t", 1)
	var others []*testNode
	for _, m := range tc.running() {
		if m != tc.leader("t", 0) {
			others = append(others, m)
		}
	}
	at, next := others[0], others[1]
	c := tc.subscribeAt(at, "t", "c#ephemeral", 10)
	publish(t, tc.topic(at, "t"), numbered("old", 4, 0)...)
	c.take(4)
	tc.awaitEqualCopies("t", 0)
	tc.moveLeadership("t", 0, next)
	publish(t, tc.topic(at, "t"), "new")
	if m := c.next(); string(m.body) != "new" {
		t.Errorf("the new leader begins with %q", m.body)
	}
	c.expectNothing("the rest is old")
}
