package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/spf13/cobra"

	"penstock/cluster"
	"penstock/cluster/etcd"
	"penstock/cluster/kv"
	"penstock/engine/backup"
	"penstock/engine/dir"
)

// restoreCommand makes a data directory of a backup.
func restoreCommand() *cobra.Command {
	o := new(operator)
	to, anew, whole := "", false, []string(nil)
	cmd := o.action("restore BACKUP_DIR --data-path DIR", "Make a data directory of a backup", cobra.ExactArgs(1),
		func(_ context.Context, args []string) error {
			switch {
			case to == "":
				return &exitError{exitUsage, errors.New("say the new data directory with --data-path")}
			case anew && whole != nil:
				return &exitError{exitUsage, errors.New("--new-identity and --whole-cluster exclude each other")}
			}
			return o.restore(args[0], to, anew, whole)
		})
	cmd.Long = "Make a data directory of a backup. Every file is verified and copied. DIR must not exist or be empty.\n" +
		"Never run the restored node beside the original one under the same name: --new-identity gives it another.\n" +
		"The node of a cluster keeps its name. It may have acknowledged more than the backup has; so it leads nothing\n" +
		"before it has compared itself with the other replicas, which must have the rest.\n" +
		"When all nodes of a cluster are lost, restore all of them, one of those that run etcd with --whole-cluster:\n" +
		"see docs/operating.md."
	cmd.Flags().StringVar(&to, "data-path", "", "the new data directory")
	cmd.Flags().BoolVar(&anew, "new-identity", false, "give the node a new name; not for a node of a cluster")
	cmd.Flags().StringSliceVar(&whole, "whole-cluster", nil,
		"BACKUP_DIR,... of all nodes that come back: this node begins the cluster anew with the newest metadata of them; "+
			"of the other nodes, backup.json and cluster.json are enough")
	cmd.Flags().BoolVar(&o.asJSON, "json", false, "print JSON")
	return cmd
}

func (o *operator) restore(from, to string, anew bool, whole []string) error {
	opts := backup.RestoreOptions{Files: map[string][]byte{}}
	if anew {
		opts.NodeID = uuid.NewString()
	}
	said, err := clusterFiles(from, whole, opts.Files)
	if err != nil {
		return &exitError{exitData, err}
	}
	r, err := backup.Restore(from, to, opts)
	if err != nil {
		return &exitError{exitData, err}
	}
	if r.Manifest.Cluster != uuid.Nil {
		return o.done("%s is node %s again: its %s%s", to, r.Manifest.NodeID, inNumber(r.Shortened,
			"copy compares itself with other replicas before it leads",
			"copies compare themselves with other replicas before they lead"), said+lacking(r.Manifest))
	}
	return o.done("%s has %s, %s, of node %s%s", to, counted(len(r.Manifest.Files), "file"),
		counted(r.Bytes, "byte"), r.Manifest.NodeID, lacking(r.Manifest))
}

// clusterFiles adds to files what the data directory of a cluster's node gets besides the files of the backup. It
// returns what is to be said about it.
func clusterFiles(from string, whole []string, files map[string][]byte) (said string, err error) {
	m, own, err := exportIn(from)
	if err != nil {
		return "", err
	}
	if own != nil {
		if files[cluster.MarkFile], err = dir.SealFile(cluster.MarkOf(own)); err != nil {
			return "", err
		}
	}
	if whole == nil {
		return "", nil
	}
	if m.Cluster == uuid.Nil {
		return "", fmt.Errorf("%s is the backup of a single node, which belongs to no cluster: nothing was restored; leave "+
			"--whole-cluster out", from)
	}
	newest, nodes := (*cluster.Export)(nil), []string(nil)
	for _, b := range whole {
		bm, e, err := exportIn(b)
		switch {
		case err != nil:
			return "", err
		case bm.Cluster == uuid.Nil:
			return "", fmt.Errorf("%s is the backup of a single node, and %s that of a cluster's: nothing was restored; name "+
				"only backups of nodes of that cluster", b, from)
		case bm.Cluster != m.Cluster:
			return "", fmt.Errorf("%s and %s are backups of nodes of two clusters: nothing was restored; name only backups of "+
				"nodes of the first one's", from, b)
		case slices.Contains(nodes, bm.NodeID):
			return "", fmt.Errorf("two of the backups are of node %s: nothing was restored, name one of each node", bm.NodeID)
		case e != nil && (newest == nil || e.Newer(newest)):
			newest = e
		}
		nodes = append(nodes, bm.NodeID)
	}
	switch {
	case !slices.Contains(nodes, m.NodeID):
		return "", fmt.Errorf("--whole-cluster does not name %s itself: nothing was restored", from)
	case newest == nil:
		return "", errors.New("no backup has the cluster's metadata (cluster.json): nothing was restored")
	}
	seed := *newest
	if seed.Rows, err = newest.Revive(nodes); err != nil {
		return "", err
	}
	if files[cluster.SeedFile], err = dir.SealFile(&seed); err != nil {
		return "", err
	}
	said = ". It begins the cluster anew with the metadata as of " + stamp(time.UnixMilli(newest.TakenMs))
	if len(nodes) == 1 {
		return said + " and node " + m.NodeID + " alone. Start the other nodes with empty data directories", nil
	}
	return said + " and the nodes " + strings.Join(nodes, ", ") + ". Start the other nodes with empty etcd directories",
		nil
}

