package devcluster

import (
	"slices"
	"testing"
	"time"

	"github.com/spf13/pflag"

	"penstock/cmd/engine/internal/settings"
)

func TestDevVoters(t *testing.T) {
	for nodes, want := range map[int]int{1: 1, 2: 1, 3: 3, 4: 3, 5: 5, 6: 5, 16: 5} {
		if got := voterCount(nodes); got != want {
			t.Errorf("%d of %d nodes hold the metadata, want %d", got, nodes, want)
		}
	}
}

func TestDevClusterPlan(t *testing.T) {
	o := &Options{
		Nodes: 4, BasePort: 9000, DataPath: "/tmp/c", serveFlags: []string{"--io", "pwrite", "--shutdown-timeout=3s"},
	}
	nodes, err := Plan(o)
	if err != nil {
		t.Fatal(err)
	}
	if o.stopTimeout != 3*time.Second+stopMargin {
		t.Errorf("nodes are killed after %v", o.stopTimeout)
	}
	used := map[int]bool{}
	for i, n := range nodes {
		for _, p := range n.ports {
			if used[p.port] || p.port < 9000+10*i || p.port > 9006+10*i {
				t.Errorf("%s: port %d for %s", n.Node, p.port, p.use)
			}
			used[p.port] = true
		}
		flags := pflag.NewFlagSet("serve", pflag.ContinueOnError)
		flags.ParseErrorsAllowlist.UnknownFlags = true
		c := settings.New(flags)
		if err := flags.Parse(n.Args[1:]); err != nil || n.Args[0] != "serve" {
			t.Fatalf("%s does not understand its arguments %q: %v", n.Node, n.Args, err)
		}
		if c.Node.Engine.NodeID != n.Node || c.Node.NSQ.TCPAddress != n.NSQ || c.Node.NSQ.HTTPAddress != n.HTTP ||
			c.Node.Engine.IO != "pwrite" ||
			c.Node.Engine.DataPath != "/tmp/c/"+n.Node || c.Node.NSQ.BroadcastAddress != "127.0.0.1" {
			t.Errorf("%s understands its arguments otherwise: %q", n.Node, n.Args)
		}
	}
	peers := "n1=127.0.0.1:9004,n2=127.0.0.1:9014,n3=127.0.0.1:9024"
	for i, n := range nodes {
		if got := argument(n.Args, "--cluster-peers"); got != peers {
			t.Errorf("%s is told of the peers %q", n.Node, got)
		}
		if got, want := argument(n.Args, "--cluster-address"), n.address(PortPeer); got != want {
			t.Errorf("%s: --cluster-address %q, want %q", n.Node, got, want)
		}
		if got := argument(n.Args, "--etcd-peer-address"); (got != "") != (i < 3) {
			t.Errorf("%s: --etcd-peer-address %q", n.Node, got)
		}
	}
}

// argument returns the argument that follows a flag.
func argument(args []string, flag string) string {
	i := slices.Index(args, flag)
	if i < 0 || i+1 == len(args) {
		return ""
	}
	return args[i+1]
}
