package serve

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"penstock/cmd/engine/internal/cli"
	"penstock/cmd/engine/internal/settings"
	"penstock/internal/cluster/etcd"
	"penstock/internal/cluster/trust"
)

// proveTimeout bounds the time that a reload waits for the metadata store.
const proveTimeout = 5 * time.Second

// checkTrust is the first thing that serve does: a node that must not listen opens nothing. It returns nil for a single
// node.
func checkTrust(n *settings.Options) (t *trust.Trust, err error) {
	c := &n.Cluster
	if c.Address == "" {
		err = c.CheckSecurity()
	} else if err = c.CheckAddresses(); err == nil {
		t, err = trusted(n)
	}
	if err != nil {
		return nil, cli.Fail(cli.ExitUsage, err)
	}
	return t, nil
}

// trusted reads the secret and the certificates for nodes. Without either, a node whose ports other machines can reach
// does not start.
func trusted(n *settings.Options) (*trust.Trust, error) {
	c := &n.Cluster
	c.Trust.MinVersion = tlsVersionOf(n.NSQ.TLS.MinVersion)
	c.EtcdTLS.MinVersion = c.Trust.MinVersion
	t, err := trust.Open(c.Trust)
	if err != nil || t.Any() || c.Insecure {
		return t, err
	}
	for _, address := range c.Addresses(n.Engine.NodeID) {
		if !loopback(address) {
			return nil, fmt.Errorf("other machines can reach %s, and whoever does could read and change everything: make "+
				"certificates with `penstock cluster init-tls`, or give all nodes the same --cluster-secret-file, or say "+
				"--cluster-insecure if the network keeps strangers out", address)
		}
	}
	return t, nil
}

func tlsVersionOf(s string) uint16 {
	if s == "1.2" {
		return tls.VersionTLS12
	}
	return tls.VersionTLS13
}

func loopback(address string) bool {
	host, _, err := net.SplitHostPort(address)
	ip := net.ParseIP(host)
	return err == nil && (host == "localhost" || ip != nil && ip.IsLoopback())
}

// secureEtcd chooses the certificates for the embedded etcd: those that were named for etcd, else those of the nodes,
// else ones that are made from the secret.
func secureEtcd(n *settings.Options, voters []etcd.Voter, t *trust.Trust) (err error) {
	c := &n.Cluster
	if c.EtcdTLS.CA != "" || c.EtcdTLS.Cert != "" || c.EtcdTLS.Key != "" || !t.Any() {
		return nil
	}
	var hosts []string
	for _, v := range voters {
		if v.Name != n.Engine.NodeID {
			continue
		}
		for _, address := range []string{v.Peer, v.Client, c.EtcdPeer, c.EtcdClient} {
			if host, _, err := net.SplitHostPort(address); err == nil && host != "" && !slices.Contains(hosts, host) {
				hosts = append(hosts, host)
			}
		}
	}
	c.EtcdTLS, err = t.Etcd(filepath.Join(c.EtcdDir(n), "tls"), hosts)
	return err
}

// admits returns etcd.MemberOptions.Admit; nil if the certificates for etcd are not those of nodes.
func (p *clusterPart) admits(c *settings.Cluster, peers []etcd.Voter) func(*x509.Certificate) error {
	if c.Trust.CA == "" || c.EtcdTLS.CA != c.Trust.CA {
		return nil
	}
	named := strings.Split(c.TLSNodes, ",")
	return func(cert *x509.Certificate) error {
		p.mu.Lock()
		store := p.store
		p.mu.Unlock()
		known := make(map[string]bool)
		for _, v := range peers {
			known[v.Name] = true
		}
		if store != nil {
			if snap := store.Snapshot(); snap != nil {
				for _, node := range snap.Nodes {
					known[node.Name] = true
				}
			}
		}
		return p.trust.MayEnter(cert, func(name string) bool {
			return known[name] || slices.ContainsFunc(named, func(pattern string) bool {
				ok, _ := path.Match(pattern, name) // CheckAddresses has judged it
				return ok
			})
		})
	}
}

// reload reads the secret and the certificates for nodes again; connections stay.
func (p *clusterPart) reload() error {
	if p == nil {
		return nil
	}
	if err := p.trust.Reload(); err != nil {
		return err
	}
	if err := p.reloadEtcd(); err != nil { // its certificates may be those of the nodes, or made from the secret
		return err
	}
	p.mu.Lock()
	prover, ok := p.store.(interface{ Prove(context.Context) error })
	p.mu.Unlock()
	if !ok { // also before the node joins, which it does with the secrets that hold then
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), proveTimeout)
	defer cancel()
	if err := prover.Prove(ctx); err != nil {
		return fmt.Errorf("the secrets were read and hold, and the metadata store could not be told of them; it is tried "+
			"again: %w", err)
	}
	return nil
}

// reloadEtcd makes the client of etcd and the embedded member take their certificates again.
func (p *clusterPart) reloadEtcd() error {
	if p == nil {
		return nil
	}
	p.mu.Lock()
	member, store := p.member, p.kv
	p.mu.Unlock()
	if member != nil {
		if err := member.ReloadTLS(); err != nil {
			return err
		}
	}
	return etcd.ReloadTLS(store)
}

// reloadPassword takes the password for etcd again, if etcd takes it.
func (p *clusterPart) reloadPassword(n *settings.Options) error {
	if p == nil {
		return nil
	}
	password, err := n.EtcdPasswordNow()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), proveTimeout)
	defer cancel()
	p.mu.Lock()
	store := p.kv
	p.mu.Unlock()
	return etcd.SetPassword(ctx, store, password)
}
