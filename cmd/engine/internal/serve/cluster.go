package serve

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"

	"penstock/cmd/engine/internal/cli"
	"penstock/cmd/engine/internal/settings"
	"penstock/internal/cluster"
	"penstock/internal/cluster/admin"
	"penstock/internal/cluster/etcd"
	"penstock/internal/cluster/kv"
	"penstock/internal/cluster/trust"
	"penstock/internal/meta"
	"penstock/internal/node"
	"penstock/internal/node/health"
	"penstock/internal/server"
	"penstock/netproto"
	"penstock/replicate"
	"penstock/segment"
)

// anew is the command that sets the files of this node's etcd aside.
func anew(n *settings.Options) string {
	c := &n.Cluster
	command := "penstock rebuild-cluster --rejoin " + n.Engine.DataPath
	if c.EtcdDataPath != "" {
		command += " --etcd-data-path " + n.Engine.NodeID + "=" + c.EtcdDataPath
	}
	return command
}

// clusterPart holds the parts of the cluster that serve opens and closes beside the engine. The goroutine that reads
// the files of credentials begins before the node joins, so mu guards what joinable sets meanwhile. After the node has
// joined, nothing here changes, and readers need no lock.
type clusterPart struct {
	trust  *trust.Trust
	certs  *certificates
	server *server.Server // set when it listens, before it serves; nil until then

	mu     sync.Mutex
	member *etcd.Member // nil: this node is only a client of etcd
	kv     kv.Store     // of store
	store  meta.Store
}

// newPart returns the clusterPart that joinable fills in, or nil for a single node. The caller has checked the
// settings.
func newPart(c *settings.Cluster, t *trust.Trust, certs *certificates) *clusterPart {
	if c.Address == "" {
		return nil
	}
	return &clusterPart{trust: t, certs: certs}
}

// joinable checks the settings and connects to etcd. It returns nil for a single node. The engine takes ownership of
// everything in the options. After an error the caller closes part.
func joinable(
	ctx context.Context, n *settings.Options, part *clusterPart, log *slog.Logger,
) (*node.ClusterOptions, error) {
	c := &n.Cluster
	if c.Address == "" {
		if c.Peers != "" || c.EtcdEndpoints != "" {
			return nil, cli.Fail(cli.ExitUsage, errors.New("cluster-peers and etcd-endpoints need a cluster-address: the "+
				"HOST:PORT of this node for the others"))
		}
		return nil, nil
	}
	if n.Engine.NodeID == "" || (c.Peers == "") == (c.EtcdEndpoints == "") {
		return nil, cli.Fail(cli.ExitUsage, errors.New("a node of a cluster needs a node-id, and either cluster-peers or "+
			"etcd-endpoints"))
	}
	ctx, cancel := context.WithTimeout(ctx, c.JoinTimeout)
	defer cancel()
	ln, err := net.Listen("tcp", c.Address)
	if err != nil {
		return nil, cli.Fail(cli.ExitAddress, addressError(n, err))
	}
	self := advertised(n, ln.Addr())
	part.certs.warnOfNames("tls-cert", "--broadcast-address", self.NSQ, self.HTTPS, self.Native)
	part.certs.warnOfNames("cluster-tls-cert", "--cluster-address and --cluster-peers", self.Peer,
		c.Listed(n.Engine.NodeID))
	part.certs.warnOfNode(n.Engine.NodeID, c.Trust.Names)
	n.Engine.Startup.Enter("waits for a majority of the metadata store's members")
	endpoints, err := part.endpoints(ctx, n, log)
	if err == nil {
		err = part.dial(ctx, n, endpoints, log)
	}
	if err != nil {
		_ = ln.Close()
		return nil, cli.Fail(memberExit(err), err)
	}
	return &node.ClusterOptions{
		Store: part.store, Listener: ln, Trust: part.trust.Peer(), Node: self, Replication: c.ReplicationConfig(),
		JoinTimeout: c.JoinTimeout, LeaveTimeout: c.LeaveTimeout, MaxHandshakes: c.MaxHandshakes,
		PreferredLeader: cluster.PreferredLeader, StoreNodes: c.StoreNodes(), StoreRenewed: part.renewed(),
		StoreState: part.state,
	}, nil
}

// errBeginsElsewhere is for a node that is to begin the metadata store anew and runs none.
var errBeginsElsewhere = errors.New("this data directory was named first to penstock rebuild-cluster, and the node " +
	"runs no etcd: run the command again, with the data directory of one of the nodes in cluster-peers first")

