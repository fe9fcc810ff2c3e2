package batch

import (
	"math"
	"math/rand/v2"
	"testing"
)

// A later time gives a higher tenure, whatever the random part, and one above another leaves room for its openings.
func TestTenureOrder(t *testing.T) {
	for _, ms := range []int64{math.MinInt64, 0, 1 << 12, 1_700_000_000_000, 1 << 43} {
		if low, high := NewTenure(ms, math.MaxUint64), NewTenure(max(ms, minTenureMs)+1, 0); low >= high || low < MinTenure {
			t.Errorf("at %d ms %d is not below %d", ms, low, high)
		}
	}
	seen := map[uint64]bool{}
	for range 1000 {
		tenure := NewTenure(1_700_000_000_000, 7)
		above := TenureAbove(tenure, rand.Uint64())
		far := NewTenure(1_700_000_000_000+1<<tenureAboveBits, math.MaxUint64)
		if above <= tenure|(1<<tenureOpeningBits-1) || above > far {
			t.Fatalf("%d is not above %d, or far above", above, tenure)
		}
		seen[above] = true
	}
	if len(seen) < 990 {
		t.Errorf("%d of 1000 tenures above one are different", len(seen))
	}
	if above := TenureAbove(3, 0); above < MinTenure {
		t.Errorf("%d is no tenure", above)
	}
}
