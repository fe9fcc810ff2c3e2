package devcluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"penstock/cmd/engine/internal/cli"
	"penstock/cmd/engine/internal/client"
	"penstock/cmd/engine/internal/settings"
	"penstock/internal/cluster/trust"
)

const (
	// maxNodes bounds --nodes: on one machine, more nodes show nothing that sixteen do not.
	maxNodes = 16
	// PortStep is the distance between the first ports of two nodes. Each node uses portCount consecutive ports.
	PortStep  = 10
	portCount = 7
	loopback  = "127.0.0.1"
	// SecretName is the file with the secret of the nodes, in data-path.
	SecretName = "cluster.secret"
	// stopMargin is the time beyond its own --shutdown-timeout that a node gets before it is killed. It needs that
	// to close its files and its part of the metadata store.
	stopMargin = 5 * time.Second
)

// Options are the options of `penstock dev-cluster`.
type Options struct {
	Nodes        int
	DataPath     string
	BasePort     int
	restart      bool
	asJSON       bool
	startTimeout time.Duration
	stopTimeout  time.Duration
	serveFlags   []string
	SecretFile   string // made for the nodes; empty: the flags of serve say how they trust each other
}

// Command runs the nodes of a cluster on this machine.
func Command() *cobra.Command {
	o := new(Options)
	cmd := &cobra.Command{
		Use:                   "dev-cluster [flags] [-- FLAGS OF SERVE]",
		DisableFlagsInUseLine: true,
		Short:                 "Run a cluster on this machine, for development and tests",
		Long: "Run a cluster on this machine, for development and tests. The nodes are called n1, n2 and so on. Each has\n" +
			"its data in <data-path>/<node> and its log in <data-path>/<node>.log. Its ports on the loopback interface\n" +
			"begin at base-port for n1, base-port+10 for n2 and so on: the first port is for NSQ, HTTP +1, lookup +2,\n" +
			"native clients +3, connections between nodes +4; on the nodes that hold the metadata also\n" +
			"etcd members +5, etcd clients +6.\n" +
			"When a node is ready, a line about it is printed: text on a terminal, otherwise JSON. Run `penstock` with the\n" +
			"args in the JSON to start that node again by hand.\n\n" +
			"The nodes share the secret in <data-path>/cluster.secret, which is made at the first start, unless the flags\n" +
			"after -- name another one, or certificates, or say --cluster-insecure.\n\n" +
			"Flags after -- are passed to every node. SIGTERM or SIGINT stops all nodes that this process runs; if it is\n" +
			"killed, they are killed too.",
		Args: func(cmd *cobra.Command, args []string) error {
			if dash := cmd.ArgsLenAtDash(); len(args) > 0 && dash != 0 {
				return fmt.Errorf("unexpected argument %q: flags of serve go behind --", args[0])
			}
			return nil
		},
	}
	f := cmd.Flags()
	f.IntVar(&o.Nodes, "nodes", 3, "number of nodes, 1 to 16; the first one, three or five of them hold the metadata")
	f.StringVar(&o.DataPath, "data-path", "./cluster-data",
		"directory for the data and logs of the nodes; created if missing")
	f.IntVar(&o.BasePort, "base-port", 14150, "first port of the first node")
	f.BoolVar(&o.asJSON, "json", false, "print JSON on a terminal, too")
	f.BoolVar(&o.restart, "restart", false, "restart a node that ends by itself or is killed")
	f.DurationVar(&o.startTimeout, "start-timeout", time.Minute,
		"maximum time to wait until all nodes are ready for the first time")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		o.serveFlags = args
		nodes, err := Plan(o)
		if err != nil {
			return cli.Fail(cli.ExitUsage, err)
		}
		if err := portsFree(nodes); err != nil {
			return cli.Fail(cli.ExitAddress, err)
		}
		exe, err := os.Executable()
		if err != nil {
			return cli.Fail(cli.ExitOther, fmt.Errorf("the program's own file is not known: %w", err))
		}
		ctx, stop := cli.UntilSignal(cmd.Context())
		defer stop()
		return runCluster(ctx, o, exe, nodes, cmd.OutOrStdout(), cmd.ErrOrStderr())
	}
	return cmd
}

