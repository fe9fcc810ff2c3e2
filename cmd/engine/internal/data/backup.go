package data

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/spf13/cobra"

	"penstock/cmd/engine/internal/cli"
	"penstock/cmd/engine/internal/values"
	"penstock/internal/node"
	"penstock/internal/node/backup"
)

// operator is cli.Operator with the commands of this package.
type operator struct{ cli.Operator }

// backupPoll is how often the command asks the node for the state of its backup.
const backupPoll = 200 * time.Millisecond

// BackupCommand makes a backup of a running node, or of the data directory of a stopped one.
func BackupCommand(version string) *cobra.Command {
	o := new(operator)
	from, etcdDir, rate := "", "", int64(backup.DefaultRate)
	cmd := o.Action("backup DIR", "Back a node's data up into a directory", cobra.ExactArgs(1),
		func(ctx context.Context, args []string) error {
			to, err := filepath.Abs(args[0])
			if err != nil {
				return err
			}
			if from != "" {
				return o.copyStopped(ctx, version, from, etcdDir, to)
			}
			return o.backup(ctx, to, rate)
		})
	cmd.Long = "Back a node's data up. The running node itself writes the backup into DIR, a directory on the node's\n" +
		"own machine that does not exist or is empty. Publishing and consuming go on. Everything that was answered OK\n" +
		"before the command began is in the backup. Segments that are full are linked if DIR is on the file system\n" +
		"of the data directory, and copied otherwise. Interrupting the command does not end the backup.\n" +
		"With --from, the command copies the data directory of a stopped node.\n" +
		"A backup has the messages of this node and the metadata of the whole cluster: in a cluster, back every node up.\n" +
		"Restore a backup with penstock restore."
	o.Flags(cmd)
	cmd.Flags().StringVar(&from, "from", "", "copy this data directory of a stopped node")
	cmd.Flags().StringVar(&etcdDir, "etcd-data-path", "",
		"with --from: the directory of the node's embedded etcd; empty means etcd in the data directory")
	flag := cmd.Flags().VarPF(values.Size64(&rate, 0), "rate", "",
		"bytes of segments that the node reads per second; 0: unlimited")
	flag.DefValue = values.FormatBytes(rate)
	return cmd
}

func (o *operator) backup(ctx context.Context, to string, rate int64) error {
	if rate == 0 {
		rate = -1
	}
	status := new(node.BackupStatus)
	q := url.Values{"dir": {to}, "rate": {strconv.FormatInt(rate, 10)}}
	if err := o.Client.Post(ctx, "/backup", q, nil, status); err != nil {
		return err
	}
	began := status.Began
	for status.State == node.BackupRunning {
		select {
		case <-ctx.Done():
			return fmt.Errorf("interrupted; the node goes on with the backup into %s", to)
		case <-time.After(backupPoll):
		}
		*status = node.BackupStatus{}
		if err := o.Client.Get(ctx, "/backup", nil, status); err != nil {
			return fmt.Errorf("the node began the backup into %s, and now: %w; %s", to, err, incomplete(to))
		}
	}
	switch {
	case !status.Began.Equal(began):
		return errors.New("the node was restarted, or began another backup: " + incomplete(to))
	case status.State == node.BackupFailed:
		return errors.New(status.Error)
	}
	unseen := o.lookAt(to, status)
	if o.AsJSON {
		return cmp.Or(cli.PrintJSON(o.Out, status), unseen, unverified(to, status.Missing))
	}
	if unseen != nil {
		return unseen
	}
	fmt.Fprintf(o.Out, "%s has the node's data as of %s: %s, %d bytes linked, %d copied\n", to,
		cli.Stamp(status.Moment), cli.Counted(status.Files, "file"), status.LinkedBytes, status.CopiedBytes)
	if status.NoMetadata != "" {
		fmt.Fprintln(o.Out, strings.TrimPrefix(withoutMetadata(status.NoMetadata), ". "))
	}
	return unverified(to, status.Missing)
}

// lookAt looks at a backup that a node of this machine has made, and returns an error if it is not there: the node may
// see other files under that path than we do. What the user of the command may not read, and a node of another machine,
// says nothing.
func (o *operator) lookAt(to string, status *node.BackupStatus) error {
	if !o.Client.Here() {
		return nil
	}
	m, err := backup.ReadManifest(to)
	switch {
	case errors.Is(err, fs.ErrPermission), err == nil && m.Began == status.Began.Unix():
		return nil
	case err == nil:
		err = errors.New("another backup is there")
	}
	return cli.Fail(cli.ExitOther, fmt.Errorf("the node says that the backup into %s is complete, and from here it is "+
		"not there (%w): the node sees other files under that path, as in a container or in the private /tmp of a service. "+
		"Look for it there, and name a directory that both see", to, err))
}

// unverified is the error for a backup in which messages do not read back, or nil.
func unverified(to string, missing []backup.Missing) error {
	if len(missing) == 0 {
		return nil
	}
	return cli.Fail(cli.ExitData, fmt.Errorf("%s is damaged: messages do not read back, on the node as in the backup: "+
		"%s; keep the backups before it. In a cluster the node repairs them from another replica: make another backup then. "+
		"penstock restore --accept-loss restores the rest", to, backup.Named(missing)))
}

// incomplete says what to do with a directory of which the node does not say whether the backup in it is complete.
func incomplete(to string) string {
	return "the backup is complete if " + filepath.Join(to, backup.ManifestFile) + " exists; otherwise, once the node " +
		"has ended, remove " + to + " and begin again"
}

// withoutMetadata says that a backup has everything but the cluster's metadata.
func withoutMetadata(why string) string {
	return ". The cluster's metadata is not in it: it serves to restore this node, not a whole cluster. " + why
}

// lacking says that the data directory that was backed up had lost something, which a restored one cannot know.
func lacking(m *backup.Manifest) string {
	if m.Lacks == "" {
		return ""
	}
	others := "restore an older one"
	if m.Cluster != uuid.Nil {
		others = "keep the other replicas, which may have them"
	}
	return ". Its commit log lacks what the node wrote to it (" + m.Lacks + "): messages that were answered OK are " +
		"missing; put back what was moved away and make the backup again, or " + others
}

// copyStopped backs the data directory of a stopped node up.
func (o *operator) copyStopped(ctx context.Context, version, from, etcdDir, to string) error {
	m := &backup.Manifest{MadeBy: version, Began: time.Now().Unix()}
	var missing error
	unlimited := backup.Options{
		Pause: func(time.Duration) bool { return true },
		More: func(m *backup.Manifest, w *backup.Writer) error {
			missing = stoppedMetadata(ctx, from, cmp.Or(etcdDir, filepath.Join(from, "etcd")), to, m, w)
			return nil
		},
	}
	if err := backup.Copy(from, to, m, node.NewestLevel, unlimited); err != nil {
		return cli.Fail(cli.ExitData, err)
	}
	said := lacking(m)
	if missing != nil {
		said += withoutMetadata(missing.Error())
	}
	err := o.Done("%s has the data of node %s: %s%s", to, m.NodeID, cli.Counted(len(m.Files), "file"), said)
	return cmp.Or(err, unverified(to, m.Missing))
}
