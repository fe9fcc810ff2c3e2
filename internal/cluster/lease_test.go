package cluster

import (
	"errors"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"penstock/internal/meta"
)

// An outage of the store costs the log one line a minute, not one for each attempt, and one line when it is over.
func TestLeaseNews(t *testing.T) {
	var logs syncBuffer
	log := slog.New(slog.NewTextHandler(&logs, nil))
	var n leaseNews
	now := time.Unix(1_000_000, 0)
	n.extended(log, now)
	if logs.contains("lease") != 0 {
		t.Errorf("told without a failure: %s", logs.b.String())
	}
	for range 1001 { // 10 minutes
		n.failed(log, now, errors.New("no answer"))
		now = now.Add(600 * time.Millisecond)
	}
	if got := logs.contains("could not be extended"); got != 11 {
		t.Errorf("%d lines about 10 minutes", got)
	}
	if logs.contains("attempts=1 ") != 1 || logs.contains("attempts=1001 for=10m0s") != 1 {
		t.Errorf("the lines do not count: %s", logs.b.String())
	}
	n.failed(log, now.Add(-time.Hour), errors.New("no answer"))
	if got := logs.contains("could not be extended"); got != 12 {
		t.Errorf("a clock that is set back silences the log: %d lines", got)
	}
	n.extended(log, now)
	n.extended(log, now)
	if got := logs.contains("the lease is extended again"); got != 1 {
		t.Errorf("%d lines say that it is over", got)
	}
	n.failed(log, now, errors.New("no answer"))
	if got := logs.contains("could not be extended"); got != 13 {
		t.Errorf("a second outage is not told: %d lines", got)
	}
}

// A store that a node cannot reach is told once, and so is that the node reaches it again.
func TestLeaseIsToldOnce(t *testing.T) { synctest.Test(t, testLeaseIsToldOnce) }

func testLeaseIsToldOnce(t *testing.T) {
	w := newWorldWith(t, 2, quickLeases)
	n := w.nodes[1]
	w.m.Cut("n2")
	told := func(text string) {
		t.Helper()
		for end := time.Now().Add(20 * time.Second); n.logs.contains(text) == 0; time.Sleep(time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("the log does not say %q", text)
			}
		}
	}
	told("could not be extended")
	w.until(w.nodes[0], "the end of n2's lease", func(s *meta.Snapshot) bool {
		return !s.Nodes[n.node.ID].Live
	})
	w.m.Heal("n2")
	told("the lease is extended again")
	if got := n.logs.contains("could not be extended"); got != 1 {
		t.Errorf("%d lines about one short outage", got)
	}
}
