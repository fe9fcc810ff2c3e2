package serve

import "testing"

func TestReachable(t *testing.T) {
	for _, tc := range []struct {
		address string
		told    int
		want    string
	}{
		{"off", 0, ""},
		{"off", 9, ""},
		{"10.0.0.1:4150", 0, "10.0.0.1:4150"},
		{"10.0.0.1:4150", 9, "b:9"},
		{":4150", 0, "b:4150"},
		{"0.0.0.0:4150", 0, "b:4150"},
		{"[::]:4150", 0, "b:4150"},
		{"[fe80::1%eth0]:4150", 0, "b:4150"},
		{"[2001:db8::1]:4150", 0, "[2001:db8::1]:4150"},
	} {
		if got := reachable(tc.address, "b", tc.told); got != tc.want {
			t.Errorf("%s with port %d is announced as %q, want %q", tc.address, tc.told, got, tc.want)
		}
	}
}
