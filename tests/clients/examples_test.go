//go:build clients

package clients

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"penstock/internal/cluster/trust"
	"penstock/tests/cluster/harness"
	"penstock/tests/support/authtest"
	"penstock/tests/support/porttest"
)

// examples is where the programs of docs/clients are.
const examples = "../../docs/clients/examples"

// A shop is one of the programs: it publishes three orders and consumes them.
type shop struct {
	document string   // that shows it
	command  []string // without the nodes
	native   bool     // it speaks the native protocol
}

// shops builds the programs, and installs what they need.
func shops(t *testing.T) []shop {
	t.Helper()
	programs, packages := t.TempDir(), t.TempDir()
	run := func(dir, name string, args ...string) {
		t.Helper()
		cmd := exec.Command(name, args...)
		cmd.Dir = dir
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%s: %v\n%s", cmd, err, out)
		}
	}
	run(examples, "go", "build", "-o", programs+"/", "./gonsq", "./native")
	run(filepath.Join(examples, "javascript"), "npm", "ci", "--no-audit", "--no-fund", "--ignore-scripts")
	run(filepath.Join(examples, "python"), "python3", "-m", "pip", "install", "--quiet", "--disable-pip-version-check",
		"--root-user-action=ignore", "--target", packages, "-r", "requirements.txt")
	t.Setenv("PYTHONPATH", packages)
	t.Setenv("PYTHONDONTWRITEBYTECODE", "1")
	return []shop{
		{"go.md", []string{filepath.Join(programs, "gonsq")}, false},
		{"go.md", []string{filepath.Join(programs, "native")}, true},
		{"python.md", []string{"python3", filepath.Join(examples, "python", "shop.py")}, false},
		{"javascript.md", []string{"node", filepath.Join(examples, "javascript", "shop.js")}, false},
	}
}

// The programs of docs/clients do and print what their documents show, at one node and at three, without and with TLS
// and tokens, and confirm everything. In a cluster, the first node that they are told of is down.
func TestDocumentedPrograms(t *testing.T) {
	all := shops(t)
	dir := t.TempDir()
	node := trust.Node{Name: "n", Hosts: []string{"127.0.0.1", "localhost"}}
	ca, files, err := trust.Init(filepath.Join(dir, "tls"), []trust.Node{node}, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	tokens, secret := filepath.Join(dir, "tokens.toml"), filepath.Join(dir, "shop.token")
	authtest.Write(t, tokens, authtest.Token("admin", "keys", `permissions = ["admin", "view"]`+"\n"+`topics = ["*"]`)+
		authtest.Token("shop", "loaves", `permissions = ["publish", "subscribe"]`+"\n"+
			`topics = ["orders", "orders.*"]`+"\n"+`channels = ["billing*"]`))
	if err := os.WriteFile(secret, []byte("loaves\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, x := range []struct {
		name         string
		serve, flags []string
	}{
		{"open", nil, nil},
		{
			"secured", []string{
				"--tls-cert", files[0].Cert, "--tls-key", files[0].Key, "--tls-required", "tcp-https", "--auth-file", tokens,
			}, []string{"--ca", ca, "--token-file", secret},
		},
	} {
		t.Run(x.name, func(t *testing.T) {
			t.Setenv("PENSTOCK_TOKEN", "keys") // of the harness; open nodes do not look at it
			t.Run("node", func(t *testing.T) {
				native := porttest.Address(t)
				c := start(t, harness.Single, harness.Options{
					Dir: t.TempDir(), Serve: append([]string{"--native-address", native}, x.serve...),
				})
				sell(t, all, c, []string{native}, x.flags)
			})
			t.Run("cluster", func(t *testing.T) {
				c := start(t, harness.Dev, harness.Options{Dir: t.TempDir(), Nodes: 3, Serve: x.serve})
				natives := []string{porttest.Address(t)} // of a node that is down
				for _, n := range c.Nodes {
					natives = append(natives, n.Native)
				}
				sell(t, all, c, natives, x.flags)
			})
		})
	}
}

// start starts nodes, which the test's end stops.
func start(t *testing.T, how func(context.Context, harness.Options) (*harness.Cluster, error), o harness.Options,
) *harness.Cluster {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	c, err := how(ctx, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			c.PrintLogs(os.Stderr, 4<<10)
		}
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	return c
}

// sell runs the programs one after the other; each leaves the channel empty.
func sell(t *testing.T, all []shop, c *harness.Cluster, natives, flags []string) {
	t.Helper()
	var nodes []string
	if len(c.Nodes) > 1 {
		nodes = append(nodes, porttest.Address(t)) // of a node that is down
	}
	for _, n := range c.Nodes {
		nodes = append(nodes, n.NSQ)
	}
	for _, s := range all {
		args := append(s.command[1:len(s.command):len(s.command)], flags...)
		if s.native {
			args = append(args, "--nodes", strings.Join(natives, ","))
		} else {
			args = append(args, "--nodes", strings.Join(nodes, ","), "--lookups", strings.Join(c.Lookups(), ","))
		}
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		cmd := exec.CommandContext(ctx, s.command[0], args...)
		var log strings.Builder
		cmd.Stderr = &log
		out, err := cmd.Output()
		if err != nil {
			t.Fatalf("%s: %v\n%s%s", cmd, err, out, &log)
		}
		text, err := os.ReadFile(filepath.Join(examples, "..", s.document))
		if err != nil {
			t.Fatal(err)
		}
		if len(out) == 0 || !strings.Contains(string(text), "\n"+string(out)) {
			t.Errorf("%s prints\n%s\nwhich docs/clients/%s does not show", cmd, out, s.document)
		}
		until(t, fmt.Sprintf("%s did not confirm everything", cmd), func() bool {
			left, err := depth(t.Context(), c)
			return err == nil && left == 0
		})
	}
}

// depth is how many messages of the channel are not confirmed, as the nodes say that have it.
func depth(ctx context.Context, c *harness.Cluster) (int, error) {
	left, found := 0, false
	for _, n := range c.Nodes {
		var stats struct {
			Topics []struct{ Channels []struct{ Depth int } }
		}
		if err := harness.Get(ctx, n.HTTP, "/stats?format=json&topic=orders&channel=billing", &stats); err != nil {
			return 0, err
		}
		for _, topic := range stats.Topics {
			for _, ch := range topic.Channels {
				left, found = left+ch.Depth, true
			}
		}
	}
	if !found {
		return 0, errors.New("no node has the channel")
	}
	return left, nil
}
