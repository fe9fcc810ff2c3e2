package settings

import (
	"testing"

	"penstock/internal/cluster/etcd"
)

// The port that is listened on is beside cluster-address's own: cluster-peers may have one that is mapped to it.
func TestEtcdListens(t *testing.T) {
	v := etcd.Voter{Name: "a", Peer: "n1.example:14255", Client: "n1.example:14256"}
	for _, tc := range []struct{ address, peer, client, wantPeer, wantClient string }{
		{"10.0.0.1:4254", "", "", "10.0.0.1:4255", "10.0.0.1:4256"},
		{":4254", "", "", ":4255", ":4256"},
		{"[::]:4254", "", "10.0.0.9:9", "[::]:4255", "10.0.0.9:9"},
		{"127.0.0.1:0", "", "", v.Peer, v.Client},
		{"127.0.0.1:0", "h:1", "h:2", "h:1", "h:2"},
	} {
		c := Cluster{Address: tc.address, EtcdPeer: tc.peer, EtcdClient: tc.client}
		if peer, client := c.EtcdListens(v); peer != tc.wantPeer || client != tc.wantClient {
			t.Errorf("%+v: %s and %s", tc, peer, client)
		}
	}
}
