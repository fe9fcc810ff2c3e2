package engine

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"time"

	"penstock/internal/cluster"
	"penstock/internal/cluster/kv"
	"penstock/internal/cluster/kv/memory"
	"penstock/internal/meta"
	"penstock/internal/node"
	"penstock/internal/node/errs"
	"penstock/netproto"
	"penstock/replicate/peer"
)

// Options configure an Engine. A zero field has the default that its comment gives in parentheses.
type Options struct {
	Path    string       // the data directory; it is made if it is missing. Required
	NodeID  string       // the node's name (the stored one, or a new one)
	Logger  *slog.Logger // it may be slow, and may use the engine (slog.Default())
	Cluster *Cluster     // nil: a single node

	BufferBytes     int64         // memory for commit groups and for reads of the newest messages (64 MiB)
	MaxMessageBytes int           // body of one message (1 MiB)
	MaxBatchBytes   int           // bodies of one PublishBatch; at most 15 MiB (6 MiB)
	MsgTimeout      time.Duration // how long a delivery may stay unanswered before the message comes again (60 s)
	PublishTimeout  time.Duration // how long a put may wait before it is stored, and in a cluster for its commit (5 s)
	Partitions      int           // of the topics that Engine.Topic makes (1)

	// Retention removes whole segments of the oldest messages of a partition, even if they were not consumed.
	RetentionBytes int64         // stored bytes (no limit)
	RetentionAge   time.Duration // (no limit)
}

// Cluster makes an Engine a node of a cluster.
type Cluster struct {
	Metadata Metadata // the same for all nodes
	Listen   string   // where other nodes connect: a host that they reach, and a port (127.0.0.1:0)
}

// TopicOptions are what a new topic gets.
type TopicOptions struct {
	Partitions int // 1 to 65536 (Options.Partitions)
	// Replicas is how many nodes store each partition. A cluster that has fewer live nodes refuses (3, or as many as are
	// alive; 1 on a single node)
	Replicas int
}

// Metadata is where the nodes of a cluster agree on topics, leaders and who is alive. NewMetadata and package
// engine/etcd make one. Close ends it, after all nodes that use it.
type Metadata interface {
	Store(ctx context.Context, node string) (kv.Store, error) // the metadata, as a node sees it
	Trust() peer.Trust                                        // what nodes prove to each other
	Close()
}

// NewMetadata returns metadata in the memory of this process, for a cluster that lives in one program. They end with
// the program, and its data directories then belong to no cluster any more. Its nodes prove nothing to each other: they
// must listen on loopback.
func NewMetadata() Metadata { return inMemory{memory.New(memory.Options{})} }

type inMemory struct{ *memory.Map }

// Store implements Metadata.
func (m inMemory) Store(context.Context, string) (kv.Store, error) {
	return m.Map.Store(), nil
}

// Trust implements Metadata.
func (m inMemory) Trust() peer.Trust { return peer.Trust{} }

// node returns the options for package node, and a function that undoes what was begun.
func (o *Options) node(ctx context.Context) (node.Options, func(), error) {
	all := node.Options{
		DataPath: o.Path, NodeID: o.NodeID, Logger: o.Logger, BufferBytes: o.BufferBytes,
		MaxMessageBytes: o.MaxMessageBytes, MaxBatchBytes: o.MaxBatchBytes, MsgTimeout: o.MsgTimeout,
		PublishTimeout: o.PublishTimeout, DefaultPartitions: o.Partitions, RetentionBytes: o.RetentionBytes,
		RetentionAge: o.RetentionAge,
	}
	if err := all.Check(); err != nil || o.Cluster == nil {
		return all, func() {}, err
	}
	if o.Cluster.Metadata == nil {
		return all, nil, fmt.Errorf("%w: Cluster.Metadata is nil: use NewMetadata or package engine/etcd", errs.ErrOptions)
	}
	address := o.Cluster.Listen
	if address == "" {
		address = "127.0.0.1:0"
	}
	if host, _, err := net.SplitHostPort(address); err != nil || netproto.CheckDialled(host) != nil {
		return all, nil, fmt.Errorf("%w: Cluster.Listen is %q: it is a host that other nodes reach, and a port",
			errs.ErrOptions, address)
	}
	store, err := o.Cluster.Metadata.Store(ctx, o.NodeID)
	if err != nil {
		return all, nil, err
	}
	ln, err := net.Listen("tcp", address)
	if err != nil {
		_ = store.Close()
		return all, nil, fmt.Errorf("engine: other nodes cannot connect to Cluster.Listen; nothing was opened: %w", err)
	}
	host, _, _ := net.SplitHostPort(ln.Addr().String())
	logger := o.Logger
	if logger == nil {
		logger = slog.Default()
	}
	all.Cluster = &node.ClusterOptions{
		Store:    cluster.New(store, cluster.Options{Logger: logger}),
		Listener: ln, Trust: o.Cluster.Metadata.Trust(),
		Node:            meta.Node{Host: host, Peer: ln.Addr().String()},
		PreferredLeader: cluster.PreferredLeader,
	}
	return all, func() { _, _ = ln.Close(), store.Close() }, nil
}
