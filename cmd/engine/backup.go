package main

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"path/filepath"
	"strconv"
	"time"

	"github.com/google/uuid"
	"github.com/spf13/cobra"

	"penstock/engine"
	"penstock/engine/backup"
)

// backupPoll is how often the command asks the node for the state of its backup.
const backupPoll = 200 * time.Millisecond

// backupCommand makes a backup of a running node, or of the data directory of a stopped one.
func backupCommand() *cobra.Command {
	o := new(operator)
	from, rate := "", int64(backup.DefaultRate)
	cmd := o.action("backup DIR", "Back a node's data up into a directory", cobra.ExactArgs(1),
		func(ctx context.Context, args []string) error {
			to, err := filepath.Abs(args[0])
			if err != nil {
				return err
			}
			if from != "" {
				return o.copyStopped(from, to)
			}
			return o.backup(ctx, to, rate)
		})
	cmd.Long = "Back a node's data up. The running node itself writes the backup into DIR, a directory on the node's\n" +
		"own machine that does not exist or is empty. Publishing and consuming go on. Everything that was answered OK\n" +
		"before the command began is in the backup. Segments that are full are linked if DIR is on the file system\n" +
		"of the data directory, and copied otherwise. Interrupting the command does not end the backup.\n" +
		"With --from, the command copies the data directory of a stopped node.\n" +
		"A backup has this node only: in a cluster, back every node up. Restore a backup with engine restore."
	o.flags(cmd)
	cmd.Flags().StringVar(&from, "from", "", "copy this data directory of a stopped node")
	flag := cmd.Flags().VarPF(size64(&rate, 0), "rate", "",
		"bytes of segments that the node reads per second; 0: unlimited")
	flag.DefValue = formatBytes(rate)
	return cmd
}

func (o *operator) backup(ctx context.Context, to string, rate int64) error {
	if rate == 0 {
		rate = -1
	}
	status := new(engine.BackupStatus)
	q := url.Values{"dir": {to}, "rate": {strconv.FormatInt(rate, 10)}}
	if err := o.client.Post(ctx, "/backup", q, nil, status); err != nil {
		return err
	}
	began := status.Began
	for status.State == engine.BackupRunning {
		select {
		case <-ctx.Done():
			return fmt.Errorf("interrupted; the node goes on with the backup into %s", to)
		case <-time.After(backupPoll):
		}
		*status = engine.BackupStatus{}
		if err := o.client.Get(ctx, "/backup", nil, status); err != nil {
			return fmt.Errorf("the node began the backup, and now: %w", err)
		}
	}
	switch {
	case !status.Began.Equal(began):
		return errors.New("the node was restarted, or began another backup: this one is complete if " +
			filepath.Join(to, backup.ManifestFile) + " exists")
	case status.State != engine.BackupDone:
		return errors.New(status.Error)
	case o.asJSON:
		return printJSON(o.out, status)
	}
	fmt.Fprintf(o.out, "%s has the node's data as of %s: %d files, %d bytes linked, %d copied\n", to,
		stamp(status.Moment), status.Files, status.LinkedBytes, status.CopiedBytes)
	if status.Damaged > 0 {
		fmt.Fprintf(o.out, "%d partitions have ranges that cannot be read, on the node as in the backup\n", status.Damaged)
	}
	return nil
}

// copyStopped backs the data directory of a stopped node up.
func (o *operator) copyStopped(from, to string) error {
	m := &backup.Manifest{MadeBy: version, Began: time.Now().Unix()}
	unlimited := backup.Options{Pause: func(time.Duration) bool { return true }}
	if err := backup.Copy(from, to, m, engine.NewestLevel, unlimited); err != nil {
		return &exitError{exitData, err}
	}
	return o.done("%s has the data of node %s: %d files", to, m.NodeID, len(m.Files))
}

// restoreCommand makes a data directory of a backup.
func restoreCommand() *cobra.Command {
	o := new(operator)
	to, anew := "", false
	cmd := o.action("restore BACKUP_DIR --data-path DIR", "Make a data directory of a backup", cobra.ExactArgs(1),
		func(_ context.Context, args []string) error {
			if to == "" {
				return &exitError{exitUsage, errors.New("say the new data directory with --data-path")}
			}
			return o.restore(args[0], to, anew)
		})
	cmd.Long = "Make a data directory of a backup. Every file is verified and copied. DIR must not exist or be empty.\n" +
		"Never run the restored node beside the original one under the same name: --new-identity gives it another.\n" +
		"The node of a cluster keeps its name. It may have acknowledged more than the backup has; so it leads nothing\n" +
		"before it has compared itself with the other replicas, which must have the rest. To bring a whole cluster\n" +
		"back that has lost its metadata, see docs/operating.md."
	cmd.Flags().StringVar(&to, "data-path", "", "the new data directory")
	cmd.Flags().BoolVar(&anew, "new-identity", false, "give the node a new name; not for a node of a cluster")
	cmd.Flags().BoolVar(&o.asJSON, "json", false, "print JSON")
	return cmd
}

func (o *operator) restore(from, to string, anew bool) error {
	opts := backup.RestoreOptions{}
	if anew {
		opts.NodeID = uuid.NewString()
	}
	r, err := backup.Restore(from, to, opts)
	if err != nil {
		return &exitError{exitData, err}
	}
	if r.Shortened > 0 {
		return o.done("%s is node %s again: its %d copies compare themselves with other replicas before they lead",
			to, r.Manifest.NodeID, r.Shortened)
	}
	return o.done("%s has %d files, %d bytes, of node %s", to, len(r.Manifest.Files), r.Bytes, r.Manifest.NodeID)
}
