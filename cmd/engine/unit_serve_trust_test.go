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
		"secret":   func(c *clusterSettings) { c.Trust.SecretFile = secret },
		"insecure": func(c *clusterSettings) { c.Insecure = true },
		"loopback": func(c *clusterSettings) { c.Address, c.Peers = "localhost:4254", "a=[::1]:4254" },
		"not the voter": func(c *clusterSettings) {
			c.Address, c.Peers = "127.0.0.1:4254", "b=192.0.2.1:4254"
		},
	} {
		n := new(options)
		n.Engine.NodeID = "a"
		n.Cluster.Address, n.Cluster.Peers = "192.0.2.1:4254", "a=192.0.2.1:4254"
		edit(&n.Cluster)
		if _, err := trusted(n); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}
