package main

import (
	"strings"
	"testing"

	"penstock/cluster/etcd"
	"penstock/engine/meta"
)

// A directory is older than what a majority says, or what a single member says that knows no less than the directory.
func TestNewer(t *testing.T) {
	row, seen := &meta.Node{Boot: [16]byte{7}}, meta.Seen{Revision: 50}
	for _, c := range []struct {
		name   string
		t      etcd.Testimony
		row    *meta.Node
		behind bool
		want   bool
	}{
		{"a majority", etcd.Testimony{Majority: true, Revision: 60}, row, true, true},
		{"a majority whose store was made anew", etcd.Testimony{Majority: true, Revision: 3}, row, true, true},
		{"one member", etcd.Testimony{Revision: 50}, row, true, true},
		{"one member that is of the past", etcd.Testimony{Revision: 49}, row, true, false},
		{"the directory is current", etcd.Testimony{Majority: true, Revision: 60}, row, false, false},
		{"nobody knows the node", etcd.Testimony{Majority: true, Revision: 60}, nil, true, false},
	} {
		why := newer(c.t, seen, c.row, c.behind)
		if (why != "") != c.want || c.want && !strings.Contains(why, "07000000-") {
			t.Errorf("%s: %q", c.name, why)
		}
	}
}
