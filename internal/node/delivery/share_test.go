package delivery

import (
	"math/rand/v2"
	"testing"

	"penstock/internal/node/fold"
)

// A limit on the messages in flight is divided among the partitions, and each leader has what its partitions have.
func TestInFlightShare(t *testing.T) {
	for _, c := range []struct {
		limit, all int
		leads      []uint32
		want       int
	}{
		{limit: 0, all: 3, leads: []uint32{0}, want: 0}, // no limit
		{limit: 7, all: 0, leads: []uint32{0}, want: 7}, // nobody has told the number of partitions yet
		{limit: 1, all: 1, leads: []uint32{0}, want: 1},
		{limit: 1, all: 3, leads: []uint32{0, 1, 2}, want: 1}, // one node leads all: a single node
		{limit: 3, all: 3, leads: []uint32{1}, want: 1},
		{limit: 5, all: 3, leads: []uint32{0}, want: 2},
		{limit: 5, all: 3, leads: []uint32{1}, want: 2},
		{limit: 5, all: 3, leads: []uint32{2}, want: 1},
		{limit: 5, all: 3, leads: []uint32{0, 2}, want: 3},
		{limit: 1 << 31, all: 4096, leads: []uint32{4095}, want: 1 << 19},
		// Fewer than partitions: whoever has a share keeps it, and whoever has none takes one at a time.
		{limit: 2, all: 4, leads: []uint32{0, 1}, want: 2},
		{limit: 2, all: 4, leads: []uint32{1, 3}, want: 1},
		{limit: 2, all: 4, leads: []uint32{2, 3}, want: 1},
	} {
		if got := inFlightShare(c.limit, c.all, partsNumbered(c.leads...)); got != c.want {
			t.Errorf("limit %d, %d partitions, leads %v: %d, want %d", c.limit, c.all, c.leads, got, c.want)
		}
	}
}

// However the partitions are led, the leaders together have exactly the limit, unless it is below the number of
// partitions: then one for each leader without a share at most is added.
func TestInFlightSharesAreTheLimit(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for range 5000 {
		all, limit := 1+rng.IntN(20), 1+rng.IntN(60)
		leads := make([][]uint32, 1+rng.IntN(5))
		for p := range all {
			l := rng.IntN(len(leads))
			leads[l] = append(leads[l], uint32(p))
		}
		sum, least := 0, 0
		for _, parts := range leads {
			if len(parts) == 0 {
				continue // it delivers nothing
			}
			sum += inFlightShare(limit, all, partsNumbered(parts...))
			least++
		}
		s := fold.ChannelSettings{MaxInFlight: uint32(limit)}
		if s.LacksShares(all) != (limit < all) {
			t.Fatalf("limit %d, %d partitions: %v", limit, all, s.LacksShares(all))
		}
		if limit >= all && sum != limit || limit < all && sum > max(limit, limit-1+least) {
			t.Fatalf("limit %d, %d partitions, led as %v: %d together", limit, all, leads, sum)
		}
	}
}

func partsNumbered(numbers ...uint32) (parts []*partition) {
	for _, n := range numbers {
		for len(parts) <= int(n) {
			parts = append(parts, nil)
		}
		parts[n] = &partition{number: n}
	}
	return parts
}
