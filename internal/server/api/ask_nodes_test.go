package api

import (
	"testing"
	"time"

	"penstock/internal/meta"
	"penstock/internal/node/health"
	"penstock/replicate"
)

// A node that is known to be dead now is named without an age, for as long as it is dead.
func TestAbsence(t *testing.T) {
	const lease = 2500 * time.Millisecond
	for _, tc := range []struct {
		row   bool          // what the store says
		age   time.Duration // since the store has answered
		ended time.Duration // since the node's process was seen to end; 0: it was not
		want  string
	}{
		{true, time.Second, 0, ""},
		{false, time.Second, 0, "it is dead"},
		{false, lease, 0, "it is dead"},
		{true, time.Second, time.Second, "it is dead"},
		{true, time.Second, time.Hour, "it is dead"},
		{true, time.Hour, time.Hour, "it is dead"},
		{false, 20 * time.Second, 0, "it is dead, as was known 20s ago"},
		{true, 20 * time.Second, 0, "it is not known whether it is alive: the metadata store has not answered for 20s"},
	} {
		v := health.View{Self: 1, Leased: true, StoreAge: tc.age, LeaseLength: lease}
		if tc.ended > 0 {
			v.Gone = map[replicate.NodeID]time.Duration{2: tc.ended}
		}
		if got := absence(&v, &meta.Node{ID: 2, Live: tc.row}, false); got != tc.want {
			t.Errorf("%+v: %q", tc, got)
		}
	}
}
