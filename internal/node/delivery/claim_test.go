package delivery_test

import (
	"slices"
	"testing"

	"penstock/batch"
	"penstock/internal/node/delivery"
)

func TestClaim(t *testing.T) {
	const later = delivery.ClaimNs - 1
	var c delivery.Claim
	for i, s := range []struct {
		by    string
		now   int64
		give  bool
		taken bool
	}{
		{by: "a", taken: true},
		{by: "b", now: later},
		{by: "a", now: later, taken: true},
		{by: "b", now: later + 1},
		{by: "b", now: later, give: true},
		{by: "b", now: later + 1},
		{by: "b", now: later + delivery.ClaimNs, taken: true},
		{by: "a", now: later + delivery.ClaimNs},
		{by: "b", give: true},
		{by: "a", now: later + delivery.ClaimNs, taken: true},
	} {
		if s.give {
			c.Give(s.by)
		} else if got := c.Take(s.by, s.now); got != s.taken {
			t.Errorf("step %d: %s takes it: %v", i, s.by, got)
		}
	}
}

func TestGoOnAfter(t *testing.T) {
	var next []batch.ID
	for _, id := range []batch.ID{batch.MakeID(1, 7), batch.MakeID(1, 3), batch.MakeID(3, 0), batch.MakeID(0, 5)} {
		next = delivery.GoOnAfter(next, id)
	}
	want := []batch.ID{batch.MakeID(0, 6), batch.MakeID(1, 8), 0, batch.MakeID(3, 1)}
	if !slices.Equal(next, want) {
		t.Errorf("%v, want %v", next, want)
	}
}
