// Package etcd lets engines in several processes, on several machines, form a cluster: their metadata are in an etcd of
// version 3.5.8 or newer. It is a package of its own so that a program with a single node is built without etcd.
package etcd

import (
	"context"
	"log/slog"

	"penstock/engine"
	"penstock/internal/cluster/etcd"
	"penstock/internal/cluster/kv"
	"penstock/internal/cluster/trust"
	"penstock/replicate/peer"
)

// Options are the etcd's address, and the proofs that this node belongs to the cluster.
type Options struct {
	Endpoints          []string // of the members, such as https://10.0.0.1:2379
	CA, Cert, Key      string   // PEM files for connections to the etcd; all or none
	Username, Password string   // of the etcd; empty: none is asked for

	// SecretFile has the cluster's secret in a line, at least 32 random bytes as text: the same at all nodes. Without it
	// the nodes prove nothing to each other, and their ports must be out of strangers' reach.
	SecretFile string

	Logger *slog.Logger // nil: slog.Default()
}

// New returns the metadata of a cluster. It reads the secret; an engine connects when it opens.
func New(o Options) (engine.Metadata, error) {
	t, err := trust.Open(trust.Options{SecretFile: o.SecretFile})
	if err != nil {
		return nil, err
	}
	return &metadata{o, t}, nil
}

type metadata struct {
	o     Options
	trust *trust.Trust
}

// Store implements engine.Metadata.
func (m *metadata) Store(ctx context.Context, _ string) (kv.Store, error) {
	return etcd.Dial(ctx, m.o.Endpoints, etcd.Options{
		TLS:      etcd.TLSFiles{CA: m.o.CA, Cert: m.o.Cert, Key: m.o.Key},
		Username: m.o.Username, Password: m.o.Password, Log: m.o.Logger,
	})
}

// Trust implements engine.Metadata.
func (m *metadata) Trust() peer.Trust { return m.trust.Peer() }

// Close implements engine.Metadata: each engine closes its own connection.
func (m *metadata) Close() {}