// Node is one node; its exported fields are the line about it on stdout.
type Node struct {
	Node   string   `json:"node"`
	PID    int      `json:"pid"`
	NSQ    string   `json:"nsq"`
	HTTP   string   `json:"http"`
	Lookup string   `json:"lookup"`
	Native string   `json:"native"`
	Args   []string `json:"args"`

	logName string
	first   int            // its first port
	ports   []usedPort     // those on which it listens
	client  *client.Client // see api
	guarded bool           // it asks for a token: see isReady
}

// api returns a client of the node. Only the goroutine that watches the node may call it.
func (n *Node) api() *client.Client {
	if n.client == nil {
		n.client = &client.Client{Flags: client.Flags{Address: n.HTTP}}
	}
	return n.client
}

type usedPort struct {
	use  string
	port int
}

func (n *Node) address(distance int) string { return addressOf(n.first + distance) }

func addressOf(port int) string { return net.JoinHostPort(loopback, strconv.Itoa(port)) }

// uses are the uses of a node's ports. Each one's index is its distance from the node's first port.
var uses = [portCount]string{
	portNSQ: "NSQ", portHTTP: "HTTP", portLookup: "lookup", portNative: "native clients", PortPeer: "between nodes",
	portEtcdPeer: "etcd between its members", portEtcdClient: "etcd for its clients",
}

// Distances of ports from the node's first port.
const (
	portNSQ        = 0
	portHTTP       = 1
	portLookup     = 2
	portNative     = 3
	PortPeer       = 4
	portEtcdPeer   = 5
	portEtcdClient = 6
)

// Plan checks the options and builds every node's command line. It has no side effects.
func Plan(o *Options) ([]*Node, error) {
	if o.Nodes < 1 || o.Nodes > maxNodes {
		return nil, fmt.Errorf("--nodes %d is not from 1 to %d", o.Nodes, maxNodes)
	}
	if last := 65535 - PortStep*(o.Nodes-1) - portCount + 1; o.BasePort < 1 || o.BasePort > last {
		return nil, fmt.Errorf("--base-port %d is not from 1 to %d: %d nodes have ports up to %d above it",
			o.BasePort, last, o.Nodes, 65535-last)
	}
	dir, err := filepath.Abs(o.DataPath)
	if err != nil {
		return nil, fmt.Errorf("--data-path %s: %w", o.DataPath, err)
	}
	o.SecretFile = filepath.Join(dir, SecretName)
	if err := checkServeFlags(o); err != nil {
		return nil, err
	}
	nodes := make([]*Node, o.Nodes)
	for i := range nodes {
		n := &Node{Node: "n" + strconv.Itoa(i+1)}
		n.first = o.BasePort + PortStep*i
		for p, use := range uses {
			if use != "" && (p < portEtcdPeer || i < voterCount(o.Nodes)) {
				n.ports = append(n.ports, usedPort{use, n.first + p})
			}
		}
		n.NSQ, n.HTTP, n.Lookup = n.address(portNSQ), n.address(portHTTP), n.address(portLookup)
		n.Native = n.address(portNative)
		n.logName = filepath.Join(dir, n.Node+".log")
		nodes[i] = n
	}
	for i, n := range nodes {
		n.Args = serveArgs(nodes, i, filepath.Join(dir, n.Node))
		if o.SecretFile != "" {
			n.Args = append(n.Args, "--cluster-secret-file", o.SecretFile)
		}
		n.Args = append(n.Args, o.serveFlags...)
	}
	return nodes, nil
}

// voterCount returns how many of the nodes hold the metadata. It is odd, since an even number tolerates no more
// failures than the next lower odd one.
func voterCount(nodes int) int {
	switch {
	case nodes < 3:
		return 1
	case nodes < 5:
		return 3
	}
	return 5
}

