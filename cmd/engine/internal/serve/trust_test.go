package serve

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"penstock/cmd/engine/internal/settings"
)

// With a secret, certificates or the flag, and on loopback, a node listens for others.
func TestTrusted(t *testing.T) {
	secret := filepath.Join(t.TempDir(), "secret")
	must(t, os.WriteFile(secret, []byte(strings.Repeat("s", 40)), 0o600))
	for name, edit := range map[string]func(c *settings.Cluster){
		"secret":   func(c *settings.Cluster) { c.Trust.SecretFile = secret },
		"insecure": func(c *settings.Cluster) { c.Insecure = true },
		"loopback": func(c *settings.Cluster) { c.Address, c.Peers = "localhost:4254", "a=[::1]:4254" },
		"not the voter": func(c *settings.Cluster) {
			c.Address, c.Peers = "127.0.0.1:4254", "b=192.0.2.1:4254"
		},
	} {
		n := new(settings.Options)
		n.Engine.NodeID = "a"
		n.Cluster.Address, n.Cluster.Peers = "192.0.2.1:4254", "a=192.0.2.1:4254"
		edit(&n.Cluster)
		if _, err := trusted(n); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}
