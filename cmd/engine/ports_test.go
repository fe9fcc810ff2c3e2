package main

import (
	"encoding/json"
	"fmt"
	"regexp"
	"testing"

	"penstock/internal/cluster/admin"
)

// A node of a cluster that lets the kernel choose ports announces those that it listens on, and not port 0.
func TestChosenPortsAreAnnounced(t *testing.T) {
	t.Parallel()
	dir, base := t.TempDir(), freeBasePort(t)
	cert, key := writeCertificate(t, dir, "node")
	peer := fmt.Sprintf("127.0.0.1:%d", base+4)
	p := startNode(t, t.TempDir(), "--node-id", "a", "--cluster-address", peer, "--cluster-peers", "a="+peer,
		"--tls-cert", cert, "--tls-key", key, "--https-address", "127.0.0.1:0")
	others := regexp.MustCompile(`https=(\S+) lookup=(\S+)`).FindStringSubmatch(p.log.String())
	code, text := p.get("/cluster/status")
	var st admin.Status
	if err := json.Unmarshal([]byte(text), &st); err != nil || code != 200 || len(st.Nodes) != 1 || len(others) != 3 {
		t.Fatalf("%d %v %s\n%s", code, err, text, p.log)
	}
	got, want := st.Nodes[0], admin.Node{Peer: peer, NSQ: p.nsq, HTTP: p.http, HTTPS: others[1], Lookup: others[2]}
	if got.Peer != want.Peer || got.NSQ != want.NSQ || got.HTTP != want.HTTP || got.HTTPS != want.HTTPS ||
		got.Lookup != want.Lookup {
		t.Errorf("announced is\n%+v\nand the node listens at\n%+v", got, want)
	}
	if name := servedName(t, got.HTTPS); name != "node" {
		t.Errorf("%s answers at the announced HTTPS address", name)
	}
}
