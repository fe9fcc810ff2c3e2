package etcd

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"penstock/internal/cluster/kv"
)

// Leave takes a node that ran a member, and is no voter by its list any more, out of the membership: o is as for Start.
// It sets the member's files aside. While the others do not answer, or have no majority to spare, it waits, until ctx
// ends. It does nothing if there are no files. It refuses if the files are of another cluster than the voters run, or
// if a voter's list still has the node: the members that stay learn of it first, so that a mistake in one list takes
// nobody out.
func Leave(ctx context.Context, o MemberOptions) error {
	o.setDefaults()
	if has, err := hasLog(o.Dir); err != nil || !has {
		return err
	}
	tls, err := o.TLS.open()
	if err != nil {
		return err
	}
	m := &Member{o: o, ctx: ctx, tls: tls, http: tls.client()}
	defer m.http.CloseIdleConnections()
	if err := m.agreeToStart(); err != nil {
		return err
	}
	for said := ""; ; {
		err := m.leaveOnce()
		if err == nil {
			break
		}
		if err.Error() != said {
			said = err.Error()
			o.Log.Warn("this node runs no etcd member by its cluster-peers any more, and cannot leave yet; it tries again",
				"error", err)
		}
		if !pause(ctx, time.Second) {
			return err
		}
	}
	kept, err := SetAside(o.Dir)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrDirectory, err)
	}
	o.Log.Info("this node runs no etcd member any more: it is out of the membership, and its files are kept", "kept", kept)
	return nil
}

// leaveOnce removes the member, unless it is removed.
func (m *Member) leaveOnce() error {
	for _, v := range m.o.Voters {
		if s := m.askWho(m.ctx, v); s != nil && slices.Contains(s.Voters, m.o.Name) {
			return fmt.Errorf("%w: by the cluster-peers of node %s (%s) %s still runs a member of the metadata store, and by "+
				"those of this node (%s) it does not: write the new list into the settings of the nodes that stay, and restart "+
				"them first; nothing was changed", kv.ErrUnavailable, v.Name, strings.Join(s.Peers, ","), m.o.Name,
				strings.Join(m.says().Peers, ","))
		}
	}
	client, err := m.clientOf(m.o.Voters...)
	if err != nil {
		return err
	}
	defer client.Close()
	ctx, cancel := context.WithTimeout(m.ctx, changeTimeout)
	defer cancel()
	return removeNamed(ctx, client, m.o.Name)
}

// Remove takes the member of a node that is gone out of the membership, if there is one of that name. s is of Dial.
func Remove(ctx context.Context, s kv.Store, name string) error {
	c, ok := s.(*store)
	if !ok || !c.o.Learn { // it is not the cluster's own etcd
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, c.o.RequestTimeout)
	defer cancel()
	return removeNamed(ctx, c.client, name)
}

func removeNamed(ctx context.Context, client *clientv3.Client, name string) error {
	answer, err := client.MemberList(ctx)
	if err != nil {
		return fmt.Errorf("%w: the members of etcd do not answer: %w", kv.ErrUnavailable, err)
	}
	for _, k := range answer.Members {
		if k.Name != name {
			continue
		}
		_, err := client.MemberRemove(ctx, k.ID)
		if err != nil && !errors.Is(err, rpctypes.ErrMemberNotFound) {
			return fmt.Errorf("%w: the member %s of etcd cannot be removed: %w", kv.ErrUnavailable, name, err)
		}
	}
	return nil
}
