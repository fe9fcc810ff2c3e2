package batch

import "testing"

// PartitionOf must not change, because messages with a key are where it says.
func TestPartitionOf(t *testing.T) {
	for key, want := range map[string]int{"": 458, "a": 429, "k1": 960, "customer-17": 264} {
		if n := PartitionOf([]byte(key), 1000); n != want {
			t.Errorf("key %q belongs to partition %d, want %d", key, n, want)
		}
	}
	key := []byte("the key of a customer, which is long")
	if n := testing.AllocsPerRun(100, func() { PartitionOf(key, 1000) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
