package serve

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"penstock/cmd/engine/internal/settings"
	"penstock/internal/cluster"
	"penstock/internal/cluster/etcd"
	"penstock/internal/cluster/kv"
	"penstock/internal/meta"
	"penstock/internal/node/datadir"
)

// seed begins the metadata store of a cluster anew, if the data directory says so, and notes that it did.
func seed(ctx context.Context, n *settings.Options, o *etcd.MemberOptions, log *slog.Logger) error {
	name := filepath.Join(n.Engine.DataPath, cluster.SeedFile)
	data, err := os.ReadFile(name)
	if errors.Is(err, fs.ErrNotExist) {
		return etcd.Seeded(o.Dir)
	}
	if err != nil {
		return err
	}
	e := new(cluster.Export)
	if err := datadir.UnsealFile(data, e, func() error { return nil }); err != nil {
		return fmt.Errorf("%s is damaged: the cluster was not begun anew; run penstock rebuild-cluster again: %w", name, err)
	}
	ops := make([]kv.Op, len(e.Rows))
	for i := range e.Rows {
		ops[i] = kv.Op{Key: settings.KeyPrefix(n.Cluster.Name) + e.Rows[i].Key, Value: e.Rows[i].Value()}
	}
	if err := etcd.Seed(ctx, *o, ops); err != nil {
		return err
	}
	if err := os.Remove(name); err != nil {
		return err
	}
	d, err := os.Open(n.Engine.DataPath)
	if err != nil {
		return err
	}
	if err := errors.Join(d.Sync(), d.Close()); err != nil {
		return err
	}
	log.Info("the metadata store begins anew with the metadata that were found", "cluster", e.Cluster, "rows", len(ops),
		"as_of", time.UnixMilli(e.TakenMs).UTC())
	return etcd.Seeded(o.Dir)
}

// checkRestored returns an error if the metadata were rebuilt without regard to this node's data directory.
func checkRestored(ctx context.Context, n *settings.Options, s kv.Store) error {
	entries, _, err := s.List(ctx, settings.KeyPrefix(n.Cluster.Name)+"restored")
	if err != nil {
		return err
	}
	return checkMark(n, entries)
}

// checkMark compares the data directory with the row of the store that says how the metadata were rebuilt.
func checkMark(n *settings.Options, entries []kv.Entry) error {
	var m cluster.Mark
	if err := readSealed(filepath.Join(n.Engine.DataPath, cluster.MarkFile), &m); err != nil {
		return fmt.Errorf("the node does not start, and its data is untouched: %w", err)
	}
	var seen meta.Seen
	if readSealed(filepath.Join(n.Engine.DataPath, datadir.SeenFile), &seen) != nil {
		seen = meta.Seen{} // the engine warns of it
	}
	return cluster.CheckMark(m, seen, n.Engine.NodeID, entries, settings.KeyPrefix(n.Cluster.Name))
}

// readSealed reads a file with a checksum into v, and leaves v as it is if there is none.
func readSealed(name string, v any) error {
	data, err := os.ReadFile(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil {
		err = datadir.UnsealFile(data, v, func() error { return nil })
	}
	if err != nil {
		return fmt.Errorf("%s cannot be read: %w", name, err)
	}
	return nil
}
