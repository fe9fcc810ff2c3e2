package etcd

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"go.etcd.io/etcd/client/pkg/v3/types"
	"go.etcd.io/etcd/server/v3/embed"
	"go.etcd.io/etcd/server/v3/etcdserver/api/membership"
	"go.etcd.io/etcd/server/v3/storage/backend"
	"go.etcd.io/etcd/server/v3/storage/schema"
	"go.etcd.io/etcd/server/v3/storage/wal"
	"go.etcd.io/etcd/server/v3/storage/wal/walpb"
	"go.etcd.io/raft/v3/raftpb"
	"go.uber.org/zap"
)

// Members are known by their names; their addresses may change while they are stopped, those of one member or of all at
// once. etcd keeps addresses in the replicated membership, so after such a move a majority would have to be found at
// the old addresses to learn the new ones. Two steps get around this:
//
//  1. At its start a member adds, in its own files, to each other member's addresses the one that its list of voters
//     has for that name (placed). etcd tries them in turn. So members find each other if one of the two lists, or what
//     one of the two has stored, is right.
//  2. When the member has a majority, it has its own address in the membership replaced (settle). That also removes
//     what step 1 added for it everywhere.
//
// A crash leaves a member that does both again. The address of step 1 carries the name as its user,
// http://+n2@HOST:PORT, which no address in the replicated membership does. So the members still agree about which
// addresses are taken, which etcd judges when it applies a change of the membership, on each member by its own files.
// The + makes etcd, which sorts addresses as texts, try this one first: at the old one another member may be by now.

const (
	settlePause    = 100 * time.Millisecond
	maxSettlePause = time.Minute
	// A member that has no leader for strandedAfter, and has applied a change that took the addresses of step 1 away,
	// starts again, at most maxStrandings times.
	strandedAfter = 3 * time.Second
	maxStrandings = 5
)

// placed returns what this member stores as the addresses of the member name: those of the membership, with the given
// scheme, and the one of the list of voters; empty: the list does not have it.
func placed(stored []string, scheme, name, peer string) []string {
	var base []string
	for _, u := range stored {
		if !strings.Contains(u, "@") {
			base = append(base, withScheme(u, scheme))
		}
	}
	if base == nil && len(stored) > 0 { // settle could not get the plain address
		base = []string{withScheme(stored[0], scheme)}
	}
	if peer != "" && !slices.ContainsFunc(base, func(u string) bool { return hostOf(u) == peer }) {
		base = append(base, marked(scheme, name, peer))
	}
	return base
}

func marked(scheme, name, peer string) string {
	return (&url.URL{Scheme: scheme, User: url.User("+" + name), Host: peer}).String()
}

// hostOf returns the HOST:PORT of a URL.
func hostOf(u string) string {
	at, err := url.Parse(u)
	if err != nil {
		return ""
	}
	return at.Host
}

func withScheme(u, scheme string) string {
	_, rest, ok := strings.Cut(u, "://")
	if !ok {
		return u
	}
	return scheme + "://" + rest
}

// place makes the member's own copy of the membership say where the list of voters has the other members, and that all
// speak the scheme, http or https: a cluster that gets TLS, or loses it, would go on with the old one. Nodes convert
// their copies one by one at their starts, and find each other once a majority has. A crash leaves a copy that is
// converted or not. The member does not run yet.
func (m *Member) place() error {
	file := filepath.Join(m.o.Dir, memberDir, "snap", "db")
	if _, err := os.Stat(file); err != nil {
		return nil // it begins, or etcd will say what is missing
	}
	be := backend.NewDefaultBackend(zap.NewNop(), file)
	members := schema.NewMembershipBackend(zap.NewNop(), be)
	all, _ := members.MustReadMembersFromBackend()
	m.counted.set(len(all))
	changed, moved := false, false
	for _, k := range all {
		var at string
		if v := m.voter(k.Name); v != nil && v.Name != m.o.Name {
			at = v.Peer
		}
		peer, client := placed(k.PeerURLs, m.o.TLS.scheme(), k.Name, at), slices.Clone(k.ClientURLs)
		for i := range client {
			client[i] = withScheme(client[i], m.o.TLS.scheme())
		}
		if !slices.Equal(peer, k.PeerURLs) || !slices.Equal(client, k.ClientURLs) {
			k.PeerURLs, k.ClientURLs, changed = peer, client, true
			members.MustSaveMemberToBackend(k)
		}
		moved = moved || len(peer) > 1
		m.remember(k)
	}
	if changed {
		be.ForceCommit()
	}
	index, _ := schema.ReadConsistentIndex(be.ReadTx())
	if err := be.Close(); err != nil {
		return fmt.Errorf("etcd: the database of the embedded member, %s, could not be closed: %w", file, err)
	}
	if moved {
		return m.skipApplied(index, slices.Collect(maps.Keys(all)))
	}
	return nil
}