// serveArgs returns the command line of node i.
func serveArgs(nodes []*Node, i int, dir string) []string {
	n, voters := nodes[i], voterCount(len(nodes))
	peers := make([]string, voters)
	for j := range peers {
		peers[j] = nodes[j].Node + "=" + nodes[j].address(PortPeer)
	}
	args := []string{
		"serve", "--data-path", dir, "--node-id", n.Node,
		// Clients are given loopback addresses, because the nodes listen there, whatever the name of this machine.
		"--broadcast-address", loopback, "--nsq-address", n.NSQ, "--http-address", n.HTTP, "--lookup-address", n.Lookup,
		"--native-address", n.Native,
		"--cluster-name", "dev", "--cluster-address", n.address(PortPeer), "--cluster-peers", strings.Join(peers, ","),
	}
	if i < voters {
		args = append(args, "--etcd-peer-address", n.address(portEtcdPeer),
			"--etcd-client-address", n.address(portEtcdClient))
	}
	return args
}

// ownFlags are the flags of serve that dev-cluster sets itself, to different values for each node or for the whole
// cluster. The user must not set them.
var ownFlags = []string{
	"data-path", "node-id", "cluster-name", "nsq-address", "http-address", "lookup-address", "lookup-tcp-address",
	"native-address",
	"cluster-address", "etcd-data-path", "etcd-peer-address", "etcd-client-address", "cluster-peers",
}

// checkServeFlags refuses flags that serve would refuse, before anything is started. It also takes the shutdown timeout
// of the nodes from them.
func checkServeFlags(o *Options) error {
	flags := pflag.NewFlagSet("serve", pflag.ContinueOnError)
	flags.SetOutput(io.Discard)
	flags.Usage = func() {}
	c := settings.New(flags)
	if err := flags.Parse(o.serveFlags); err != nil {
		return fmt.Errorf("behind --: %w", err)
	}
	if flags.NArg() > 0 {
		return fmt.Errorf("behind --: serve takes no argument %q", flags.Arg(0))
	}
	for _, name := range ownFlags {
		if f := flags.Lookup(name); f != nil && f.Changed {
			return fmt.Errorf("behind --: dev-cluster sets --%s itself, for each node another value", name)
		}
	}
	if err := c.Load(os.Environ()); err != nil {
		return err
	}
	o.stopTimeout = c.Node.ShutdownTimeout + stopMargin
	if t := &c.Node.Cluster.Trust; c.Node.Cluster.Insecure || t.SecretFile != "" || t.CA != "" || t.Cert != "" {
		o.SecretFile = ""
	}
	return nil
}

// portsFree returns an error if a port is taken, before the first node is started: otherwise the user would get half a
// cluster and an error in a log. Another process may still take a port before its node does; then that node reports it.
func portsFree(nodes []*Node) error {
	for _, n := range nodes {
		for _, p := range n.ports {
			l, err := net.Listen("tcp", addressOf(p.port))
			if err == nil {
				err = l.Close()
			}
			switch {
			case errors.Is(err, syscall.EADDRINUSE):
				return fmt.Errorf("the port %d (%s of node %s) is in use by another process: choose another --base-port; nothing "+
					"was started", p.port, p.use, n.Node)
			case err != nil:
				return fmt.Errorf("the port %d (%s of node %s) cannot be listened on; nothing was started: %w",
					p.port, p.use, n.Node, err)
			}
		}
	}
	return nil
}

// runCluster starts the nodes and returns when they have ended. It returns nil if the end of ctx was the reason.
func runCluster(ctx context.Context, o *Options, exe string, nodes []*Node, stdout, stderr io.Writer) error {
	dir := filepath.Dir(nodes[0].logName)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return cli.Fail(cli.ExitData, fmt.Errorf("the directory %s cannot be made: %w", dir, err))
	}
	if o.SecretFile != "" {
		if err := trust.EnsureSecret(o.SecretFile); err != nil {
			return cli.Fail(cli.ExitData, err)
		}
	}
	d := newNodeRunner(o, exe, stdout, stderr)
	return d.run(ctx, nodes)
}
