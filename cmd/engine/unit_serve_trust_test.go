package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// With a secret, certificates or the flag, and on loopback, a node listens for others.
func TestTrusted(t *testing.T) {
	secret := filepath.Join(t.TempDir(), "secret")
	must(t, os.WriteFile(secret, []byte(strings.Repeat("s", 40)), 0o600))
	for name, edit := range map[string]func(c *clusterSettings){
		"secret":   func(c *clusterSettings) { c.trust.SecretFile = secret },
		"insecure": func(c *clusterSettings) { c.insecure = true },
		"loopback": func(c *clusterSettings) { c.address, c.peers = "localhost:4254", "a=[::1]:4254" },
		"not the voter": func(c *clusterSettings) {
			c.address, c.peers = "127.0.0.1:4254", "b=192.0.2.1:4254"
		},
	} {
		n := new(options)
		n.engine.NodeID = "a"
		n.cluster.address, n.cluster.peers = "192.0.2.1:4254", "a=192.0.2.1:4254"
		edit(&n.cluster)
		if _, err := trusted(n); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}
