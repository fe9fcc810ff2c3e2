package main

import (
	"cmp"
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
	"time"

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

// clusterSettings are the settings that make a node a member of a cluster.
type clusterSettings struct {
	name          string
	address       string // address for the other nodes; empty: a single node
	peers         string
	etcdPeer      string
	etcdClient    string
	etcdDataPath  string
	etcdEndpoints string
	etcdUser      string
	etcdPassword  string

	etcdPasswordFile string

	etcdTLS       etcd.TLSFiles
	tlsNodes      string
	trust         trust.Options
	insecure      bool
	maxHandshakes int
	trusts        *trust.Trust // set by checkTrust
	certs         *certificates
	etcdHeartbeat time.Duration
	etcdElection  time.Duration
	lease         time.Duration
	replicas      int
	rack          string
	rebalance     struct {
		after time.Duration
		moves int
	}
	replication  replicate.Config
	lagMax       time.Duration
	joinTimeout  time.Duration
	leaveTimeout time.Duration
}

func clusterRows(c *clusterSettings) []*setting {
	return slices.Concat(trustRows(c), etcdRows(c), []*setting{
		row("cluster-address", "", text(&c.address),
			"HOST:PORT to listen on for the other nodes of the cluster; empty means a single node"),
		row("cluster-max-handshakes", "64", count(&c.maxHandshakes, 1),
			"maximum number of connections to cluster-address that have not proved yet that they come from a node"),
		row("cluster-name", "penstock", text(&c.name),
			"name of the cluster; clusters that share an etcd need different names"),
		row("cluster-peers", "", text(&c.peers),
			"NAME=HOST:PORT,... (node-id and cluster-address) of the one, three or five nodes that run etcd, on the next two "+
				"ports"),
		row("lease", "3s", duration(&c.lease, time.Second),
			"a node that has been silent for this long is considered dead; the node itself stops serving before that"),
		row("replicas", "3", count(&c.replicas, 1),
			"number of replicas of a new topic; fewer if there are fewer live nodes"),
		row("rack", "", text(&c.rack),
			"name of the rack or zone in which this node stands; the replicas of a partition are spread over the racks"),
		row("rebalance-after", "30m", duration(&c.rebalance.after, 0),
			"spread replicas anew when a node has joined, or the only missing one has been away, for this long; 0s means "+
				"only on command"),
		row("rebalance-moves", "4", count(&c.rebalance.moves, 1),
			"maximum number of partitions that a rebalance copies at the same time"),
		row("replica-lag-max", "2s", duration(&c.lagMax, time.Millisecond),
			"a replica that has been behind for this long is removed from the in-sync replicas"),
		row("catch-up-bytes-per-second", "0", size64(&c.replication.CatchUpBytesPerSec, 0),
			"maximum bytes of old messages per second to one replica that is catching up; 0 means no limit"),
		row("join-timeout", "2m", duration(&c.joinTimeout, time.Millisecond),
			"maximum time to wait for a majority of etcd at startup"),
		row("leave-timeout", "3s", duration(&c.leaveTimeout, time.Millisecond),
			"maximum time to spend on handing over leaderships after SIGTERM"),
	})
}

// trustRows are the settings by which the nodes of a cluster know each other.
func trustRows(c *clusterSettings) []*setting {
	return []*setting{
		row("cluster-secret-file", "", text(&c.trust.SecretFile),
			"file with the secret that all nodes share, at least 32 random characters; while it is replaced, a second line "+
				"has the other"),
		row("cluster-tls-ca", "", text(&c.trust.CA),
			"PEM file with the authority of the nodes' certificates; penstock cluster init-tls makes one"),
		row("cluster-tls-cert", "", text(&c.trust.Cert),
			"PEM file with this node's certificate for the other nodes and the embedded etcd"),
		row("cluster-tls-key", "", text(&c.trust.Key),
			"PEM file with the private key for cluster-tls-cert"),
		row("cluster-tls-names", string(trust.NamesOfNodes), choice((*string)(&c.trust.Names), string(trust.NamesOfNodes),
			string(trust.NamesRequired), string(trust.NamesIgnored)),
			"whether a certificate speaks only for the nodes that it names: auto: if it names nodes of the cluster; "+
				"required: always; ignored: never"),
		row("cluster-tls-nodes", "", text(&c.tlsNodes),
			"NAME,... of nodes, with * and ?, whose certificates reach this node's etcd before they join; only with "+
				"cluster-tls-names = required"),
		row("cluster-insecure", "false", boolean(&c.insecure),
			"start without secret and certificates although other machines can reach the cluster's ports, and change "+
				"everything"),
	}
}

// etcdRows are the settings of the store of the cluster's metadata.
func etcdRows(c *clusterSettings) []*setting {
	return []*setting{
		row("etcd-peer-address", "", text(&c.etcdPeer),
			"HOST:PORT the embedded etcd listens on for its other members; empty means the port of cluster-address + 1"),
		row("etcd-client-address", "", text(&c.etcdClient),
			"HOST:PORT the embedded etcd listens on for its clients; empty means the port of cluster-address + 2"),
		row("etcd-data-path", "", text(&c.etcdDataPath),
			"directory of the embedded etcd, whose member stops while this disk is full; empty means etcd in data-path"),
		row("etcd-endpoints", "", text(&c.etcdEndpoints),
			"HOST:PORT,... of an existing etcd to use instead of cluster-peers"),
		row("etcd-user", "", text(&c.etcdUser), "user name for etcd-endpoints"),
		row("etcd-password", "", text(&c.etcdPassword),
			"password for etcd-endpoints; refused on a command line, which everybody on the machine can read").kept(),
		row("etcd-password-file", "", text(&c.etcdPasswordFile),
			"file with the password for etcd-endpoints that others on this machine may not read"),
		row("etcd-ca-file", "", text(&c.etcdTLS.CA), "PEM file with etcd's certificate authority; empty means no TLS"),
		row("etcd-cert-file", "", text(&c.etcdTLS.Cert), "PEM file with this node's certificate for etcd"),
		row("etcd-key-file", "", text(&c.etcdTLS.Key), "PEM file with the private key for etcd-cert-file"),
		row("etcd-heartbeat", "50ms", duration(&c.etcdHeartbeat, time.Millisecond),
			"time between heartbeats of the embedded etcd's leader"),
		row("etcd-election", "500ms", duration(&c.etcdElection, time.Millisecond),
			"the embedded etcd elects a new leader when the old one has been silent for this long"),
	}
}

// addresses returns the addresses on which this node listens for other nodes, as far as the settings are right;
// joinable reports those that are not.
func (c *clusterSettings) addresses(self string) []string {
	if c.address == "" {
		return nil
	}
	all := []string{c.address}
	peers, err := etcd.ParsePeers(c.peers)
	if c.peers == "" || err != nil {
		return all
	}
	for _, v := range etcd.Voters(peers) {
		if v.Name == self {
			peer, client := c.etcdListens(v)
			all = append(all, peer, client)
		}
	}
	return all
}

// anew is the command that sets the files of this node's etcd aside.
func (c *clusterSettings) anew(n *options) string {
	command := "penstock rebuild-cluster --rejoin " + n.engine.DataPath
	if c.etcdDataPath != "" {
		command += " --etcd-data-path " + n.engine.NodeID + "=" + c.etcdDataPath
	}
	return command
}

// etcdListens returns where the embedded etcd listens for its members and for clients: beside cluster-address, so that
// cluster-peers may have host names, or ports that are mapped. A port of cluster-address that the kernel chooses tells
// nothing; then it is where v says.
func (c *clusterSettings) etcdListens(v etcd.Voter) (peer, client string) {
	peer, client = v.Peer, v.Client
	host, text, err := net.SplitHostPort(c.address)
	if port, perr := strconv.Atoi(text); err == nil && perr == nil && port > 0 {
		peer = net.JoinHostPort(host, strconv.Itoa(port+1))
		client = net.JoinHostPort(host, strconv.Itoa(port+2))
	}
	return cmp.Or(c.etcdPeer, peer), cmp.Or(c.etcdClient, client)
}

func (n *options) leaveTimeout() time.Duration { return n.cluster.leaveTimeout }

// clusterPart holds the cluster's parts that serve owns besides the engine. The files of credentials are looked at from
// before the node joins: mu guards what joinable sets meanwhile. Who comes later needs no lock.
type clusterPart struct {
	trust  *trust.Trust
	server *server.Server // set when it listens, before it serves; nil until then

	mu     sync.Mutex
	member *etcd.Member // nil: this node is only a client of etcd
	kv     kv.Store     // of store
	store  meta.Store
}

// part returns the clusterPart that joinable fills in; nil for a single node. The settings have been judged.
func (c *clusterSettings) part() *clusterPart {
	if c.address == "" {
		return nil
	}
	return &clusterPart{trust: c.trusts}
}

// joinable checks the settings and connects to etcd. It returns nil for a single node. The engine takes ownership of
// everything in the options. After an error the caller closes part.
func joinable(
	ctx context.Context, n *options, part *clusterPart, log *slog.Logger,
) (*node.ClusterOptions, error) {
	c := &n.cluster
	if c.address == "" {
		if c.peers != "" || c.etcdEndpoints != "" {
			return nil, &exitError{
				exitUsage,
				errors.New("cluster-peers and etcd-endpoints need a cluster-address: the HOST:PORT of this node for the others"),
			}
		}
		return nil, nil
	}
	if n.engine.NodeID == "" || (c.peers == "") == (c.etcdEndpoints == "") {
		return nil, &exitError{
			exitUsage, errors.New("a node of a cluster needs a node-id, and either cluster-peers or etcd-endpoints"),
		}
	}
	ctx, cancel := context.WithTimeout(ctx, c.joinTimeout)
	defer cancel()
	ln, err := net.Listen("tcp", c.address)
	if err != nil {
		return nil, &exitError{exitAddress, n.addressError(err)}
	}
	self := c.advertised(n, ln.Addr())
	c.certs.warnOfNames("tls-cert", "--broadcast-address", self.NSQ, self.HTTPS, self.Native)
	c.certs.warnOfNames("cluster-tls-cert", "--cluster-address and --cluster-peers", self.Peer, c.listed(n.engine.NodeID))
	c.certs.warnOfNode(n.engine.NodeID, c.trust.Names)
	n.engine.Startup.Enter("waits for a majority of the metadata store's members")
	endpoints, err := part.endpoints(ctx, n, log)
	if err == nil {
		err = part.dial(ctx, n, endpoints, log)
	}
	if err != nil {
		_ = ln.Close()
		return nil, &exitError{memberExit(err), err}
	}
	c.replication.LagMaxNs = int64(c.lagMax)
	return &node.ClusterOptions{
		Store: part.store, Listener: ln, Trust: c.trusts.Peer(), Node: self, Replication: c.replication,
		JoinTimeout: c.joinTimeout, LeaveTimeout: c.leaveTimeout, MaxHandshakes: c.maxHandshakes,
		PreferredLeader: cluster.PreferredLeader, StoreNodes: c.storeNodes(), StoreRenewed: part.renewed(),
		StoreState: part.state,
	}, nil
}

// storeNodes returns the names of the nodes that run the embedded etcd; nil if an existing etcd is used. joinable has
// checked the settings.
func (c *clusterSettings) storeNodes() (names []string) {
	if c.etcdEndpoints != "" {
		return nil
	}
	peers, _ := etcd.ParsePeers(c.peers)
	for _, v := range etcd.Voters(peers) {
		names = append(names, v.Name)
	}
	return names
}

// errBeginsElsewhere is for a node that is to begin the metadata store anew and runs none.
var errBeginsElsewhere = errors.New("this data directory was named first to penstock rebuild-cluster, and the node " +
	"runs no etcd: run the command again, with the data directory of one of the nodes in cluster-peers first")

// endpoints starts the embedded etcd member, if this node has one, and returns the addresses of etcd.
func (p *clusterPart) endpoints(ctx context.Context, n *options, log *slog.Logger) ([]string, error) {
	c := &n.cluster
	begins := func() bool {
		_, err := os.Stat(filepath.Join(n.engine.DataPath, cluster.SeedFile))
		return err == nil
	}
	if c.etcdEndpoints != "" {
		if begins() {
			return nil, errBeginsElsewhere
		}
		return strings.Split(c.etcdEndpoints, ","), nil
	}
	peers, err := etcd.ParsePeers(c.peers)
	if err != nil {
		return nil, err
	}
	voters := etcd.Voters(peers)
	if err := c.secureEtcd(n, voters, p.trust); err != nil {
		return nil, err
	}
	self := slices.IndexFunc(voters, func(v etcd.Voter) bool { return v.Name == n.engine.NodeID })
	if self < 0 {
		if begins() {
			return nil, errBeginsElsewhere
		}
		return etcd.Endpoints(voters, ""), etcd.Leave(ctx, etcd.MemberOptions{
			Name: n.engine.NodeID, Voters: voters, Peers: peers, Dir: c.etcdDir(n), Token: c.name, TLS: c.etcdTLS, Log: log,
		})
	}
	o := etcd.MemberOptions{
		Name: n.engine.NodeID, Voters: voters, Peers: peers, Dir: c.etcdDir(n),
		Token: c.name, Heartbeat: c.etcdHeartbeat, Election: c.etcdElection, TLS: c.etcdTLS, Log: log,
		Prefix: cluster.NodeRows(keyPrefix(c.name)), Older: c.past(n, log), Fatal: endProcess, Anew: c.anew(n),
		EntersPrefix: keyPrefix(c.name) + "restored",
		Enters:       func(restored []kv.Entry) error { return c.checkMark(n, restored) },
		Admit:        p.admits(c, peers),
	}
	o.ListenPeer, o.ListenClient = c.etcdListens(voters[self])
	if err := c.seed(ctx, n, &o, log); err != nil {
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

func (p *clusterPart) dial(ctx context.Context, n *options, endpoints []string, log *slog.Logger) error {
	c := &n.cluster
	s, err := etcd.Dial(ctx, endpoints, etcd.Options{
		TLS: c.etcdTLS, Username: c.etcdUser, Password: c.etcdPassword, Log: log, DialTimeout: c.joinTimeout,
		Learn: c.etcdEndpoints == "",
		Opened: func(s kv.Store) {
			p.mu.Lock()
			defer p.mu.Unlock()
			p.kv = s
		},
	})
	if err != nil {
		return err
	}
	if err := c.checkRestored(ctx, n, s); err != nil {
		return errors.Join(err, s.Close())
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.store = cluster.New(s, cluster.Options{
		Logger: log, Prefix: keyPrefix(c.name), LeaseTTL: c.lease, DefaultReplicas: c.replicas,
		RebalanceAfter: c.rebalance.after, RebalanceMoves: c.rebalance.moves, Proofs: c.trusts.Proofs,
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
func (c *clusterSettings) advertised(n *options, peer net.Addr) meta.Node {
	host, told := n.nsq.BroadcastAddress, n.nsq.Announced
	peerHost, _, _ := net.SplitHostPort(c.address)
	_, peerPort, _ := net.SplitHostPort(peer.String())
	return meta.Node{
		Version: version, Host: host, Rack: c.rack,
		Peer: reachable(net.JoinHostPort(peerHost, peerPort), host, 0),
		NSQ:  reachable(n.nsq.TCPAddress, host, told.TCP), HTTP: reachable(n.nsq.HTTPAddress, host, told.HTTP),
		HTTPS: reachable(n.nsq.HTTPSAddress, host, 0), Lookup: reachable(n.nsq.LookupAddress, host, 0),
		Native: reachable(n.nsq.NativeAddress, host, told.Native),
	}
}

// listed returns the address under which cluster-peers has a node; "": it does not.
func (c *clusterSettings) listed(name string) string {
	peers, _ := etcd.ParsePeers(c.peers) // who uses them says what is wrong
	for _, p := range peers {
		if p.Name == name {
			return p.Peer
		}
	}
	return ""
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
func (p *clusterPart) handler(n *options, e *node.Engine, log *slog.Logger) http.Handler {
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
		t, ok := e.LookupTopic(topic)
		if !ok {
			return nil
		}
		return t.CheckPartitions(ctx, partitions)
	}
	return admin.Handler(p.store, admin.Self{
		Name: n.engine.NodeID, Verify: verify, Faults: faults, Copy: describe, Create: create, Health: e.HealthFacts,
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
		return exitData
	}
	return exitOther
}

// endProcess prints err and exits. The embedded etcd calls it (etcd.MemberOptions.Fatal) when it has found that it
// cannot go on. It may hold locks then, so the process does not shut down in order. As after a kill, everything that
// was answered OK is on the disk.
func endProcess(err error) {
	fmt.Fprintf(os.Stderr, "penstock: %s\n", packageNames.ReplaceAllString(err.Error(), "$1"))
	os.Exit(memberExit(err))
}

func (p *clusterPart) failure() error {
	return fmt.Errorf("the embedded etcd member ended: %w", p.member.Err())
}
