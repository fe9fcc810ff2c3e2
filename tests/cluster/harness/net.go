package harness

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
)

// Net is a bridge on this machine with one network namespace per node on it, each with two addresses: one for clients
// and between the nodes, one for the metadata store, so that the two can be cut apart.
//
// A direction is cut by a permanent neighbour entry that names a hardware address nobody has: packets leave and nobody
// takes them, without an error and without an answer, which is what a broken network looks like. It needs nothing but
// iproute2.
type Net struct {
	prefix string // of all names
	second int    // byte of the addresses
	// of the data plane's; the metadata plane has the next one, so that each connection has both ends on one plane
	third int
	nodes int
	cut   map[[2]int]bool
}

// nobody is a hardware address of the local range that no interface has.
const nobody = "02:00:00:00:de:ad"

const device = "eth0" // of a namespace

// Plane is what of the network is cut.
type Plane int

// The planes.
const (
	Data     Plane = 1 << iota // between the nodes
	Metadata                   // between the members of the metadata store
	All      = Data | Metadata
)

// NetMissing says why this machine cannot have namespaces; nil: it can.
func NetMissing() error {
	if os.Geteuid() != 0 {
		return errors.New("network namespaces need root")
	}
	if _, err := exec.LookPath("ip"); err != nil {
		return errors.New("network namespaces need iproute2")
	}
	if _, err := exec.LookPath("nsenter"); err != nil {
		return errors.New("network namespaces need util-linux")
	}
	n, err := NewNet(1)
	if err != nil {
		return err
	}
	return n.Close()
}

// NewNet makes a bridge and namespaces for that many nodes.
func NewNet(nodes int) (*Net, error) {
	n := &Net{
		prefix: fmt.Sprintf("pk%x", rand.Uint32()&0xfffff),
		second: 100 + rand.IntN(100), third: 2 * rand.IntN(100),
		nodes: nodes, cut: map[[2]int]bool{},
	}
	if err := n.build(); err != nil {
		return nil, errors.Join(err, n.Close())
	}
	return n, nil
}

// Namespace is the path of a node's.
func (n *Net) Namespace(i int) string { return filepath.Join("/run/netns", n.name(i)) }

// name is the name of a node's namespace, as ip takes it.
func (n *Net) name(i int) string { return n.prefix + "n" + strconv.Itoa(i+1) }

// Address is a node's address on a plane.
func (n *Net) Address(i int, p Plane) string {
	third := n.third
	if p == Metadata {
		third++
	}
	return fmt.Sprintf("10.%d.%d.%d", n.second, third, 10+i)
}

func (n *Net) bridge() string     { return n.prefix + "br" }
func (n *Net) port(i int) string  { return n.prefix + "v" + strconv.Itoa(i+1) }
func (n *Net) inner(i int) string { return n.prefix + "i" + strconv.Itoa(i+1) }

func (n *Net) build() error {
	steps := []string{
		"link add " + n.bridge() + " type bridge",
		fmt.Sprintf("addr add 10.%d.%d.1/24 dev %s", n.second, n.third, n.bridge()), // for clients, which are here
		"link set " + n.bridge() + " up",
	}
	for i := range n.nodes {
		ns := n.name(i)
		steps = append(
			steps,
			"netns add "+ns,
			"link add "+n.port(i)+" type veth peer name "+n.inner(i),
			"link set "+n.port(i)+" master "+n.bridge()+" up",
			"link set "+n.inner(i)+" netns "+ns+" name "+device,
			"-n "+ns+" link set lo up",
			"-n "+ns+" addr add "+n.Address(i, Data)+"/24 dev "+device,
			"-n "+ns+" addr add "+n.Address(i, Metadata)+"/24 dev "+device,
			"-n "+ns+" link set "+device+" up",
		)
	}
	for _, s := range steps {
		if err := ip(s); err != nil {
			return err
		}
	}
	return nil
}

func ip(args string) error {
	if out, err := exec.Command("ip", strings.Fields(args)...).CombinedOutput(); err != nil {
		return fmt.Errorf("ip %s: %w: %s", args, err, strings.TrimSpace(string(out)))
	}
	return nil
}

// Close takes everything away that NewNet made. The nodes have ended.
func (n *Net) Close() error {
	var errs []error
	for i := range n.nodes {
		if _, err := os.Stat(n.Namespace(i)); err == nil {
			errs = append(errs, ip("netns del "+n.name(i))) // its end of the pair goes with it, and so does the other
		}
	}
	for i := range n.nodes {
		if _, err := net.InterfaceByName(n.port(i)); err == nil {
			_ = ip("link del " + n.port(i)) // it may go by itself meanwhile
		}
	}
	if _, err := net.InterfaceByName(n.bridge()); err == nil {
		errs = append(errs, ip("link del "+n.bridge()))
	}
	return errors.Join(errs...)
}

