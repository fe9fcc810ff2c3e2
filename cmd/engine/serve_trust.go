package main

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"penstock/internal/cluster/etcd"
	"penstock/internal/cluster/trust"
	"penstock/netproto"
)

// proveTimeout bounds the time that a reload waits for the metadata store.
const proveTimeout = 5 * time.Second

// checkTrust is the first thing that serve does: a node that must not listen opens nothing.
func (c *clusterSettings) checkTrust(n *options) (err error) {
	if c.address == "" {
		err = c.checkSecurity()
	} else if err = c.checkAddresses(); err == nil {
		c.trusts, err = c.trusted(n)
	}
	if err != nil {
		return &exitError{exitUsage, err}
	}
	return nil
}

// checkAddresses judges the addresses and the names of the cluster's nodes before anything is opened.
func (c *clusterSettings) checkAddresses() error {
	if c.peers != "" {
		if _, err := etcd.ParsePeers(c.peers); err != nil {
			return err
		}
	}
	for pattern := range strings.SplitSeq(c.tlsNodes, ",") {
		if _, err := path.Match(pattern, ""); err != nil || strings.TrimSpace(pattern) != pattern {
			return fmt.Errorf("cluster-tls-nodes: %q is no name of a node, with * and ? for what differs: write for example "+
				"n4,n5 or n*", pattern)
		}
	}
	if c.etcdEndpoints == "" {
		return nil
	}
	for e := range strings.SplitSeq(c.etcdEndpoints, ",") {
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

// trusted reads the secret and the certificates for nodes. Without either, a node whose ports other machines can reach
// does not start.
func (c *clusterSettings) trusted(n *options) (*trust.Trust, error) {
	c.trust.MinVersion = tlsVersionOf(n.nsq.TLS.MinVersion)
	c.etcdTLS.MinVersion = c.trust.MinVersion
	t, err := trust.Open(c.trust)
	if err != nil || t.Any() || c.insecure {
		return t, err
	}
	for _, address := range c.addresses(n.engine.NodeID) {
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
func (c *clusterSettings) secureEtcd(n *options, voters []etcd.Voter, t *trust.Trust) (err error) {
	if c.etcdTLS.CA != "" || c.etcdTLS.Cert != "" || c.etcdTLS.Key != "" || !t.Any() {
		return nil
	}
	var hosts []string
	for _, v := range voters {
		if v.Name != n.engine.NodeID {
			continue
		}
		for _, address := range []string{v.Peer, v.Client, c.etcdPeer, c.etcdClient} {
			if host, _, err := net.SplitHostPort(address); err == nil && host != "" && !slices.Contains(hosts, host) {
				hosts = append(hosts, host)
			}
		}
	}
	c.etcdTLS, err = t.Etcd(filepath.Join(c.etcdDir(n), "tls"), hosts)
	return err
}

// admits returns etcd.MemberOptions.Admit; nil if the certificates for etcd are not those of nodes.
func (p *clusterPart) admits(c *clusterSettings, peers []etcd.Voter) func(*x509.Certificate) error {
	if c.trust.CA == "" || c.etcdTLS.CA != c.trust.CA {
		return nil
	}
	named := strings.Split(c.tlsNodes, ",")
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
				ok, _ := path.Match(pattern, name) // checkAddresses has judged it
				return ok
			})
		})
	}
}

func (c *clusterSettings) etcdDir(n *options) string {
	return cmp.Or(c.etcdDataPath, filepath.Join(n.engine.DataPath, "etcd"))
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
func (p *clusterPart) reloadPassword(n *options) error {
	if p == nil {
		return nil
	}
	password, err := n.etcdPasswordNow()
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

// checkSecurity is an error of a command line that names secrets of a cluster but no cluster.
func (c *clusterSettings) checkSecurity() error {
	if c.trust.SecretFile == "" && c.trust.CA == "" && c.trust.Cert == "" && c.trust.Key == "" {
		return nil
	}
	return errors.New("cluster-secret-file and cluster-tls-* are for nodes of a cluster, and need a cluster-address: " +
		"the HOST:PORT of this node for the others")
}
