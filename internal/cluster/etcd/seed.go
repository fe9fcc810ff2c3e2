package etcd

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3client"

	"penstock/internal/cluster/kv"
)

const (
	// seedingDir is where Seed makes the member, in the member's directory.
	seedingDir = "seeding"
	// memberDir has all of etcd's files.
	memberDir   = "member"
	maxSeedOps  = 100
	seedTimeout = 5 * time.Minute
)

// ErrSeeded says that Seed found an etcd directory that is in use.
var ErrSeeded = errors.New("etcd: the directory of the embedded member is in use; nothing was changed")

// Seed makes the directory of a member that begins a new cluster alone, with these entries. The other voters join it
// when they start with empty directories. Nobody can reach the member while it is seeded.
//
// It is made beside the directory and renamed when it is complete, so a crash leaves an empty directory or a complete
// one. If it is called again after that, for example because the caller could not note it, it does nothing. It returns
// ErrSeeded if the directory has a member that Seed did not make. Seeded removes its mark.
func Seed(ctx context.Context, o MemberOptions, entries []kv.Op) error {
	made, whole := filepath.Join(o.Dir, seedingDir), filepath.Join(o.Dir, memberDir)
	if _, err := os.Stat(whole); err == nil {
		if _, err := os.Stat(made); err == nil {
			return nil // it was renamed
		}
		return fmt.Errorf("%w: penstock rebuild-cluster did not finish, or %s is of another cluster: run the command again",
			ErrSeeded, whole)
	}
	if err := os.RemoveAll(made); err != nil {
		return err
	}
	if err := os.MkdirAll(made, 0o700); err != nil {
		return err
	}
	o.Dir = made
	err := alone(ctx, o, false, func(ctx context.Context, c *clientv3.Client) error {
		for part := range slices.Chunk(entries, maxSeedOps) {
			ops := make([]clientv3.Op, len(part))
			for i := range part {
				ops[i] = clientv3.OpPut(part[i].Key, string(part[i].Value))
			}
			if _, err := c.Txn(ctx).Then(ops...).Commit(); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("etcd: the metadata cannot be restored; nothing was changed: %w", err)
	}
	if err := os.Rename(filepath.Join(made, memberDir), whole); err != nil {
		return err
	}
	return syncDir(filepath.Dir(made))
}

// Seeded removes the mark by which a repeated Seed knows its work. The caller has noted durably that it will not call
// Seed again.
func Seeded(dir string) error { return os.RemoveAll(filepath.Join(dir, seedingDir)) }

// LastWritten returns when the files of a stopped member in the directory dir were written last; zero: there are none.
func LastWritten(dir string) (last time.Time) {
	files, _ := filepath.Glob(filepath.Join(dir, memberDir, "*", "*")) // an impossible pattern finds nothing
	for _, f := range files {
		if st, err := os.Stat(f); err == nil && st.ModTime().After(last) {
			last = st.ModTime()
		}
	}
	return last
}

// ReadStopped returns all entries under a prefix of a member that is stopped, from the directory dir, as far as the
// member knows that they are committed. It works on a copy of dir in scratch, a directory that does not exist, and
// removes it.
func ReadStopped(ctx context.Context, dir, scratch, prefix string) (entries []kv.Entry, revision int64, err error) {
	defer func() { err = errors.Join(err, os.RemoveAll(scratch)) }()
	if err := os.Mkdir(scratch, 0o700); err != nil {
		return nil, 0, err
	}
	if err := os.CopyFS(filepath.Join(scratch, memberDir), os.DirFS(filepath.Join(dir, memberDir))); err != nil {
		return nil, 0, err
	}
	if err := checkFiles(scratch); err != nil {
		return nil, 0, err
	}
	o := MemberOptions{
		Name: "reader", Voters: []Voter{{Name: "reader", Peer: "127.0.0.1:1", Client: "127.0.0.1:2"}}, Dir: scratch,
		Log: slog.New(slog.DiscardHandler), // of the copy; what keeps it from being read is the error
	}
	err = alone(ctx, o, true, func(ctx context.Context, c *clientv3.Client) error {
		answer, err := c.Get(ctx, prefix, clientv3.WithPrefix())
		if err != nil {
			return err
		}
		revision = answer.Header.Revision
		entries = entriesOf(answer.Kvs)
		return nil
	})
	return entries, revision, err
}

func entriesOf(all []*mvccpb.KeyValue) (entries []kv.Entry) {
	for _, e := range all {
		entries = append(entries, entryOf(e))
	}
	return entries
}

func entryOf(e *mvccpb.KeyValue) kv.Entry {
	return kv.Entry{Key: string(e.Key), Value: e.Value, ModRevision: e.ModRevision, Lease: kv.LeaseID(e.Lease)}
}

// alone runs a member that only this process reaches, as the only one of its cluster, while use uses it.
// With force it goes on from its directory without the other members that the directory names.
func alone(
	ctx context.Context, o MemberOptions, force bool, use func(context.Context, *clientv3.Client) error,
) (err error) {
	ctx, cancel := context.WithTimeout(ctx, seedTimeout)
	defer cancel()
	o.setDefaults()
	o.ListenPeer, o.ListenClient = "127.0.0.1:0", "127.0.0.1:0"
	at := slices.IndexFunc(o.Voters, func(v Voter) bool { return v.Name == o.Name })
	if err := o.check(at); err != nil {
		return err
	}
	m := &Member{o: o, self: o.Voters[at], broken: make(chan error, 1)}
	m.ctx, m.stop = context.WithCancel(ctx)
	defer m.stop()
	server, err := m.start(way{
		cluster: o.Name + "=" + m.peerURL(m.self), state: embed.ClusterStateFlagNew, force: force,
	})
	if err != nil {
		return err
	}
	defer func() { m.stop(); m.shutDown(server) }()
	select {
	case <-server.Server.ReadyNotify():
	case err := <-m.broken:
		return err
	case err := <-server.Err():
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
	c := v3client.New(server.Server)
	defer c.Close()
	return use(ctx, c)
}

func syncDir(name string) error {
	d, err := os.Open(name)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