// skipApplied notes in the log, as etcd does now and then, that its entries up to index are in the database. At its
// start etcd goes through all entries since the last such note, and tells its network of each address that a member
// once had, although the database has newer ones. The member does not run. A crash leaves the log with the note or
// without.
func (m *Member) skipApplied(index uint64, members []types.ID) error {
	dir := filepath.Join(m.o.Dir, memberDir, "wal")
	lg := zap.NewNop()
	snaps, err := wal.ValidSnapshotEntries(lg, dir)
	if err != nil || len(snaps) == 0 || index <= snaps[len(snaps)-1].GetIndex() {
		return nil // etcd says what is wrong, if something is
	}
	w, err := wal.Open(lg, dir, snaps[len(snaps)-1])
	if err != nil {
		return nil
	}
	_, state, entries, err := w.ReadAll()
	at := slices.IndexFunc(entries, func(e *raftpb.Entry) bool { return e.GetIndex() == index })
	if err != nil || at < 0 {
		return w.Close()
	}
	term := entries[at].GetTerm()
	voters := make([]uint64, len(members))
	for i, id := range members {
		voters[i] = uint64(id)
	}
	slices.Sort(voters)
	// What is in the database is committed, although the log may not say so yet.
	state.Commit = new(max(state.GetCommit(), index))
	err = w.Save(state, nil)
	if err == nil {
		err = w.SaveSnapshot(&walpb.Snapshot{Index: &index, Term: &term, ConfState: &raftpb.ConfState{Voters: voters}})
	}
	if err = errors.Join(err, w.Close()); err != nil {
		return fmt.Errorf("etcd: the log of the embedded member in %s cannot be written: %w", dir, err)
	}
	return nil
}

// remember notes at which other addresses a member may be found.
func (m *Member) remember(k *membership.Member) {
	v := m.voter(k.Name)
	if v == nil {
		return
	}
	var also []Voter
	for i, u := range k.PeerURLs {
		old := Voter{Name: k.Name, Peer: hostOf(u), Client: v.Client}
		if i < len(k.ClientURLs) {
			old.Client = hostOf(k.ClientURLs[i])
		}
		if old.Peer != "" && old.Peer != v.Peer {
			also = append(also, old)
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.before == nil {
		m.before = make(map[string][]Voter)
	}
	m.before[k.Name] = also
}

// memberCount returns how many members the membership has, by this member's files, which the list may be ahead of.
func (m *Member) memberCount() int {
	return cmp.Or(m.counted.get(), len(m.o.Voters))
}

// formerly returns where this member's files have a member besides the address of the list.
func (m *Member) formerly(name string) []Voter {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.before[name]
}

// voter returns the voter of that name, or nil.
func (m *Member) voter(name string) *Voter {
	i := slices.IndexFunc(m.o.Voters, func(v Voter) bool { return v.Name == name })
	if i < 0 {
		return nil
	}
	return &m.o.Voters[i]
}

// settle has this member's address in the membership replaced by the one that it has now. It runs on its own goroutine
// from when the member has a majority until that is done, or the member stops.
func (m *Member) settle(ctx context.Context, server *embed.Etcd) {
	s := server.Server
	for wait := settlePause; ; wait = min(2*wait, maxSettlePause) {
		own := s.Cluster().Member(s.MemberID())
		want := m.peerURL(m.self)
		if own == nil || slices.Equal(own.PeerURLs, []string{want}) {
			return
		}
		old := own.PeerURLs
		err := m.update(ctx, server, want)
		if errors.Is(err, membership.ErrPeerURLexists) {
			// The member that had this address has not told its own yet, and perhaps waits for this one in turn.
			if alias := marked(m.o.TLS.scheme(), m.o.Name, m.self.Peer); !slices.Equal(old, []string{alias}) {
				err = m.update(ctx, server, alias)
			}
		}
		if err == nil {
			m.o.Log.Info("the other etcd members know the new address of this one", "before", old, "now", m.self.Peer)
			wait = settlePause
		} else if ctx.Err() == nil {
			m.o.Log.Debug("the address of this etcd member cannot be replaced yet", "error", err)
		}
		select {
		case <-s.StopNotify():
			return
		default:
		}
		if !pause(ctx, wait) {
			return
		}
	}
}

func (m *Member) update(ctx context.Context, server *embed.Etcd, peerURL string) error {
	ctx, cancel := context.WithTimeout(ctx, changeTimeout)
	defer cancel()
	_, err := server.Server.UpdateMember(ctx, membership.Member{
		ID: server.Server.MemberID(), RaftAttributes: membership.RaftAttributes{PeerURLs: []string{peerURL}},
	})
	return err
}

// stranded says whether the member knows no leader, and another member at addresses among which the one of the list is
// not: its log had a change of the membership that its database did not have at the start.
func (m *Member) stranded(server *embed.Etcd) bool {
	if server.Server.Leader() != 0 {
		return false
	}
	for _, k := range server.Server.Cluster().Members() {
		if v := m.voter(k.Name); v != nil && v.Name != m.o.Name &&
			!slices.ContainsFunc(k.PeerURLs, func(u string) bool { return hostOf(u) == v.Peer }) {
			return true
		}
	}
	return false
}
