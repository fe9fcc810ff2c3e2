package main

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

	"penstock/internal/cluster/trust"

	"penstock/cmd/engine/internal/client"
)

const (
	// maxDevNodes bounds --nodes: on one machine, more nodes show nothing that sixteen do not.
	maxDevNodes = 16
	// devPortStep is the distance between the first ports of two nodes. Each node uses devPortCount consecutive ports.
	devPortStep  = 10
	devPortCount = 7
	devHost      = "127.0.0.1"
	// devSecretName is the file with the secret of the nodes, in data-path.
	devSecretName = "cluster.secret"
	// devStopMargin is the time beyond its own --shutdown-timeout that a node gets before it is killed. It needs that
	// to close its files and its part of the metadata store.
	devStopMargin = 5 * time.Second
)

// devOptions are the options of `engine dev-cluster`.
type devOptions struct {
	nodes        int
	dataPath     string
	basePort     int
	restart      bool
	asJSON       bool
	startTimeout time.Duration
	stopTimeout  time.Duration
	serveFlags   []string
	secretFile   string // made for the nodes; empty: the flags of serve say how they trust each other
}

func devClusterCommand() *cobra.Command {
	o := new(devOptions)
	cmd := &cobra.Command{
		Use:                   "dev-cluster [flags] [-- FLAGS OF SERVE]",
		DisableFlagsInUseLine: true,
		Short:                 "Run a cluster on this machine, for development and tests",
		Long: "Run a cluster on this machine, for development and tests. The nodes are called n1, n2 and so on. Each has\n" +
			"its data in <data-path>/<node> and its log in <data-path>/<node>.log. Its ports on the loopback interface\n" +
			"begin at base-port for n1, base-port+10 for n2 and so on: the first port is for NSQ, HTTP +1, lookup +2,\n" +
			"native clients +3, connections between nodes +4; on the nodes that hold the metadata also\n" +
			"etcd members +5, etcd clients +6.\n" +
			"When a node is ready, a line about it is printed: text on a terminal, otherwise JSON. Run `engine` with the\n" +
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
	f.IntVar(&o.nodes, "nodes", 3, "number of nodes, 1 to 16; the first one, three or five of them hold the metadata")
	f.StringVar(&o.dataPath, "data-path", "./cluster-data",
		"directory for the data and logs of the nodes; created if missing")
	f.IntVar(&o.basePort, "base-port", 14150, "first port of the first node")
	f.BoolVar(&o.asJSON, "json", false, "print JSON on a terminal, too")
	f.BoolVar(&o.restart, "restart", false, "restart a node that ends by itself or is killed")
	durationVar(f, &o.startTimeout, "start-timeout", time.Minute,
		"maximum time to wait until all nodes are ready for the first time")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		o.serveFlags = args
		nodes, err := planDevCluster(o)
		if err != nil {
			return &exitError{exitUsage, err}
		}
		if err := portsFree(nodes); err != nil {
			return &exitError{exitAddress, err}
		}
		exe, err := os.Executable()
		if err != nil {
			return &exitError{exitOther, fmt.Errorf("the program's own file is not known: %w", err)}
		}
		ctx, stop := untilSignal(cmd.Context())
		defer stop()
		return runDevCluster(ctx, o, exe, nodes, cmd.OutOrStdout(), cmd.ErrOrStderr())
	}
	return cmd
}

// devNode is one node; its exported fields are the line about it on stdout.
type devNode struct {
	Node   string   `json:"node"`
	PID    int      `json:"pid"`
	NSQ    string   `json:"nsq"`
	HTTP   string   `json:"http"`
	Lookup string   `json:"lookup"`
	Native string   `json:"native"`
	Args   []string `json:"args"`

	logName string
	first   int            // its first port
	ports   []devPort      // those on which it listens
	client  *client.Client // see api
	guarded bool           // it asks for a token: see isReady
}

// api returns a client of the node. Only the goroutine that watches the node may call it.
func (n *devNode) api() *client.Client {
	if n.client == nil {
		n.client = &client.Client{Flags: client.Flags{Address: n.HTTP}}
	}
	return n.client
}

type devPort struct {
	use  string
	port int
}

func (n *devNode) address(distance int) string { return devAddress(n.first + distance) }

func devAddress(port int) string { return net.JoinHostPort(devHost, strconv.Itoa(port)) }

// devUses are the uses of a node's ports. Each one's index is its distance from the node's first port.
var devUses = [devPortCount]string{
	devNSQ: "NSQ", devHTTP: "HTTP", devLookup: "lookup", devNative: "native clients", devPeer: "between nodes",
	devEtcdPeer: "etcd between its members", devEtcdClient: "etcd for its clients",
}

// Distances of ports from the node's first port.
const (
	devNSQ        = 0
	devHTTP       = 1
	devLookup     = 2
	devNative     = 3
	devPeer       = 4
	devEtcdPeer   = 5
	devEtcdClient = 6
)

