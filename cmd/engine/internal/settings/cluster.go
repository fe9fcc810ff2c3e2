package settings

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"penstock/cmd/engine/internal/values"
	"penstock/internal/cluster/etcd"
	"penstock/internal/cluster/trust"
	"penstock/netproto"
	"penstock/replicate"
)

// Cluster are the settings that make a node a member of a cluster.
type Cluster struct {
	Name          string
	Address       string // address for the other nodes; empty: a single node
	Peers         string
	EtcdPeer      string
	EtcdClient    string
	EtcdDataPath  string
	EtcdEndpoints string
	EtcdUser      string
	EtcdPassword  string

	EtcdPasswordFile string

	EtcdTLS       etcd.TLSFiles
	TLSNodes      string
	Trust         trust.Options
	Insecure      bool
	MaxHandshakes int
	EtcdHeartbeat time.Duration
	EtcdElection  time.Duration
	Lease         time.Duration
	Replicas      int
	Rack          string
	Rebalance     struct {
		After time.Duration
		Moves int
	}
	Replication  replicate.Config
	LagMax       time.Duration
	JoinTimeout  time.Duration
	LeaveTimeout time.Duration
}

// ReplicationConfig is how the node's replicas replicate.
func (c *Cluster) ReplicationConfig() replicate.Config {
	cfg := c.Replication
	cfg.LagMaxNs = int64(c.LagMax)
	return cfg
}

func clusterRows(c *Cluster) []*Setting {
	return slices.Concat(trustRows(c), etcdRows(c), []*Setting{
		row("cluster-address", "", values.Text(&c.Address),
			"HOST:PORT for the other nodes of the cluster; empty means a single node"),
		live("cluster-max-handshakes", "64", values.Count(&c.MaxHandshakes, 1),
			"maximum number of connections to cluster-address without a proof that they come from a node"),
		row("cluster-name", "penstock", values.Text(&c.Name),
			"name of the cluster; clusters that share an etcd need different names"),
		row("cluster-peers", "", values.Text(&c.Peers),
			"NAME=HOST:PORT,... (node-id and cluster-address) of the one, three or five nodes that run etcd, on the next two "+
				"ports"),
		row("lease", "3s", values.Duration(&c.Lease, time.Second),
			"a node that is silent for this long is considered dead; it stops serving before that").
			until("the metadata store grants it at the start"),
		live("replicas", "3", values.Count(&c.Replicas, 1),
			"number of replicas of a new topic; fewer if there are fewer live nodes"),
		row("rack", "", values.Text(&c.Rack), "rack or zone of this node; the replicas of a partition are spread over them"),
		live("rebalance-after", "30m", values.Duration(&c.Rebalance.After, 0),
			"spread replicas anew when a node has joined, or the only missing one has been away, for this long; 0s means "+
				"only on command"),
		live("rebalance-moves", "4", values.Count(&c.Rebalance.Moves, 1),
			"maximum number of partitions that a rebalance copies at the same time"),
		live("replica-lag-max", "2s", values.Duration(&c.LagMax, time.Millisecond),
			"a replica that has been behind for this long is removed from the in-sync replicas"),
		live("catch-up-bytes-per-second", "0", values.Size64(&c.Replication.CatchUpBytesPerSec, 0),
			"maximum bytes of old messages per second to one replica that catches up; 0 means no limit"),
		row("join-timeout", "2m", values.Duration(&c.JoinTimeout, time.Millisecond),
			"maximum time to wait for a majority of etcd at startup").until("only a start uses it"),
		live("leave-timeout", "3s", values.Duration(&c.LeaveTimeout, time.Millisecond),
			"maximum time to spend on handing over leaderships after SIGTERM"),
	})
}

// trustRows are the settings by which the nodes of a cluster know each other.
func trustRows(c *Cluster) []*Setting {
	return []*Setting{
		content("cluster-secret-file", values.Text(&c.Trust.SecretFile),
			"file with the secret that all nodes share, at least 32 random characters; while it is replaced, a second line "+
				"has the other"),
		content("cluster-tls-ca", values.Text(&c.Trust.CA),
			"PEM file with the authority of the nodes' certificates (penstock cluster init-tls)"),
		content("cluster-tls-cert", values.Text(&c.Trust.Cert),
			"PEM file with this node's certificate for the other nodes and the embedded etcd"),
		content("cluster-tls-key", values.Text(&c.Trust.Key),
			"PEM file with the private key for cluster-tls-cert"),
		row("cluster-tls-names", string(trust.NamesOfNodes), values.Choice((*string)(&c.Trust.Names),
			string(trust.NamesOfNodes), string(trust.NamesRequired), string(trust.NamesIgnored)),
			"whether a certificate speaks only for the nodes that it names: auto: if it names nodes of the cluster; "+
				"required: always; ignored: never"),
		row("cluster-tls-nodes", "", values.Text(&c.TLSNodes),
			"NAME,... of nodes, with * and ?, whose certificates reach this node's etcd before they join; only with "+
				"cluster-tls-names = required"),
		row("cluster-insecure", "false", values.Boolean(&c.Insecure),
			"start without secret and certificates although other machines can reach the cluster's ports"),
	}
}

