package etcd

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"penstock/internal/cluster/kv"
	"penstock/tests/support/porttest"
)

func TestMemberDiesAndComesBack(t *testing.T) {
	t.Parallel()
	c := startCluster(t)
	s := c.dial(Options{}, 0, 1, 2)
	w := watch(t, s, "k/", 0)
	count := 0
	for _, gone := range []int{0, 1, 2} { // so that the leader, and the member that the client uses, are among them
		began := time.Now()
		c.stop(gone)
		stopped := time.Since(began)
		began = time.Now()
		for range 5 {
			put(t, s, fmt.Sprintf("k/%03d", count), "v")
			count++
		}
		t.Logf("member %d: stopped in %v, five changes in %v", gone, stopped, time.Since(began))
		w.distinct(t, count)
		c.start(gone)
		c.ready(gone)
	}
	events := w.distinct(t, count)
	for i, e := range events[:count] {
		if want := fmt.Sprintf("k/%03d=v", i); e != want {
			t.Fatalf("event %d is %q, not %q", i, e, want)
		}
	}
}

func TestQuorumLost(t *testing.T) {
	t.Parallel()
	c := startCluster(t)
	const limit = 2 * time.Second
	s := c.dial(Options{RequestTimeout: limit, AttemptTimeout: 500 * time.Millisecond}, 0, 1, 2)
	lease, err := s.Grant(within(t, enough), 10*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	first := put(t, s, "a", "1")
	w := watch(t, s, "", first)
	c.stop(1, 2)

	var all sync.WaitGroup
	for name, call := range map[string]func() error{
		"List": func() error { _, _, err := s.List(t.Context(), "a"); return err },
		"Txn":  func() error { _, _, err := s.Txn(t.Context(), nil, []kv.Op{{Key: "lost"}}); return err },
		"KeepAlive": func() (err error) {
			for end := time.Now().Add(limit); err == nil && time.Now().Before(end); { // the leader leads for a moment
				_, err = s.KeepAlive(t.Context(), lease)
			}
			return err
		},
		"Grant": func() error { _, err := s.Grant(t.Context(), time.Second); return err },
	} {
		all.Go(func() {
			began := time.Now()
			err := call()
			if !errors.Is(err, kv.ErrUnavailable) {
				t.Errorf("%s without a majority: %v", name, err)
			}
			if took := time.Since(began); took > limit+20*time.Second {
				t.Errorf("%s took %v", name, took)
			}
			if err != nil && !strings.Contains(err.Error(), c.voters[2].Client) {
				t.Errorf("%s does not name the endpoints: %v", name, err)
			}
		})
	}
	all.Wait()
	c.start(1)
	c.ready(1)
	put(t, s, "b", "2")
	if get(t, s, "a") != "1" || get(t, s, "b") != "2" {
		t.Error("after the majority came back a value is missing")
	}
	events := w.waitFor(t, 1)
	if last := events[len(events)-1]; last != "b=2" && last != "lost=" {
		t.Errorf("the watch saw %v", events)
	}
}

// A disk is lost: the member gets a new identity and all data.
func TestWipedMemberRejoins(t *testing.T) {
	t.Parallel()
	c := startCluster(t)
	s := c.dial(Options{}, 0)
	put(t, s, "kept", "yes")
	before := identity(t, c, 1)
	c.stop(1)
	c.wipe(1)
	c.start(1)
	c.ready(1)
	if after := identity(t, c, 1); after == before {
		t.Errorf("the member that lost its disk votes under its old identity %x", after)
	}
	if got := get(t, c.dial(Options{}, 1), "kept"); got != "yes" {
		t.Errorf("it serves %q", got)
	}
	c.stop(2) // now the majority needs the new member
	put(t, s, "more", "yes")
	if !strings.Contains(c.log.String(), "its old identity is replaced") {
		t.Error("the log says nothing of it")
	}
}

// A member that must not enter is refused before the cluster removes or adds anything: a member that ends right after
// that would count for the majority.
func TestRefusedMemberDoesNotEnter(t *testing.T) {
	t.Parallel()
	c := startCluster(t)
	put(t, c.dial(Options{}, 0), "rebuilt", "without it")
	before := identity(t, c, 1)
	c.stop(1)
	c.wipe(1)
	o := c.options(1)
	o.EntersPrefix = "rebuilt"
	o.Enters = func(entries []kv.Entry) error {
		if len(entries) != 1 || string(entries[0].Value) != "without it" {
			t.Errorf("it is asked with %v", entries)
		}
		return errors.New("it was not named")
	}
	m, err := Start(o)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	if err := m.Ready(t.Context()); err == nil || err.Error() != "it was not named" {
		t.Errorf("it ends with %v", err)
	}
	if after := identity(t, c, 1); after != before {
		t.Errorf("its identity was %x and is %x", before, after)
	}
}

// A disk is lost while the others are away: the member must wait for them, and neither begin a new cluster nor vote.
func TestWipedMemberWaits(t *testing.T) {
	t.Parallel()
	c := startCluster(t)
	put(t, c.dial(Options{}, 0), "kept", "yes")
	c.stop(0, 1, 2)
	c.wipe(1)
	c.start(1)
	if err := c.members[1].Ready(within(t, time.Second)); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("alone: %v", err)
	}
	c.start(0) // it has data, but with the empty member it is no majority
	if err := c.members[1].Ready(within(t, 2500*time.Millisecond)); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("with one other: %v", err)
	}
	c.start(2)
	c.ready(0, 1, 2)
	if got := get(t, c.dial(Options{}, 1), "kept"); got != "yes" {
		t.Errorf("it serves %q", got)
	}
}

