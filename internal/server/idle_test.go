package server

import "testing"

// The silent connections of three HTTP listeners leave descriptors to other clients.
func TestMaxIdleLeavesDescriptors(t *testing.T) {
	for _, x := range []struct{ connections, limit, want int }{
		{65536, 0, 4096}, {65536, 1 << 20, 4096}, {65536, 1500, 140}, {65536, 160, 15}, {4, 1500, 2}, {1, 1500, 1},
	} {
		if got := maxIdle(x.connections, x.limit); got != x.want {
			t.Errorf("%d connections, %d descriptors: %d wait, want %d", x.connections, x.limit, got, x.want)
		}
	}
}