// etcdRows are the settings of the store of the cluster's metadata.
func etcdRows(c *Cluster) []*Setting {
	return []*Setting{
		row("etcd-peer-address", "", values.Text(&c.EtcdPeer),
			"HOST:PORT of the embedded etcd for its other members; empty: the port of cluster-address + 1"),
		row("etcd-client-address", "", values.Text(&c.EtcdClient),
			"HOST:PORT of the embedded etcd for its clients; empty: the port of cluster-address + 2"),
		row("etcd-data-path", "", values.Text(&c.EtcdDataPath),
			"directory of the embedded etcd, whose member stops while this disk is full; empty: etcd in data-path"),
		row("etcd-endpoints", "", values.Text(&c.EtcdEndpoints),
			"HOST:PORT,... of an existing etcd to use instead of cluster-peers"),
		row("etcd-user", "", values.Text(&c.EtcdUser), "user name for etcd-endpoints"),
		row("etcd-password", "", values.Secret(values.Text(&c.EtcdPassword)),
			"password for etcd-endpoints; refused on a command line"),
		content("etcd-password-file", values.Text(&c.EtcdPasswordFile),
			"file with the password for etcd-endpoints, not readable by others"),
		content("etcd-ca-file", values.Text(&c.EtcdTLS.CA), "PEM file with etcd's certificate authority; empty: no TLS"),
		content("etcd-cert-file", values.Text(&c.EtcdTLS.Cert), "PEM file with this node's certificate for etcd"),
		content("etcd-key-file", values.Text(&c.EtcdTLS.Key), "PEM file with the private key for etcd-cert-file"),
		row("etcd-heartbeat", "50ms", values.Duration(&c.EtcdHeartbeat, time.Millisecond),
			"time between heartbeats of the embedded etcd's leader").until("etcd starts with it"),
		row("etcd-election", "500ms", values.Duration(&c.EtcdElection, time.Millisecond),
			"the embedded etcd elects a new leader when the old one has been silent for this long").
			until("etcd starts with it"),
	}
}

// Addresses returns the addresses on which this node listens for other nodes, as far as the settings are right;
// joinable reports those that are not.
func (c *Cluster) Addresses(self string) []string {
	if c.Address == "" {
		return nil
	}
	all := []string{c.Address}
	peers, err := etcd.ParsePeers(c.Peers)
	if c.Peers == "" || err != nil {
		return all
	}
	for _, v := range etcd.Voters(peers) {
		if v.Name == self {
			peer, client := c.EtcdListens(v)
			all = append(all, peer, client)
		}
	}
	return all
}

// EtcdListens returns where the embedded etcd listens for its members and for clients: beside cluster-address, so that
// cluster-peers may have host names, or ports that are mapped. A port of cluster-address that the kernel chooses tells
// nothing; then it is where v says.
func (c *Cluster) EtcdListens(v etcd.Voter) (peer, client string) {
	peer, client = v.Peer, v.Client
	host, text, err := net.SplitHostPort(c.Address)
	if port, perr := strconv.Atoi(text); err == nil && perr == nil && port > 0 {
		peer = net.JoinHostPort(host, strconv.Itoa(port+1))
		client = net.JoinHostPort(host, strconv.Itoa(port+2))
	}
	return cmp.Or(c.EtcdPeer, peer), cmp.Or(c.EtcdClient, client)
}

// StoreNodes returns the names of the nodes that run the embedded etcd; nil if an existing etcd is used. joinable has
// checked the settings.
func (c *Cluster) StoreNodes() (names []string) {
	if c.EtcdEndpoints != "" {
		return nil
	}
	peers, _ := etcd.ParsePeers(c.Peers)
	for _, v := range etcd.Voters(peers) {
		names = append(names, v.Name)
	}
	return names
}

// Listed returns the address that cluster-peers names for a node, or "" if the node is not in the list.
func (c *Cluster) Listed(name string) string {
	peers, _ := etcd.ParsePeers(c.Peers) // who uses them says what is wrong
	for _, p := range peers {
		if p.Name == name {
			return p.Peer
		}
	}
	return ""
}

// CheckAddresses judges the addresses and the names of the cluster's nodes before anything is opened.
func (c *Cluster) CheckAddresses() error {
	if c.Peers != "" {
		if _, err := etcd.ParsePeers(c.Peers); err != nil {
			return err
		}
	}
	for pattern := range strings.SplitSeq(c.TLSNodes, ",") {
		if _, err := path.Match(pattern, ""); err != nil || strings.TrimSpace(pattern) != pattern {
			return fmt.Errorf("cluster-tls-nodes: %q is no name of a node, with * and ? for what differs: write for example "+
				"n4,n5 or n*", pattern)
		}
	}
	if c.EtcdEndpoints == "" {
		return nil
	}
	for e := range strings.SplitSeq(c.EtcdEndpoints, ",") {
		address := strings.TrimPrefix(strings.TrimPrefix(e, "https://"), "http://")
		host, _, err := net.SplitHostPort(address)
		if err == nil {
			err = netproto.CheckDialled(host)
		}
		if err != nil {
			return fmt.Errorf("etcd-endpoints: %q is not HOST:PORT of an etcd: %w", e, err)
		}
	}
	return nil
}

// EtcdDir returns the directory of the embedded etcd.
func (c *Cluster) EtcdDir(n *Options) string {
	return cmp.Or(c.EtcdDataPath, filepath.Join(n.Engine.DataPath, "etcd"))
}

// CheckSecurity is an error of a command line that names secrets of a cluster but no cluster.
func (c *Cluster) CheckSecurity() error {
	if c.Trust.SecretFile == "" && c.Trust.CA == "" && c.Trust.Cert == "" && c.Trust.Key == "" {
		return nil
	}
	return errors.New("cluster-secret-file and cluster-tls-* are for nodes of a cluster, and need a cluster-address: " +
		"the HOST:PORT of this node for the others")
}

// KeyPrefix returns the prefix of the metadata's keys of the cluster of this name; with an empty name, of all clusters.
func KeyPrefix(name string) string {
	if name != "" {
		name += "/"
	}
	return "/penstock/v1/" + name
}