// endpoints starts the embedded etcd member, if this node has one, and returns the addresses of etcd.
func (p *clusterPart) endpoints(ctx context.Context, n *settings.Options, log *slog.Logger) ([]string, error) {
	c := &n.Cluster
	begins := func() bool {
		_, err := os.Stat(filepath.Join(n.Engine.DataPath, cluster.SeedFile))
		return err == nil
	}
	if c.EtcdEndpoints != "" {
		if begins() {
			return nil, errBeginsElsewhere
		}
		return strings.Split(c.EtcdEndpoints, ","), nil
	}
	peers, err := etcd.ParsePeers(c.Peers)
	if err != nil {
		return nil, err
	}
	voters := etcd.Voters(peers)
	if err := secureEtcd(n, voters, p.trust); err != nil {
		return nil, err
	}
	self := slices.IndexFunc(voters, func(v etcd.Voter) bool { return v.Name == n.Engine.NodeID })
	if self < 0 {
		if begins() {
			return nil, errBeginsElsewhere
		}
		return etcd.Endpoints(voters, ""), etcd.Leave(ctx, etcd.MemberOptions{
			Name: n.Engine.NodeID, Voters: voters, Peers: peers, Dir: c.EtcdDir(n), Token: c.Name, TLS: c.EtcdTLS, Log: log,
		})
	}
	o := etcd.MemberOptions{
		Name: n.Engine.NodeID, Voters: voters, Peers: peers, Dir: c.EtcdDir(n),
		Token: c.Name, Heartbeat: c.EtcdHeartbeat, Election: c.EtcdElection, TLS: c.EtcdTLS, Log: log,
		Prefix: cluster.NodeRows(settings.KeyPrefix(c.Name)), Older: past(n, log), Fatal: endProcess, Anew: anew(n),
		EntersPrefix: settings.KeyPrefix(c.Name) + "restored",
		Enters:       func(restored []kv.Entry) error { return checkMark(n, restored) },
		Admit:        p.admits(c, peers),
	}
	o.ListenPeer, o.ListenClient = c.EtcdListens(voters[self])
	if err := seed(ctx, n, &o, log); err != nil {
		return nil, err
	}
	if err := labelTraces(); err != nil {
		return nil, err
	}
	member, err := etcd.Start(o)
	if err != nil {
		return nil, err
	}
	p.mu.Lock()
	p.member = member
	p.mu.Unlock()
	return member.Endpoints(), member.Ready(ctx)
}

func (p *clusterPart) dial(ctx context.Context, n *settings.Options, endpoints []string, log *slog.Logger) error {
	c := &n.Cluster
	s, err := etcd.Dial(ctx, endpoints, etcd.Options{
		TLS: c.EtcdTLS, Username: c.EtcdUser, Password: c.EtcdPassword, Log: log, DialTimeout: c.JoinTimeout,
		Learn: c.EtcdEndpoints == "",
		Opened: func(s kv.Store) {
			p.mu.Lock()
			defer p.mu.Unlock()
			p.kv = s
		},
	})
	if err != nil {
		return err
	}
	if err := checkRestored(ctx, n, s); err != nil {
		return errors.Join(err, s.Close())
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.store = cluster.New(s, cluster.Options{
		Logger: log, Prefix: settings.KeyPrefix(c.Name), LeaseTTL: c.Lease, DefaultReplicas: c.Replicas,
		RebalanceAfter: c.Rebalance.After, RebalanceMoves: c.Rebalance.Moves, Proofs: p.trust.Proofs,
	})
	return nil
}

// state returns what is known of etcd besides whether it answers.
func (p *clusterPart) state() health.Store {
	s := health.Store{Full: etcd.Full(p.kv)}
	if p.member != nil {
		s.Apart, s.Fault = p.member.Apart(), p.member.Fault()
	}
	return s
}

// advertised returns the description of this node for other nodes and for lookups. peer is where it listens for other
// nodes. The ports of the other addresses are known: see nsq.Front.Ports.
func advertised(n *settings.Options, peer net.Addr) meta.Node {
	c := &n.Cluster
	host, told := n.NSQ.BroadcastAddress, n.NSQ.Announced
	peerHost, _, _ := net.SplitHostPort(c.Address)
	_, peerPort, _ := net.SplitHostPort(peer.String())
	return meta.Node{
		Version: n.Version, Host: host, Rack: c.Rack,
		Peer: reachable(net.JoinHostPort(peerHost, peerPort), host, 0),
		NSQ:  reachable(n.NSQ.TCPAddress, host, told.TCP), HTTP: reachable(n.NSQ.HTTPAddress, host, told.HTTP),
		HTTPS: reachable(n.NSQ.HTTPSAddress, host, 0), Lookup: reachable(n.NSQ.LookupAddress, host, 0),
		Native: reachable(n.NSQ.NativeAddress, host, told.Native),
	}
}

// reachable returns an address that other machines can use. For a listener that they cannot dial by its host, because
// it is on all interfaces or has a zone, that is the broadcast address with the listener's port; and with the port
// told, if that is not 0.
func reachable(address, broadcast string, told int) string {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return "" // off
	}
	if _, err := strconv.Atoi(port); err != nil {
		return ""
	}
	if told != 0 {
		return net.JoinHostPort(broadcast, strconv.Itoa(told))
	}
	if netproto.CheckDialled(host) != nil {
		host = broadcast
	}
	return net.JoinHostPort(host, port)
}

