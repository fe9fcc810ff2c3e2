package etcd

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3client"

	"penstock/internal/cluster/kv"
)

const (
	lookEvery = 2 * time.Second // between questions about the store's state and its members' addresses
	// A member that does not answer at its address for apartRounds questions in a row, apartEvery each, counts as one
	// that cannot be reached.
	apartEvery  = time.Second
	apartRounds = 5

	roomPause   = time.Minute // after room could not be made
	roomTimeout = time.Minute
)

// Full says why the store takes no changes although it answers, and what to do; empty: it takes them. s is of Dial. It
// is known before anybody needs a change: the client asks the member that it uses every two seconds.
func Full(s kv.Store) string {
	c, ok := s.(*store)
	if !ok {
		return ""
	}
	if why := c.full.Load(); why != nil {
		return *why
	}
	return ""
}

// look runs on its own goroutine until Close. It asks the endpoint in use whether the store takes changes, and for the
// addresses of the members if Options.Learn is set.
func (s *store) look() {
	for pause(s.ctx, lookEvery) {
		s.lookForRoom()
		if s.o.Learn {
			s.learn()
		}
	}
}

func (s *store) lookForRoom() {
	ctx, cancel := context.WithTimeout(s.ctx, s.o.AttemptTimeout)
	defer cancel()
	at := s.endpointInUse()
	status, err := s.client.Status(ctx, at)
	if err != nil {
		return // the user may not ask, or the endpoint does not work; refused changes tell it then
	}
	if !slices.ContainsFunc(status.Errors, func(e string) bool { return strings.Contains(e, "NOSPACE") }) {
		s.full.Store(nil)
		return
	}
	s.isFull(fmt.Sprintf("it holds %d MiB, and its limit is %d MiB", status.DbSize>>20, status.DbSizeQuota>>20))
}

func (s *store) isFull(found string) {
	remedy := "free space with `etcdctl compact REVISION`, `etcdctl defrag --cluster` and `etcdctl alarm disarm` at " +
		strings.Join(s.given, ",")
	if s.o.Learn { // its members are embedded, see keepRoom
		remedy = "its members remove old revisions and go on by themselves if that makes room; if this lasts, delete topics"
	}
	why := fmt.Sprintf("the metadata store is full and takes no changes (%s): nothing can be elected, moved or created, "+
		"while messages go on; %s", found, remedy)
	if s.full.Swap(&why) == nil {
		s.o.Log.Error("the metadata store takes no changes", "why", why)
	}
}

// noteRoom learns from the answer to a transaction that writes.
func (s *store) noteRoom(err error) {
	switch {
	case errors.Is(err, rpctypes.ErrNoSpace):
		s.isFull("it has refused a change")
	case err == nil && s.full.Load() != nil:
		s.full.Store(nil)
	}
}

// Apart returns the other members that this one has not reached for some seconds, as NAME (HOST:PORT) with the address
// that the membership has, sorted. A member whose node does not run is one of them.
func (m *Member) Apart() []string { return m.apart.get() }

// watchOthers runs on its own goroutine from when the member has a majority until it stops. It asks the others at the
// addresses at which etcd looks for them.
func (m *Member) watchOthers(ctx context.Context, server *embed.Etcd) {
	missed := make(map[string]int) // questions in a row, by member
	for pause(ctx, apartEvery) {
		select {
		case <-server.Server.StopNotify():
			return
		default:
		}
		var apart []string
		for _, k := range server.Server.Cluster().Members() {
			if k.ID == server.Server.MemberID() || k.Name == "" {
				continue
			}
			if missed[k.Name]++; m.answersAt(k.Name, k.PeerURLs) {
				delete(missed, k.Name)
			}
			if missed[k.Name] >= apartRounds {
				apart = append(apart, fmt.Sprintf("%s (%s)", k.Name, hostOf(k.PeerURLs[0])))
			}
		}
		slices.Sort(apart)
		m.setApart(apart)
	}
}

// setApart logs what has changed.
func (m *Member) setApart(apart []string) {
	before := m.apart.set(apart)
	for _, who := range apart {
		if !slices.Contains(before, who) {
			m.o.Log.Warn("this etcd member cannot reach another one", "member", who)
		}
	}
	for _, who := range before {
		if !slices.Contains(apart, who) {
			m.o.Log.Info("this etcd member reaches the other one again", "member", who)
		}
	}
}

func (m *Member) answersAt(name string, peerURLs []string) bool {
	return slices.ContainsFunc(peerURLs, func(u string) bool {
		return m.probeAt(m.ctx, Voter{Name: name, Peer: hostOf(u)}).state == running
	})
}

// keepRoom runs on its own goroutine from when the member has a majority until it stops. When the member is full, etcd
// raises an alarm, with which the cluster takes no changes, and leaves the rest to an operator. Most of what fills a
// database is old revisions, and room that is not given back, so the member frees both and takes its alarm back, if
// that leaves enough.
func (m *Member) keepRoom(ctx context.Context, server *embed.Etcd) {
	s := server.Server
	full := func(a *etcdserverpb.AlarmMember) bool {
		return a.Alarm == etcdserverpb.AlarmType_NOSPACE && a.MemberID == uint64(s.MemberID())
	}
	for wait := apartEvery; pause(ctx, wait); {
		select {
		case <-s.StopNotify():
			return
		default:
		}
		if wait = apartEvery; slices.ContainsFunc(s.Alarms(), full) {
			if err := m.makeRoom(ctx, server); err != nil {
				wait = roomPause
				m.o.Log.Error("the embedded etcd is full, and no room can be made", "error", err, "again in", wait)
			}
		}
	}
}

func (m *Member) makeRoom(ctx context.Context, server *embed.Etcd) error {
	ctx, cancel := context.WithTimeout(ctx, roomTimeout)
	defer cancel()
	c := v3client.New(server.Server)
	defer c.Close()
	last, err := c.Get(ctx, "\x00")
	if err != nil {
		return err
	}
	// A watch that is further behind begins again. Perhaps all is compacted already.
	_, err = c.Compact(ctx, last.Header.Revision, clientv3.WithCompactPhysical())
	if err != nil && !errors.Is(err, rpctypes.ErrCompacted) {
		return err
	}
	backend := server.Server.Backend()
	before := backend.Size()
	if err := backend.Defrag(); err != nil {
		return err
	}
	if size := backend.Size(); size > m.o.QuotaBytes/10*8 {
		return fmt.Errorf("its rows alone take %d of %d bytes: delete topics", size, m.o.QuotaBytes)
	}
	_, err = c.AlarmDisarm(ctx, &clientv3.AlarmMember{
		MemberID: uint64(server.Server.MemberID()), Alarm: etcdserverpb.AlarmType_NOSPACE,
	})
	if err == nil {
		m.o.Log.Warn("the embedded etcd was full and took no changes; it has removed old revisions and goes on",
			"before", before, "now", backend.Size(), "limit", m.o.QuotaBytes)
	}
	return err
}