// A cluster begins only when all voters are there, because an empty directory may be a lost disk.
func TestFirstStartNeedsAll(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 3)
	c.start(0, 1)
	if err := c.members[0].Ready(within(t, reportEvery+time.Second)); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("with two of three: %v", err)
	}
	if !strings.Contains(c.log.String(), `"no answer from"="c (`+c.voters[2].Peer) {
		t.Error("the log does not say who is missing")
	}
	c.start(2)
	c.ready(0, 1, 2)
}

func TestCloseWhileItWaits(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 3)
	c.start(0)
	m := c.members[0]
	if err := m.Ready(within(t, 100*time.Millisecond)); !errors.Is(err, context.DeadlineExceeded) ||
		!strings.Contains(err.Error(), "all of them must be there once") {
		t.Errorf("alone: %v", err)
	}
	began := time.Now()
	c.stop(0)
	if took := time.Since(began); took > 20*time.Second {
		t.Errorf("Close took %v", took)
	}
	if err := m.Ready(t.Context()); !errors.Is(err, kv.ErrClosed) {
		t.Errorf("Ready after Close: %v", err)
	}
}

func TestNamesakeIsRefused(t *testing.T) {
	t.Parallel()
	c := startCluster(t)
	o := c.options(1)
	o.Voters = append([]Voter(nil), o.Voters...)
	o.Voters[1].Peer, o.Voters[1].Client, o.Dir = porttest.Address(t), porttest.Address(t), t.TempDir()
	m, err := Start(o)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	if err := m.Ready(within(t, enough)); err == nil || !strings.Contains(err.Error(), "must have another name") {
		t.Errorf("a second node b: %v", err)
	}
	put(t, c.dial(Options{}, 1), "x", "y") // the first member goes on
}

func TestRemovedMemberStops(t *testing.T) {
	t.Parallel()
	c := startCluster(t)
	client, id := admin(t, c, 0), identity(t, c, 2)
	for ctx := within(t, enough); ; { // refused until all members have been connected for some seconds
		_, err := client.MemberRemove(ctx, id)
		if err == nil {
			break
		}
		if !pause(ctx, probePause) {
			t.Fatal(err)
		}
	}
	select {
	case <-c.members[2].Done():
	case <-time.After(20 * time.Second):
		t.Fatal("the removed member runs")
	}
	if err := c.members[2].Err(); !errors.Is(err, ErrMemberStopped) {
		t.Errorf("it ended with %v", err)
	}
}

func TestMemberOptionsAreChecked(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 1)
	for name, spoil := range map[string]func(*MemberOptions){
		"is not among the voters":      func(o *MemberOptions) { o.Name = "z" },
		"needs a directory":            func(o *MemberOptions) { o.Dir = "" },
		"at least five heartbeats":     func(o *MemberOptions) { o.Election = 2 * o.Heartbeat },
		"needs all three files":        func(o *MemberOptions) { o.TLS.Cert = "x" },
		"cannot listen":                func(o *MemberOptions) { o.ListenPeer = "192.0.2.1:1" },
		"cannot be the name of a node": func(o *MemberOptions) { o.Voters = []Voter{{Name: "a=b"}} },
		"are more than 5: let the f":   func(o *MemberOptions) { o.Voters = many(6); o.Name = "n0" },
	} {
		o := c.options(0)
		spoil(&o)
		m, err := Start(o)
		if err == nil {
			_ = m.Close()
		}
		if err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("want %q, got %v", name, err)
		}
	}
}

// Close leaves no goroutine of this package behind; etcd's own may take a moment.
func TestCloseEndsGoroutines(t *testing.T) {
	c := newCluster(t, 1)
	c.start(0)
	c.ready(0)
	s := c.dial(Options{}, 0)
	w := watch(t, s, "", 0)
	put(t, s, "a", "b")
	w.waitFor(t, 1)
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if err := <-w.ended; !errors.Is(err, kv.ErrClosed) {
		t.Errorf("the watch ended with %v", err)
	}
	if _, _, err := s.List(t.Context(), ""); !errors.Is(err, kv.ErrClosed) {
		t.Errorf("List after Close: %v", err)
	}
	c.stop(0)
	buf := make([]byte, 1<<20)
	for deadline := time.Now().Add(enough); ; {
		stacks := string(buf[:runtime.Stack(buf, true)])
		left := 0
		for stack := range strings.SplitSeq(stacks, "\n\n") {
			if strings.Contains(stack, "penstock/internal/cluster/etcd.(*store)") ||
				strings.Contains(stack, "penstock/internal/cluster/etcd.(*Member)") {
				left++
			}
		}
		if left == 0 {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%d goroutines are left:\n%s", left, stacks)
		}
		runtime.Gosched()
	}
}

func many(count int) []Voter {
	var voters []Voter
	for i := range count {
		voters = append(voters, Voter{Name: fmt.Sprint("n", i), Peer: fmt.Sprint("h:", i+1), Client: fmt.Sprint("h:", i+100)})
	}
	return voters
}

func admin(t *testing.T, c *cluster, i int) *clientv3.Client {
	t.Helper()
	client, err := c.members[i].adminClient([]known{{ClientURLs: []string{c.tls.scheme() + "://" + c.voters[i].Client}}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Close() })
	return client
}

// identity returns a member's id in the cluster.
func identity(t *testing.T, c *cluster, i int) uint64 {
	t.Helper()
	answer, err := admin(t, c, 0).MemberList(within(t, enough))
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range answer.Members {
		if m.Name == c.voters[i].Name {
			return m.ID
		}
	}
	t.Fatalf("the cluster does not know %q", c.voters[i].Name)
	return 0
}
