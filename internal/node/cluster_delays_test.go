package node_test

import (
	"errors"
	"testing"
	"time"

	"penstock/internal/meta"
	"penstock/internal/node"
	"penstock/internal/node/errs"
)

// Delays and retention agree through every node: the leader refuses a forwarded delay that the topic's retention would
// not outlast, and a retention that is set through another node asks the leaders what waits.
func TestClusterDelaysAndRetention(t *testing.T) {
	t.Parallel()
	tc := newTestCluster(t, 3)
	tc.create("t", 3)
	tc.channel("t", "c")
	for _, m := range tc.running() {
		for range 3 { // each partition gets one
			if _, err := tc.topic(m, "t").PublishMessage(ctxBg, node.Outgoing{
				Body: []byte("later"), Delay: 30 * time.Minute,
			}); err != nil {
				t.Fatal(err)
			}
		}
	}
	other := tc.topic(tc.others(tc.leader("t", 0))[0], "t")
	s := other.Settings()
	s.RetentionAgeMs = (20 * time.Minute).Milliseconds()
	if _, err := other.ConfigureAs(ctxBg, "", s); !errors.Is(err, meta.ErrSettings) {
		t.Errorf("a retention that removes delayed messages: %v", err)
	}
	s.RetentionAgeMs = (40 * time.Minute).Milliseconds()
	if _, err := other.ConfigureAs(ctxBg, "", s); err != nil {
		t.Fatal(err)
	}
	for _, m := range tc.running() {
		tc.eventually("the settings are known", func() bool {
			return tc.topic(m, "t").Settings().RetentionAgeMs == s.RetentionAgeMs
		})
	}
	for range 3 {
		if _, err := other.PublishMessage(ctxBg, node.Outgoing{
			Body: []byte("later"), Delay: 50 * time.Minute,
		}); !errors.Is(err, errs.ErrDeferTooLong) {
			t.Errorf("a delay beyond the retention: %v", err)
		}
	}
}
