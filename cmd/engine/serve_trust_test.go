package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"penstock/cmd/engine/internal/cli"
	"penstock/netproto"
)

// A node that other machines could reach without a secret or certificates does not start, and makes nothing (exit 2).
func TestRefusesToListenInsecurely(t *testing.T) {
	secret := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(secret, []byte(strings.Repeat("s", 40)), 0o600); err != nil {
		t.Fatal(err)
	}
	const there = "--cluster-address 192.0.2.1:4254 --cluster-peers a=127.0.0.1:4254"
	const says = "`penstock cluster init-tls`"
	for name, tc := range map[string]struct {
		flags   string
		refused string
	}{
		"everywhere":        {"--cluster-address 0.0.0.0:4254 --cluster-peers a=127.0.0.1:4254", says},
		"no host":           {"--cluster-address :4254 --cluster-peers a=127.0.0.1:4254", says},
		"another interface": {"--cluster-address 192.0.2.1:4254 --etcd-endpoints 127.0.0.1:1", says},
		"etcd's peer port": {
			"--cluster-address 127.0.0.1:4254 --cluster-peers a=127.0.0.1:4254 --etcd-peer-address 192.0.2.1:4255", says,
		},
		"etcd's client port": {
			"--cluster-address 127.0.0.1:4254 --cluster-peers a=127.0.0.1:4254 --etcd-client-address [::]:4256", says,
		},
		"half of the files": {there + " --cluster-tls-ca x", "three files"},
		"a secret alone":    {"--cluster-secret-file " + secret, "need a cluster-address"},
		"a missing secret":  {there + " --cluster-secret-file x", "cannot be read"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "data")
			execute(t, append([]string{"serve", "--node-id", "a", "--data-path", dir}, strings.Fields(tc.flags)...)...).check(t,
				cli.ExitUsage, tc.refused)
			if _, err := os.Stat(dir); err == nil {
				t.Error("a data directory was made")
			}
		})
	}
}

// A node's name is checked at the start of any node, by the rule that a cluster has (O14).
func TestNodeIDIsChecked(t *testing.T) {
	for _, id := range []string{"a b", "a=b", "a,b", "tab\t", "ä", strings.Repeat("n", netproto.MaxNodeIDBytes+1)} {
		dir := filepath.Join(t.TempDir(), "data")
		execute(t, "serve", "--node-id", id, "--data-path", dir).check(t, cli.ExitUsage, "cannot be the name of a node")
		if _, err := os.Stat(dir); err == nil {
			t.Error("a data directory was made")
		}
	}
}

// init-tls prints settings with which nodes start, and refuses what it cannot put into a certificate.
func TestInitTLSCommand(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "tls")
	for flags, says := range map[string]string{
		"":                           "needs --nodes",
		"--nodes a=10.0.0.1:80":      "neither an IP address nor a host name",
		"--nodes a=h,a=i":            "twice",
		"--nodes a=h --host a:1":     "neither an IP address",
		"--nodes a=h --host 0.0.0.0": "nobody can dial it",
		"--nodes a/b=h":              "cannot be the name of a node",
		"--nodes a=h,b=,c=10.0.01":   "neither an IP address",
	} {
		execute(t, append([]string{"cluster", "init-tls", dir}, strings.Fields(flags)...)...).check(t, cli.ExitUsage, says)
	}
	if _, err := os.Stat(dir); err == nil {
		t.Error("something was made")
	}
	r := execute(t, "cluster", "init-tls", dir, "--nodes", "a=10.0.0.1,b=b.example", "--host", "127.0.0.1")
	if r.code != 0 || !strings.Contains(r.stdout, "--cluster-tls-key "+filepath.Join(dir, "a-key.pem")) {
		t.Errorf("exit code %d: %s%s", r.code, r.stdout, r.stderr)
	}
	execute(t, "cluster", "init-tls", dir, "--nodes", "a=10.0.0.1").check(t, cli.ExitOther, "is not overwritten")
}
