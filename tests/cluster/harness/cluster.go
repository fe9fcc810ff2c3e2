package harness

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"penstock/tests/support/porttest"
)

// Options say what to start.
type Options struct {
	Dir   string   // for data and logs; must exist
	Nodes int      // 3
	Serve []string // more flags of `penstock serve`, for every node
	// Binary is the engine to run; empty: the one of this tree.
	Binary string
	Tags   string // build tags of the tree's engine; empty: those of the product
	// Volumes are directories that hold the data of nodes instead of Dir, by the node's number from 0: a small file
	// system, for a disk that fills up or hangs. Only Spread and Single look at it. The node's etcd stays in Dir: it does
	// not survive a full disk.
	Volumes map[int]string
	// Network is where Spread's nodes live; nil: on a Net of their own. Who made it takes it away after Close.
	Network Network
}

// binary is where the engine is.
func (o *Options) binary() (string, error) {
	if o.Binary != "" {
		return o.Binary, nil
	}
	return tagged(o.Tags)
}

// Cluster is a set of running nodes.
type Cluster struct {
	Nodes []*Node
	Net   *Net // of Spread; nil without one

	dev    *process
	stderr *bytes.Buffer // of dev-cluster; read only after it ended
}

// Single starts one node without a cluster.
func Single(ctx context.Context, o Options) (*Cluster, error) {
	binary, err := o.binary()
	if err != nil {
		return nil, err
	}
	base, err := porttest.Range(4)
	if err != nil {
		return nil, err
	}
	address := func(i int) string { return "127.0.0.1:" + strconv.Itoa(base+i) }
	n := &Node{
		Name: "n1", NSQ: address(0), HTTP: address(1), Lookup: address(2), Native: address(3),
		DataPath: o.volume(0), LogPath: filepath.Join(o.Dir, "n1.log"), binary: binary,
	}
	n.Args = append([]string{
		"serve", "--data-path", n.DataPath, "--node-id", n.Name, "--broadcast-address", "127.0.0.1",
		"--nsq-address", n.NSQ, "--http-address", n.HTTP, "--lookup-address", n.Lookup,
		"--native-address", n.Native,
	}, o.Serve...)
	c := &Cluster{Nodes: []*Node{n}}
	if err := n.Restart(ctx); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return c, nil
}

func (o *Options) volume(i int) string {
	if v := o.Volumes[i]; v != "" {
		return v
	}
	return filepath.Join(o.Dir, "n"+strconv.Itoa(i+1))
}

// readyLine is what `penstock dev-cluster` prints for each node.
type readyLine struct {
	Node   string   `json:"node"`
	PID    int      `json:"pid"`
	NSQ    string   `json:"nsq"`
	HTTP   string   `json:"http"`
	Lookup string   `json:"lookup"`
	Native string   `json:"native"`
	Args   []string `json:"args"`
}

// Dev runs `penstock dev-cluster` and returns when all nodes are ready.
func Dev(ctx context.Context, o Options) (*Cluster, error) {
	binary, err := o.binary()
	if err != nil {
		return nil, err
	}
	base, err := porttest.Range(10 * o.Nodes)
	if err != nil {
		return nil, err
	}
	args := []string{
		"dev-cluster", "--nodes", strconv.Itoa(o.Nodes), "--data-path", o.Dir, "--base-port", strconv.Itoa(base),
	}
	if len(o.Serve) > 0 {
		args = append(append(args, "--"), o.Serve...)
	}
	cmd := exec.Command(binary, args...)
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	c := &Cluster{stderr: new(bytes.Buffer)}
	cmd.Stdout, cmd.Stderr = w, c.stderr
	c.dev, err = start(cmd)
	_ = w.Close() // its child has one
	if err != nil {
		return nil, errors.Join(err, r.Close())
	}
	if err := c.readLines(ctx, r, o, binary); err != nil {
		err = errors.Join(err, c.Close())
		return nil, fmt.Errorf("dev-cluster: %w\n%s", err, c.stderr)
	}
	if err := c.Healthy(ctx); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return c, nil
}

// readLines waits for the nodes' lines and then keeps the pipe empty until dev-cluster ends.
func (c *Cluster) readLines(ctx context.Context, r *os.File, o Options, binary string) error {
	if deadline, ok := ctx.Deadline(); ok {
		_ = r.SetReadDeadline(deadline)
	}
	in := bufio.NewScanner(r)
	for len(c.Nodes) < o.Nodes {
		if !in.Scan() {
			return errors.Join(fmt.Errorf("%d of %d nodes are ready, no more come: %w",
				len(c.Nodes), o.Nodes, errors.Join(in.Err(), io.ErrUnexpectedEOF)), r.Close())
		}
		var l readyLine
		d := json.NewDecoder(bytes.NewReader(in.Bytes()))
		d.DisallowUnknownFields()
		if err := d.Decode(&l); err != nil {
			return errors.Join(fmt.Errorf("line %q: %w", in.Text(), err), r.Close())
		}
		p, err := adopt(l.PID)
		if err != nil {
			return errors.Join(err, r.Close())
		}
		c.Nodes = append(c.Nodes, &Node{
			Name: l.Node, NSQ: l.NSQ, HTTP: l.HTTP, Lookup: l.Lookup, Native: l.Native, Args: l.Args,
			DataPath: filepath.Join(o.Dir, l.Node), LogPath: filepath.Join(o.Dir, l.Node+".log"), binary: binary, proc: p,
		})
	}
	_ = r.SetReadDeadline(time.Time{})
	go func() {
		_, _ = io.Copy(io.Discard, r)
		_ = r.Close()
	}()
	sortNodes(c.Nodes)
	return nil
}

