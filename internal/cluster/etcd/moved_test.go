package etcd

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"go.etcd.io/etcd/server/v3/storage/wal"
	"go.uber.org/zap"

	"penstock/tests/support/porttest"
)

// move gives members other addresses. Members that run keep the list that they have.
func (c *cluster) move(which ...int) {
	c.t.Helper()
	c.voters = slices.Clone(c.voters)
	for _, i := range which {
		c.voters[i].Peer, c.voters[i].Client = porttest.Address(c.t), porttest.Address(c.t)
	}
}

// settled waits until every running member has the addresses of c.voters for all members, and nothing else.
func (c *cluster) settled() {
	c.t.Helper()
	ctx := within(c.t, enough)
	for {
		wrong := ""
		for i, m := range c.members {
			if m == nil {
				continue
			}
			s := m.probe(ctx, c.voters[i])
			for _, k := range s.members {
				at := slices.IndexFunc(c.voters, func(v Voter) bool { return v.Name == k.Name })
				if want := "http://" + c.voters[at].Peer; len(k.PeerURLs) != 1 || k.PeerURLs[0] != want {
					wrong = fmt.Sprintf("%s has %s at %v, not at %s", m.o.Name, k.Name, k.PeerURLs, want)
				}
			}
			if s.state != running {
				wrong = m.o.Name + " does not answer"
			}
		}
		if wrong == "" {
			return
		}
		if !pause(ctx, probePause) {
			c.t.Fatal(wrong)
		}
	}
}

// All members get other addresses while they are stopped, three times: the third time two of them change places.
func TestAllMembersMove(t *testing.T) {
	t.Parallel()
	c := startCluster(t)
	put(t, c.dial(Options{}, 0), "k", "1")
	c.stop(0, 1, 2)
	c.move(0, 1, 2)
	c.start(0, 1, 2)
	c.ready(0, 1, 2)
	c.settled()
	c.stop(0, 1, 2)
	c.move(0, 1, 2) // the log has the changes of the first time now
	c.start(0, 1, 2)
	c.ready(0, 1, 2)
	c.settled()
	put(t, c.dial(Options{}, 0), "k", "2")
	c.stop(0, 1, 2)
	c.voters = slices.Clone(c.voters)
	a, b := &c.voters[0], &c.voters[1]
	a.Peer, a.Client, b.Peer, b.Client = b.Peer, b.Client, a.Peer, a.Client
	c.start(0, 1, 2)
	c.ready(0, 1, 2)
	if got := get(t, c.dial(Options{}, 1), "k"); got != "2" {
		t.Errorf("k is %q", got)
	}
	c.stop(2) // the majority is the two that have changed places
	put(t, c.dial(Options{}, 0), "k", "3")
}

// The members move one after the other. Each is started with the list that will hold at the end, so it knows the
// addresses at which the others are still to be found only from its own files.
func TestMembersMoveOneByOne(t *testing.T) {
	t.Parallel()
	c := startCluster(t)
	old := c.voters
	s := dial(t, []string{old[0].Client, old[1].Client, old[2].Client}, Options{Learn: true})
	put(t, s, "k/0", "")
	c.move(0, 1, 2)
	for i := range c.voters {
		c.stop(i)
		c.start(i)
		c.ready(i)
		at := "http://" + c.voters[i].Peer
		moved := func(m *Member) bool {
			for _, k := range m.probe(t.Context(), Voter{Name: m.o.Name, Peer: m.self.Peer}).members {
				if k.Name == c.voters[i].Name {
					return len(k.PeerURLs) == 1 && k.PeerURLs[0] == at
				}
			}
			return false
		}
		for ctx := within(t, enough); !slices.ContainsFunc(c.members, moved); {
			if !pause(ctx, probePause) {
				t.Fatalf("nobody knows %s at %s", c.voters[i].Name, at)
			}
		}
		put(t, s, fmt.Sprintf("k/%d", i+1), "") // by a client that was told the old addresses only
		for ctx := within(t, enough); ; {       // once none of those that it knows holds, nobody could tell it others
			known := s.(*store).all()
			if slices.Contains(known, "http://"+c.voters[i].Client) {
				break
			}
			if !pause(ctx, probePause) {
				t.Fatalf("the client knows %v", known)
			}
		}
	}
	c.settled()
	for _, gone := range []int{0, 1, 2} { // each pair is a majority
		c.stop(gone)
		put(t, s, "k/last", c.voters[gone].Name)
		c.start(gone)
		c.ready(gone)
	}
}