// planDevCluster checks the options and builds every node's command line. It has no side effects.
func planDevCluster(o *devOptions) ([]*devNode, error) {
	if o.nodes < 1 || o.nodes > maxDevNodes {
		return nil, fmt.Errorf("--nodes %d is not from 1 to %d", o.nodes, maxDevNodes)
	}
	if last := 65535 - devPortStep*(o.nodes-1) - devPortCount + 1; o.basePort < 1 || o.basePort > last {
		return nil, fmt.Errorf("--base-port %d is not from 1 to %d: %d nodes have ports up to %d above it",
			o.basePort, last, o.nodes, 65535-last)
	}
	dir, err := filepath.Abs(o.dataPath)
	if err != nil {
		return nil, fmt.Errorf("--data-path %s: %w", o.dataPath, err)
	}
	o.secretFile = filepath.Join(dir, devSecretName)
	if err := checkServeFlags(o); err != nil {
		return nil, err
	}
	nodes := make([]*devNode, o.nodes)
	for i := range nodes {
		n := &devNode{Node: "n" + strconv.Itoa(i+1)}
		n.first = o.basePort + devPortStep*i
		for p, use := range devUses {
			if use != "" && (p < devEtcdPeer || i < devVoters(o.nodes)) {
				n.ports = append(n.ports, devPort{use, n.first + p})
			}
		}
		n.NSQ, n.HTTP, n.Lookup = n.address(devNSQ), n.address(devHTTP), n.address(devLookup)
		n.Native = n.address(devNative)
		n.logName = filepath.Join(dir, n.Node+".log")
		nodes[i] = n
	}
	for i, n := range nodes {
		n.Args = serveArgs(nodes, i, filepath.Join(dir, n.Node))
		if o.secretFile != "" {
			n.Args = append(n.Args, "--cluster-secret-file", o.secretFile)
		}
		n.Args = append(n.Args, o.serveFlags...)
	}
	return nodes, nil
}

// devVoters returns how many of the nodes hold the metadata. It is odd, since an even number tolerates no more failures
// than the next lower odd one.
func devVoters(nodes int) int {
	switch {
	case nodes < 3:
		return 1
	case nodes < 5:
		return 3
	}
	return 5
}

// serveArgs returns the command line of node i.
func serveArgs(nodes []*devNode, i int, dir string) []string {
	n, voters := nodes[i], devVoters(len(nodes))
	peers := make([]string, voters)
	for j := range peers {
		peers[j] = nodes[j].Node + "=" + nodes[j].address(devPeer)
	}
	args := []string{
		"serve", "--data-path", dir, "--node-id", n.Node,
		// Clients are given loopback addresses, because the nodes listen there, whatever the name of this machine.
		"--broadcast-address", devHost, "--nsq-address", n.NSQ, "--http-address", n.HTTP, "--lookup-address", n.Lookup,
		"--native-address", n.Native,
		"--cluster-name", "dev", "--cluster-address", n.address(devPeer), "--cluster-peers", strings.Join(peers, ","),
	}
	if i < voters {
		args = append(args, "--etcd-peer-address", n.address(devEtcdPeer), "--etcd-client-address", n.address(devEtcdClient))
	}
	return args
}

// devFlags are the flags of serve that dev-cluster sets itself, to different values for each node or for the whole
// cluster. The user must not set them.
var devFlags = []string{
	"data-path", "node-id", "cluster-name", "nsq-address", "http-address", "lookup-address", "lookup-tcp-address",
	"native-address",
	"cluster-address", "etcd-data-path", "etcd-peer-address", "etcd-client-address", "cluster-peers",
}

// checkServeFlags refuses flags that serve would refuse, before anything is started. It also takes the shutdown timeout
// of the nodes from them.
func checkServeFlags(o *devOptions) error {
	flags := pflag.NewFlagSet("serve", pflag.ContinueOnError)
	flags.SetOutput(io.Discard)
	flags.Usage = func() {}
	c := newConfig(flags)
	if err := flags.Parse(o.serveFlags); err != nil {
		return fmt.Errorf("behind --: %w", err)
	}
	if flags.NArg() > 0 {
		return fmt.Errorf("behind --: serve takes no argument %q", flags.Arg(0))
	}
	for _, name := range devFlags {
		if f := flags.Lookup(name); f != nil && f.Changed {
			return fmt.Errorf("behind --: dev-cluster sets --%s itself, for each node another value", name)
		}
	}
	if err := c.load(os.Environ()); err != nil {
		return err
	}
	o.stopTimeout = c.node.shutdownTimeout + devStopMargin
	if t := &c.node.cluster.trust; c.node.cluster.insecure || t.SecretFile != "" || t.CA != "" || t.Cert != "" {
		o.secretFile = ""
	}
	return nil
}

// portsFree returns an error if a port is taken, before the first node is started: otherwise the user would get half a
// cluster and an error in a log. Another process may still take a port before its node does; then that node reports it.
func portsFree(nodes []*devNode) error {
	for _, n := range nodes {
		for _, p := range n.ports {
			l, err := net.Listen("tcp", devAddress(p.port))
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

// runDevCluster starts the nodes and returns when they have ended. It returns nil if the end of ctx was the reason.
func runDevCluster(ctx context.Context, o *devOptions, exe string, nodes []*devNode, stdout, stderr io.Writer) error {
	dir := filepath.Dir(nodes[0].logName)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return &exitError{exitData, fmt.Errorf("the directory %s cannot be made: %w", dir, err)}
	}
	if o.secretFile != "" {
		if err := trust.EnsureSecret(o.secretFile); err != nil {
			return &exitError{exitData, err}
		}
	}
	d := newDevCluster(o, exe, stdout, stderr)
	return d.run(ctx, nodes)
}