// Cut loses every packet from one node to another on a plane. The other direction stays.
func (n *Net) Cut(from, to int, p Plane) error {
	n.cut[[2]int{from, to}] = true
	return n.planes(p, func(plane Plane) error {
		return ip("-n " + n.name(from) + " neigh replace " + n.Address(to, plane) + " lladdr " + nobody + " dev " +
			device + " nud permanent")
	})
}

// Split cuts every way between two groups of nodes. A group against itself leaves each node alone.
func (n *Net) Split(a, b []int, p Plane) error {
	var errs []error
	for _, x := range a {
		for _, y := range b {
			if x != y {
				errs = append(errs, n.Cut(x, y, p), n.Cut(y, x, p))
			}
		}
	}
	return errors.Join(errs...)
}

// Heal ends all cuts.
func (n *Net) Heal() error {
	var errs []error
	for c := range n.cut {
		errs = append(errs, n.planes(All, func(plane Plane) error {
			// What was not cut may be a learned entry, or none: it is learned again.
			_ = ip("-n " + n.name(c[0]) + " neigh del " + n.Address(c[1], plane) + " dev " + device)
			return nil
		}))
	}
	clear(n.cut)
	return errors.Join(errs...)
}

func (n *Net) planes(p Plane, do func(Plane) error) error {
	var errs []error
	for _, plane := range []Plane{Data, Metadata} {
		if p&plane != 0 {
			errs = append(errs, do(plane))
		}
	}
	return errors.Join(errs...)
}

// Ports of a node in a namespace of its own: every node has the same.
const (
	portNSQ        = "4150"
	portHTTP       = "4151"
	portLookup     = "4161"
	portNative     = "4250"
	portPeer       = "4254"
	portEtcdPeer   = "4255"
	portEtcdClient = "4256"

	secretName = "cluster.secret"
)

// Network is what Spread needs of a network: where the node with a number from 0 lives.
type Network interface {
	Namespace(node int) string // path of its network namespace, as nsenter takes it
	Address(node int, p Plane) string
}

// Spread starts a cluster whose nodes live in namespaces of their own. The first three hold the metadata.
func Spread(ctx context.Context, o Options) (*Cluster, error) {
	binary, err := o.binary()
	if err != nil {
		return nil, err
	}
	c, network := new(Cluster), o.Network
	if network == nil {
		if c.Net, err = NewNet(o.Nodes); err != nil {
			return nil, err
		}
		network = c.Net
	}
	// The nodes listen on more than loopback.
	secret := []byte(strings.Repeat("secret of a test ", 3))
	if err := os.WriteFile(filepath.Join(o.Dir, secretName), secret, 0o600); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	voters := min(o.Nodes, 3)
	var peers []string
	for i := range voters {
		// Where the others find its etcd: the port before etcd's two.
		peers = append(peers, fmt.Sprintf("n%d=%s", i+1, net.JoinHostPort(network.Address(i, Metadata), portPeer)))
	}
	for i := range o.Nodes {
		c.Nodes = append(c.Nodes, spreadNode(network, i, i < voters, strings.Join(peers, ","), binary, &o))
	}
	for _, n := range c.Nodes {
		if err := n.Start(); err != nil {
			return nil, errors.Join(err, c.Close())
		}
	}
	for _, n := range c.Nodes {
		if err := n.Ready(ctx); err != nil {
			return nil, errors.Join(err, c.Close())
		}
	}
	if err := c.Healthy(ctx); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return c, nil
}

func spreadNode(network Network, i int, votes bool, peers, binary string, o *Options) *Node {
	host := network.Address(i, Data)
	n := &Node{
		Name: "n" + strconv.Itoa(i+1), NSQ: net.JoinHostPort(host, portNSQ), HTTP: net.JoinHostPort(host, portHTTP),
		Lookup: net.JoinHostPort(host, portLookup), Native: net.JoinHostPort(host, portNative),
		DataPath: o.volume(i), Namespace: network.Namespace(i), binary: binary,
	}
	n.LogPath = filepath.Join(o.Dir, n.Name+".log")
	n.Args = []string{
		"serve", "--data-path", n.DataPath, "--node-id", n.Name, "--cluster-name", "spread", "--broadcast-address", host,
		"--nsq-address", n.NSQ, "--http-address", n.HTTP, "--lookup-address", n.Lookup,
		"--native-address", n.Native, "--cluster-address", net.JoinHostPort(host, portPeer), "--cluster-peers", peers,
		"--cluster-secret-file", filepath.Join(o.Dir, secretName),
	}
	if votes {
		etcd := network.Address(i, Metadata)
		n.Args = append(n.Args, "--etcd-peer-address", net.JoinHostPort(etcd, portEtcdPeer), "--etcd-client-address",
			net.JoinHostPort(etcd, portEtcdClient),
			"--etcd-data-path", filepath.Join(o.Dir, n.Name+".etcd"))
	}
	n.Args = append(n.Args, o.Serve...)
	return n
}
