package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/spf13/cobra"

	"penstock/internal/cluster"
	"penstock/internal/cluster/etcd"
	"penstock/internal/cluster/kv"
	"penstock/internal/meta"
	"penstock/internal/node/backup"
	"penstock/internal/node/datadir"
)

// restoreCommand makes a data directory of a backup.
func restoreCommand() *cobra.Command {
	o := new(operator)
	to, anew, accept := "", false, false
	cmd := o.action("restore BACKUP_DIR --data-path DIR", "Make a data directory of a backup", cobra.ExactArgs(1),
		func(_ context.Context, args []string) error {
			if to == "" {
				return &exitError{exitUsage, errors.New("say the new data directory with --data-path")}
			}
			return o.restore(args[0], to, anew, accept)
		})
	cmd.Long = "Make a data directory of a backup. All of it is verified and copied. DIR must not exist or be empty.\n" +
		"If anything is damaged, all of it is named and nothing is restored; with --accept-loss the rest is.\n" +
		"Never run the restored node beside the original one under the same name: --new-identity gives it another.\n" +
		"The node of a cluster keeps its name. It may have acknowledged more than the backup has; so it leads nothing\n" +
		"before it has compared itself with the other replicas, which must have the rest.\n" +
		"When all nodes of a cluster are lost, restore all of them, and then begin it anew with penstock rebuild-cluster."
	cmd.Flags().StringVar(&to, "data-path", "", "the new data directory")
	cmd.Flags().BoolVar(&anew, "new-identity", false, "give the node a new name; not for a node of a cluster")
	cmd.Flags().BoolVar(&accept, "accept-loss", false,
		"restore what verifies of a damaged backup, and say what is missing")
	cmd.Flags().BoolVar(&o.asJSON, "json", false, "print JSON")
	return cmd
}

func (o *operator) restore(from, to string, anew, accept bool) error {
	opts := backup.RestoreOptions{Files: map[string][]byte{}, AcceptLoss: accept}
	if anew {
		opts.NodeID = uuid.NewString()
	}
	if err := clusterFiles(from, opts.Files); err != nil {
		return &exitError{exitData, err}
	}
	r, err := backup.Restore(from, to, opts)
	if err != nil {
		return &exitError{exitData, err}
	}
	if r.Manifest.Cluster != uuid.Nil {
		return o.done("%s is node %s again: its %s%s", to, r.Manifest.NodeID, inNumber(r.Shortened,
			"copy compares itself with other replicas before it leads",
			"copies compare themselves with other replicas before they lead"), lacking(r.Manifest)+withoutRest(r))
	}
	return o.done("%s has %s, %s, of node %s%s", to, counted(len(r.Manifest.Files), "file"),
		counted(r.Bytes, "byte"), r.Manifest.NodeID, lacking(r.Manifest)+withoutRest(r))
}

// withoutRest says what was not restored of a damaged backup.
func withoutRest(r *backup.Restored) string {
	var b strings.Builder
	for _, d := range r.Differ {
		fmt.Fprintf(&b, "\n%s is damaged (%s): %s", d.File, d.Why, d.Means)
	}
	for i := range r.Missing {
		fmt.Fprintf(&b, "\nmissing: %v", &r.Missing[i])
	}
	if b.Len() > 0 && r.Manifest.Cluster != uuid.Nil {
		b.WriteString("\nthe node tells the cluster; what other replicas have of this is repaired from them")
	}
	return b.String()
}

// clusterFiles adds to files what the data directory of a cluster's node gets besides the files of the backup: the
// cluster's metadata in it, which rebuild-cluster may need, and their mark.
func clusterFiles(from string, files map[string][]byte) error {
	m, err := backup.ReadManifest(from)
	if err != nil {
		return err
	}
	data, err := m.Metadata(from)
	if err != nil || data == nil {
		return nil // Restore names the file with all others that are damaged
	}
	e, err := cluster.ReadExport(data)
	if err == nil && e.Cluster != m.Cluster {
		err = errors.New("it is of another cluster")
	}
	if err != nil {
		return fmt.Errorf("%s of %s: %w; nothing was restored", backup.MetadataFile, from, err)
	}
	files[cluster.ExportFile] = data
	files[cluster.MarkFile], err = datadir.SealFile(cluster.MarkOf(e))
	return err
}

// keyPrefix returns the prefix of the metadata's keys of the cluster of this name; with an empty name, of all clusters.
func keyPrefix(name string) string {
	if name != "" {
		name += "/"
	}
	return "/penstock/v1/" + name
}

// seed begins the metadata store of a cluster anew, if the data directory says so, and notes that it did.
func (c *clusterSettings) seed(ctx context.Context, n *options, o *etcd.MemberOptions, log *slog.Logger) error {
	name := filepath.Join(n.engine.DataPath, cluster.SeedFile)
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
		ops[i] = kv.Op{Key: keyPrefix(c.name) + e.Rows[i].Key, Value: e.Rows[i].Value()}
	}
	if err := etcd.Seed(ctx, *o, ops); err != nil {
		return err
	}
	if err := os.Remove(name); err != nil {
		return err
	}
	d, err := os.Open(n.engine.DataPath)
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
func (c *clusterSettings) checkRestored(ctx context.Context, n *options, s kv.Store) error {
	entries, _, err := s.List(ctx, keyPrefix(c.name)+"restored")
	if err != nil {
		return err
	}
	return c.checkMark(n, entries)
}

// checkMark compares the data directory with the row of the store that says how the metadata were rebuilt.
func (c *clusterSettings) checkMark(n *options, entries []kv.Entry) error {
	var m cluster.Mark
	if err := readSealed(filepath.Join(n.engine.DataPath, cluster.MarkFile), &m); err != nil {
		return fmt.Errorf("the node does not start, and its data is untouched: %w", err)
	}
	var seen meta.Seen
	if readSealed(filepath.Join(n.engine.DataPath, datadir.SeenFile), &seen) != nil {
		seen = meta.Seen{} // the engine warns of it
	}
	return cluster.CheckMark(m, seen, n.engine.NodeID, entries, keyPrefix(c.name))
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