// Join starts one more node of a cluster that Dev has made, with the settings of its first node, and returns when the
// node is ready. It holds no metadata.
func (c *Cluster) Join(ctx context.Context, name string) (*Node, error) {
	first := c.Nodes[0]
	base, err := porttest.Range(5)
	if err != nil {
		return nil, err
	}
	address := func(i int) string { return "127.0.0.1:" + strconv.Itoa(base+i) }
	n := &Node{
		Name: name, NSQ: address(0), HTTP: address(1), Lookup: address(2), Native: address(4),
		binary:   first.binary,
		DataPath: filepath.Join(filepath.Dir(first.DataPath), name), Args: slices.Clone(first.Args),
		LogPath: filepath.Join(filepath.Dir(first.DataPath), name+".log"),
	}
	own := map[string]string{
		"--data-path": n.DataPath, "--node-id": name, "--nsq-address": n.NSQ, "--http-address": n.HTTP,
		"--lookup-address": n.Lookup, "--cluster-address": address(3), "--native-address": n.Native,
	}
	for flag, value := range own {
		i := slices.Index(n.Args, flag)
		if i < 0 || i+1 == len(n.Args) {
			return nil, fmt.Errorf("node %s was started without %s: %q", first.Name, flag, n.Args)
		}
		n.Args[i+1] = value
	}
	c.Nodes = append(c.Nodes, n)
	return n, n.Restart(ctx)
}

// Forget takes a node that was stopped for good out of the cluster's.
func (c *Cluster) Forget(n *Node) {
	c.Nodes = slices.DeleteFunc(c.Nodes, func(o *Node) bool { return o == n })
}

// Node returns a node by its name.
func (c *Cluster) Node(name string) *Node {
	for _, n := range c.Nodes {
		if n.Name == name {
			return n
		}
	}
	return nil
}

// Close ends everything that runs, at once, and takes the namespaces away. The data stays.
func (c *Cluster) Close() error {
	var errs []error
	for _, n := range c.Nodes {
		if n.Running() {
			errs = append(errs, n.Kill())
		}
	}
	if c.dev != nil {
		errs = append(errs, c.endDev())
	}
	if c.Net != nil {
		errs = append(errs, c.Net.Close())
	}
	return errors.Join(errs...)
}

func (c *Cluster) endDev() error {
	p := c.dev
	c.dev = nil
	if err := p.signal(syscall.SIGTERM); err != nil {
		return err
	}
	ended, err := p.wait(endTimeout)
	if err == nil && !ended {
		err = errors.Join(fmt.Errorf("dev-cluster did not end within %v", endTimeout), p.signal(syscall.SIGKILL))
	}
	return errors.Join(err, p.close())
}

// PrintLogs writes the end of every node's log.
func (c *Cluster) PrintLogs(w io.Writer, bytes int64) {
	for _, n := range c.Nodes {
		fmt.Fprintf(w, "---- log of %s (%s)\n%s\n", n.Name, n.LogPath, n.LogTail(bytes))
	}
}

// Move gives a stopped node of Dev another address for other nodes and for etcd from its next start on: the host, and
// ports that nobody has. lists are the nodes whose list of peers has the new address from their next start on.
func (c *Cluster) Move(n *Node, host string, lists ...*Node) error {
	base, err := porttest.Range(3)
	if err != nil {
		return err
	}
	peer := net.JoinHostPort(host, strconv.Itoa(base))
	n.Args = slices.Clone(n.Args)
	for i, flag := range []string{"--cluster-address", "--etcd-peer-address", "--etcd-client-address"} {
		at := slices.Index(n.Args, flag)
		if at < 0 && i == 0 {
			return fmt.Errorf("node %s was started without %s: %q", n.Name, flag, n.Args)
		}
		if at >= 0 { // a node without etcd has only the first
			n.Args[at+1] = net.JoinHostPort(host, strconv.Itoa(base+i))
		}
	}
	for _, l := range lists {
		l.Args = slices.Clone(l.Args)
		at := slices.Index(l.Args, "--cluster-peers") + 1
		peers := strings.Split(l.Args[at], ",")
		for i := range peers {
			if strings.HasPrefix(peers[i], n.Name+"=") {
				peers[i] = n.Name + "=" + peer
			}
		}
		l.Args[at] = strings.Join(peers, ",")
	}
	return nil
}
