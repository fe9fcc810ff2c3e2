package node_test

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"path/filepath"
	"time"

	"penstock/internal/cluster"
	"penstock/internal/meta"
	"penstock/internal/node"
	"penstock/tests/support/kvfile"
)

// Golden data directories were written by older versions. golden_make_test.go writes them, in the tree of the older
// version; golden_test.go reads them, in this tree. This file is compiled in both trees, so it uses only the parts of
// the API that both versions have.

// goldenManifest says which topics, messages and channels are in a golden directory.
type goldenManifest struct {
	Nodes  int
	Topics map[string]*goldenTopic
}

type goldenTopic struct {
	Messages map[string]string // body by id; empty for a topic whose segments retention removes
	Paused   bool
	Channels map[string]*goldenChannel
}

type goldenChannel struct {
	Paused   bool
	Unread   map[string]string // unconfirmed messages: body by id
	Settings uint64            // version of the settings
}

// goldenNodes are the engines on a golden directory: a single node, or three nodes with their metadata in a file.
type goldenNodes struct {
	engines []*node.Engine
	meta    *kvfile.Store
}

func goldenOptions(dir string) node.Options {
	return node.Options{
		DataPath: dir, Logger: slog.New(slog.NewTextHandler(io.Discard, nil)),
		BufferBytes: 4 << 20, CommitFileBytes: 256 << 10, CommitLiveBytes: 1 << 20,
		MinSegmentBytes: 16 << 10, MaxSegmentBytes: 64 << 10, MaxMessageBytes: 16 << 10, MaxBatchBytes: 64 << 10,
		RetentionInterval: 20 * time.Millisecond, ConfirmInterval: time.Millisecond, LockWait: 10 * time.Second,
	}
}

// openGolden opens the golden directory of a single node, or of three: n1, n2, n3 and the metadata in meta.kv.
func openGolden(ctx context.Context, dir string, nodes int) (*goldenNodes, error) {
	g := new(goldenNodes)
	if nodes == 1 {
		e, err := node.Open(ctx, goldenOptions(dir))
		if err != nil {
			return nil, err
		}
		g.engines = append(g.engines, e)
		return g, nil
	}
	var err error
	if g.meta, err = kvfile.Open(filepath.Join(dir, "meta.kv")); err != nil {
		return nil, err
	}
	for i := range nodes {
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, err
		}
		name := fmt.Sprintf("n%d", i+1)
		o := goldenOptions(filepath.Join(dir, name))
		o.NodeID = name
		o.Cluster = &node.ClusterOptions{
			Store: cluster.New(g.meta, cluster.Options{
				Logger: o.Logger, ControllerTick: 50 * time.Millisecond, DefaultReplicas: 3,
			}),
			Listener: ln, Node: meta.Node{Host: "127.0.0.1"},
		}
		e, err := node.Open(ctx, o)
		if err != nil {
			return nil, err
		}
		g.engines = append(g.engines, e)
	}
	return g, goldenUntil(ctx, "all nodes are there", func() error {
		if n := len(g.engines[0].Snapshot().Nodes); n != nodes {
			return fmt.Errorf("there are %d", n)
		}
		return nil
	})
}

func (g *goldenNodes) close() error {
	var first error
	for _, e := range g.engines {
		if err := e.Close(); err != nil && first == nil {
			first = err
		}
	}
	if g.meta != nil {
		if err := g.meta.Close(); err != nil && first == nil {
			first = err
		}
	}
	return first
}

// goldenUntil repeats try until it succeeds. When ctx ends it returns the last error of try.
func goldenUntil(ctx context.Context, what string, try func() error) error {
	for {
		err := try()
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s: %w", what, err)
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// describe returns what the nodes hold of the topics, as the first node says. It leaves out the messages of the topic
// trimmed, whose segments retention removes meanwhile.
func (g *goldenNodes) describe(ctx context.Context, topics []string, trimmed string) (*goldenManifest, error) {
	m := &goldenManifest{Nodes: len(g.engines), Topics: map[string]*goldenTopic{}}
	for _, name := range topics {
		t, ok := g.engines[0].Catalog().LookupTopic(name)
		if !ok {
			return nil, fmt.Errorf("there is no topic %s", name)
		}
		gt := &goldenTopic{Messages: map[string]string{}, Channels: map[string]*goldenChannel{}}
		m.Topics[name] = gt
		if name != trimmed {
			all, err := t.Peek(ctx, -1, 0, 1000)
			if err != nil {
				return nil, err
			}
			for _, p := range all {
				gt.Messages[p.ID.String()] = string(p.Body)
			}
		}
		stats := g.stats(name)
		gt.Paused = stats.Paused
		if len(stats.Channels) == 0 {
			return nil, fmt.Errorf("topic %s has no channels yet", name)
		}
		for _, cs := range stats.Channels {
			c, err := t.Channel(ctx, cs.Name)
			if err != nil {
				return nil, err
			}
			left, err := c.Peek(ctx, node.PeekOptions{Partition: -1, Count: 1000})
			if err != nil {
				return nil, err
			}
			s, err := c.ReadSettings(ctx)
			if err != nil {
				return nil, err
			}
			gc := &goldenChannel{Paused: cs.Paused, Unread: map[string]string{}, Settings: s.Version}
			for _, p := range left {
				gc.Unread[p.ID.String()] = string(p.Body)
			}
			gt.Channels[cs.Name] = gc
		}
	}
	return m, nil
}

// stats returns the statistics of the topic at its leader: the node that shows the most channels. Every topic has only
// one partition.
func (g *goldenNodes) stats(topic string) node.TopicStats {
	var best node.TopicStats
	for _, e := range g.engines {
		if s := e.Stats(topic, ""); len(s) == 1 && len(s[0].Channels) >= len(best.Channels) {
			best = s[0]
		}
	}
	return best
}