// exportIn returns the manifest of a backup, and the cluster's metadata if it has them.
func exportIn(from string) (*backup.Manifest, *cluster.Export, error) {
	m, err := backup.ReadManifest(from)
	if err != nil {
		return nil, nil, err
	}
	data, err := m.Metadata(from)
	if err != nil || data == nil {
		return m, nil, err
	}
	e, err := cluster.ReadExport(data)
	if err == nil && e.Cluster != m.Cluster {
		err = errors.New("it is of another cluster")
	}
	if err != nil {
		return nil, nil, fmt.Errorf("%s of %s: %w; nothing was restored", backup.MetadataFile, from, err)
	}
	return m, e, nil
}

// stoppedMetadata adds to the backup of a stopped node what its embedded etcd knows of the cluster's metadata. It says
// why it cannot.
func stoppedMetadata(ctx context.Context, etcdDir, to string, m *backup.Manifest, w *backup.Writer) (missing error) {
	if m.Cluster == uuid.Nil {
		return nil
	}
	if _, err := os.Stat(etcdDir); err != nil {
		return fmt.Errorf("there is no embedded etcd: %w", err)
	}
	entries, revision, err := etcd.ReadStopped(ctx, etcdDir, to+".etcd", keyPrefix(""))
	if err != nil {
		return err
	}
	for _, e := range entries {
		prefix, found := strings.CutSuffix(e.Key, "/cluster")
		if !found || string(e.Value) != `"`+m.Cluster.String()+`"` {
			continue
		}
		export, err := cluster.ExportOf(entries, prefix+"/", revision, time.Now())
		if err != nil {
			return err
		}
		data, err := export.Encode()
		if err != nil {
			return err
		}
		return w.Write(backup.MetadataFile, data)
	}
	return fmt.Errorf("the embedded etcd in %s knows nothing of the cluster %s", etcdDir, m.Cluster)
}

// keyPrefix returns the prefix of the metadata's keys of the cluster of this name; with an empty name, of all clusters.
func keyPrefix(name string) string {
	if name != "" {
		name += "/"
	}
	return "/penstock/v1/" + name
}

// seed begins the metadata store of a restored cluster, if the data directory says so, and notes that it did.
func (c *clusterSettings) seed(ctx context.Context, n *node, o *etcd.MemberOptions, log *slog.Logger) error {
	name := filepath.Join(n.engine.DataPath, cluster.SeedFile)
	data, err := os.ReadFile(name)
	if errors.Is(err, fs.ErrNotExist) {
		return etcd.Seeded(o.Dir)
	}
	if err != nil {
		return err
	}
	e := new(cluster.Export)
	if err := dir.UnsealFile(data, e, func() error { return nil }); err != nil {
		return fmt.Errorf("%s is damaged: the cluster was not begun anew; restore the backup again: %w", name, err)
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
	log.Info("the metadata store begins anew with the metadata of a backup", "cluster", e.Cluster, "rows", len(ops),
		"as_of", time.UnixMilli(e.TakenMs).UTC())
	return etcd.Seeded(o.Dir)
}

// checkRestored returns an error if this node comes from a backup that the restore of its cluster did not count on.
func (c *clusterSettings) checkRestored(ctx context.Context, n *node, s kv.Store) error {
	name := filepath.Join(n.engine.DataPath, cluster.MarkFile)
	data, err := os.ReadFile(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	m := cluster.Mark{}
	if err == nil {
		err = dir.UnsealFile(data, &m, func() error { return nil })
	}
	if err != nil {
		return fmt.Errorf("%s cannot be read: the node does not start, and its data is untouched: %w", name, err)
	}
	entries, _, err := s.List(ctx, keyPrefix(c.name)+"restored")
	if err != nil {
		return err
	}
	return cluster.CheckMark(m, n.engine.NodeID, entries, keyPrefix(c.name))
}
