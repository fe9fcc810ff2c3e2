package node

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/google/uuid"

	"penstock/internal/meta"
	"penstock/internal/node/clock"
	"penstock/internal/node/datadir"
	"penstock/internal/node/partition"
	"penstock/internal/node/platform"
	"penstock/replicate"
	"penstock/segment/aio"
)

// bareNode is a node of a cluster without a disk, a network or a store.
func bareNode() *clusterNode { return bareNodeOn(platform.NewMachine()) }

func bareNodeOn(h platform.Host) *clusterNode {
	e := &Engine{
		log: slog.New(slog.DiscardHandler), host: h, clock: clock.New(h.Wall, h.Mono), node: new(datadir.NodeFile),
	}
	e.store = partition.New(partition.Options{
		Host: h, Log: e.log, Clock: e.clock, Counters: &e.counters, Pulse: &e.pulse,
	})
	cn := &clusterNode{e: e}
	cn.Env = partition.NewEnv(context.Background(), e.store, e.log, nil, replicate.Config{}, nil, cn)
	cn.Self = meta.Node{ID: 1, Store: uuid.UUID{1}, Boot: uuid.UUID{9}}
	e.store.Join(cn.Env)
	e.cluster, e.members = cn, cn
	return cn
}

// openSmall opens an engine whose files are small and whose retention does not look.
func openSmall(t *testing.T, disk aio.Disk) *Engine {
	t.Helper()
	e, err := Open(t.Context(), Options{
		Disk: disk, Logger: slog.New(slog.DiscardHandler),
		BufferBytes: 4 << 20, CommitFileBytes: 256 << 10, CommitLiveBytes: 1 << 20,
		MinSegmentBytes: 16 << 10, MaxSegmentBytes: 64 << 10, MaxMessageBytes: 16 << 10, MaxBatchBytes: 64 << 10,
		RetentionInterval: time.Hour,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { e.Close() })
	return e
}
