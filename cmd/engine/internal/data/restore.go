package data

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/google/uuid"
	"github.com/spf13/cobra"

	"penstock/cmd/engine/internal/cli"
	"penstock/internal/cluster"
	"penstock/internal/node/backup"
	"penstock/internal/node/datadir"
)

// RestoreCommand makes a data directory of a backup.
func RestoreCommand() *cobra.Command {
	o := new(operator)
	to, anew, accept := "", false, false
	cmd := o.Action("restore BACKUP_DIR --data-path DIR", "Make a data directory of a backup", cobra.ExactArgs(1),
		func(_ context.Context, args []string) error {
			if to == "" {
				return cli.Fail(cli.ExitUsage, errors.New("say the new data directory with --data-path"))
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
	cmd.Flags().BoolVar(&o.AsJSON, "json", false, "print JSON")
	return cmd
}

func (o *operator) restore(from, to string, anew, accept bool) error {
	opts := backup.RestoreOptions{Files: map[string][]byte{}, AcceptLoss: accept}
	if anew {
		opts.NodeID = uuid.NewString()
	}
	if err := clusterFiles(from, opts.Files); err != nil {
		return cli.Fail(cli.ExitData, err)
	}
	r, err := backup.Restore(from, to, opts)
	if err != nil {
		return cli.Fail(cli.ExitData, err)
	}
	if r.Manifest.Cluster != uuid.Nil {
		return o.Done("%s is node %s again: its %s%s", to, r.Manifest.NodeID, cli.InNumber(r.Shortened,
			"copy compares itself with other replicas before it leads",
			"copies compare themselves with other replicas before they lead"), lacking(r.Manifest)+withoutRest(r))
	}
	return o.Done("%s has %s, %s, of node %s%s", to, cli.Counted(len(r.Manifest.Files), "file"),
		cli.Counted(r.Bytes, "byte"), r.Manifest.NodeID, lacking(r.Manifest)+withoutRest(r))
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