// A member whose disk is lost moves at the same time: it is added anew at its new address.
func TestWipedMemberMoves(t *testing.T) {
	t.Parallel()
	c := startCluster(t)
	put(t, c.dial(Options{}, 0), "kept", "yes")
	before := identity(t, c, 1)
	c.stop(0, 1, 2)
	c.wipe(1)
	c.move(0, 1, 2)
	c.start(0, 1, 2)
	c.ready(0, 1, 2)
	if got := get(t, c.dial(Options{}, 1), "kept"); got != "yes" || identity(t, c, 1) == before {
		t.Errorf("it serves %q, and was %x", got, before)
	}
	c.settled()
}

// The process ends at any moment of a move, and the members have moved again before it comes back.
func TestMoveIsKilled(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 3)
	launch := func() (all []*child) {
		for i := range c.voters {
			o := c.options(i)
			o.UnsafeNoFsync = false
			all = append(all, startChild(t, o))
		}
		return all
	}
	for round := range 4 {
		children := launch()
		if round%2 == 0 { // in the odd rounds they are killed before they are ready
			for _, child := range children {
				child.ready(t)
			}
		} else {
			pause(t.Context(), time.Duration(round)*100*time.Millisecond) // any moment will do
		}
		for _, child := range children {
			child.kill()
		}
		c.move(0, 1, 2)
	}
	for _, child := range launch() {
		child.ready(t)
	}
	put(t, c.dial(Options{}, 0, 1, 2), "k", "1")
}

func TestPlaced(t *testing.T) {
	for _, tc := range []struct{ stored, want string }{
		{"http://10.0.0.1:4255", "http://10.0.0.1:4255"},
		{"http://10.0.0.9:4255", "http://10.0.0.9:4255 http://+a@10.0.0.1:4255"},
		{"https://10.0.0.9:4255", "http://10.0.0.9:4255 http://+a@10.0.0.1:4255"},
		{"http://10.0.0.9:4255 http://+a@10.0.0.5:4255", "http://10.0.0.9:4255 http://+a@10.0.0.1:4255"},
		{"http://10.0.0.1:4255 http://+a@10.0.0.5:4255", "http://10.0.0.1:4255"},
		{"http://+a@10.0.0.1:4255", "http://+a@10.0.0.1:4255"}, // two have changed places: it is all that is known
		{"http://+a@10.0.0.5:4255", "http://+a@10.0.0.5:4255 http://+a@10.0.0.1:4255"},
	} {
		got := placed(strings.Fields(tc.stored), "http", "a", "10.0.0.1:4255")
		if strings.Join(got, " ") != tc.want {
			t.Errorf("%s becomes %v, want %s", tc.stored, got, tc.want)
		}
	}
	for _, tc := range []struct{ stored, want string }{
		{"http://10.0.0.9:1", "http://10.0.0.9:1"},
		{"https://10.0.0.9:1 http://+a@10.0.0.5:1", "http://10.0.0.9:1"},
	} {
		if got := placed(strings.Fields(tc.stored), "http", "a", ""); strings.Join(got, " ") != tc.want {
			t.Errorf("without an address in the list %s becomes %v, want %s", tc.stored, got, tc.want)
		}
	}
}

// At the start after a move, etcd does not go through what its database has: it would bring old addresses back.
func TestPlaceSkipsWhatIsApplied(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 2)
	c.start(0, 1)
	c.ready(0, 1)
	c.stop(0, 1)
	noted := func() uint64 {
		t.Helper()
		m := &Member{o: c.options(0), self: c.voters[0]}
		if err := m.place(); err != nil {
			t.Fatal(err)
		}
		snaps, err := wal.ValidSnapshotEntries(zap.NewNop(), filepath.Join(m.o.Dir, memberDir, "wal"))
		if err != nil {
			t.Fatal(err)
		}
		return snaps[len(snaps)-1].GetIndex()
	}
	if at := noted(); at != 0 {
		t.Errorf("nothing has moved, and the log has a note at entry %d", at)
	}
	c.move(1)
	if at := noted(); at < 4 { // two members, their attributes
		t.Errorf("the log has a note at entry %d", at)
	}
	c.start(0, 1)
	c.ready(0, 1)
	c.settled()
}
