package serve

import (
	"strings"
	"testing"

	"penstock/internal/cluster/etcd"
	"penstock/internal/meta"
)

// A directory is older than what a majority says, or what a single member says that knows no less than the directory.
func TestNewer(t *testing.T) {
	row := &meta.Node{Boot: [16]byte{7}, Logged: 11}
	const unknown = "does not know it"
	const shorter = "wrote group 11 to the commit log of the data directory, which ends with group 10"
	nothing := func(*meta.Node, uint64) bool { return false }
	boot := func(*meta.Node, uint64) bool { return true }
	groups := func(row *meta.Node, end uint64) bool { return end < row.Logged }
	for _, c := range []struct {
		name   string
		t      etcd.Testimony
		row    *meta.Node
		behind func(*meta.Node, uint64) bool
		want   string
	}{
		{"a majority", etcd.Testimony{Majority: true, Revision: 60}, row, boot, unknown},
		{"a majority whose store was made anew", etcd.Testimony{Majority: true, Revision: 3}, row, boot, unknown},
		{"one member", etcd.Testimony{Revision: 50}, row, boot, unknown},
		{"one member that is of the past", etcd.Testimony{Revision: 49}, row, boot, ""},
		{"the same process wrote more", etcd.Testimony{Revision: 50}, row, groups, shorter},
		{"the directory is current", etcd.Testimony{Majority: true, Revision: 60}, row, nothing, ""},
		{"nobody knows the node", etcd.Testimony{Majority: true, Revision: 60}, nil, boot, ""},
	} {
		p := pastOf{seen: meta.Seen{Revision: 50}, end: 10, behind: c.behind}
		if why := p.newer(c.t, c.row); (why == "") != (c.want == "") || !strings.Contains(why, c.want) {
			t.Errorf("%s: %q", c.name, why)
		}
	}
}