// handler returns the handler of /cluster/, which operators use, or nil for a single node.
func (p *clusterPart) handler(n *settings.Options, e *node.Engine) http.Handler {
	if p == nil {
		return nil
	}
	verify := func(ctx context.Context, topic string, partition uint32, at int64) (any, error) {
		return e.VerifySome(ctx, topic, partition, segment.Offset(at))
	}
	faults := func(ctx context.Context, node replicate.NodeID) (out []admin.Fault, err error) {
		all, err := e.FaultsOf(ctx, node)
		for _, f := range all {
			out = append(out, admin.Fault(f))
		}
		return out, err
	}
	describe := func(ctx context.Context, id meta.PartitionID, node replicate.NodeID) (*admin.Copy, error) {
		a, err := e.CopyOf(ctx, id, node)
		if err != nil {
			return nil, err
		}
		return &admin.Copy{
			End: int64(a.End), Committed: int64(a.Committed), Messages: int64(a.NextID), Epoch: uint64(a.Epoch),
			Written: a.Written, Leads: a.Leads, Damaged: a.Damaged, Shortened: a.Shortened, Contested: a.Contested,
		}, nil
	}
	create := func(ctx context.Context, name string, partitions, replicas int) error {
		_, err := p.server.CreateTopic(ctx, name, node.TopicOptions{Partitions: partitions, Replicas: replicas})
		return err
	}
	mayExpand := func(ctx context.Context, topic string, partitions int) error {
		t, ok := e.Catalog().LookupTopic(topic)
		if !ok {
			return nil
		}
		return t.CheckPartitions(ctx, partitions)
	}
	return admin.Handler(p.store, admin.Self{
		Name: n.Engine.NodeID, Verify: verify, Faults: faults, Copy: describe, Create: create, Health: e.HealthFacts,
		Shortened: e.CopyShortened, MayExpand: mayExpand,
		Forget: func(ctx context.Context, name string) error { return etcd.Remove(ctx, p.kv, name) },
	})
}

func (p *clusterPart) close(log *slog.Logger) {
	if p == nil || p.member == nil {
		return
	}
	if err := p.member.Close(); err != nil {
		log.Warn("the embedded etcd member did not end well", "error", err)
	}
}

// failed returns a channel that is closed when the embedded etcd member has ended by itself, so that this node cannot
// vote any more.
func (p *clusterPart) failed() <-chan struct{} {
	if p == nil || p.member == nil {
		return nil
	}
	return p.member.Done()
}

// renewed returns where the old files of the embedded etcd member are, if this start set them aside and added the
// member to its cluster anew; otherwise "".
func (p *clusterPart) renewed() string {
	if p.member == nil {
		return ""
	}
	return p.member.Kept()
}

// labelTraces makes the trace of a panic show the labels of goroutines: nobody can recover from one on a goroutine of
// the embedded etcd, which has a label that says what it means. The runtime takes this setting only here.
func labelTraces() error {
	return os.Setenv("GODEBUG", strings.TrimPrefix(os.Getenv("GODEBUG")+",tracebacklabels=1", ","))
}

// memberExit returns the exit code of a node whose part of the metadata store fails with err.
func memberExit(err error) int {
	if errors.Is(err, etcd.ErrDirectory) {
		return cli.ExitData
	}
	return cli.ExitOther
}

// endProcess prints err and exits. The embedded etcd calls it (etcd.MemberOptions.Fatal) when it has found that it
// cannot go on. It may hold locks then, so the process does not shut down in order. As after a kill, everything that
// was answered OK is on the disk.
func endProcess(err error) {
	fmt.Fprintf(os.Stderr, "penstock: %s\n", cli.Sentence(err))
	os.Exit(memberExit(err))
}

func (p *clusterPart) failure() error {
	return fmt.Errorf("the embedded etcd member ended: %w", p.member.Err())
}
