package etcd

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"penstock/tests/support/porttest"
)

func TestDiffers(t *testing.T) {
	own := &said{Name: "a", Cluster: "x", Peers: []string{"a=h:1", "b=h:4"}, Voters: []string{"a", "b", "c"}}
	for name, tc := range map[string]struct {
		other *said
		want  []string
	}{
		"an older version says nothing": {nil, nil},
		"another order of the voters":   {&said{Cluster: "x", Voters: []string{"c", "b", "a"}}, nil},
		"another address":               {&said{Cluster: "x", Peers: []string{"a=i:9"}, Voters: own.Voters}, nil},
		"another name of the cluster":   {&said{Cluster: "y", Voters: own.Voters}, []string{`the cluster "y"`, `of "x"`}},
		"other voters": {
			&said{Cluster: "x", Peers: []string{"b=h:4", "a=h:1"}, Voters: []string{"b"}},
			[]string{"(b=h:4,a=h:1)", "runs on b,", "(a=h:1,b=h:4) on a, b, c"},
		},
		"one more": {&said{Cluster: "x", Voters: []string{"a", "b", "c", "d", "e"}}, []string{"a, b, c, d, e"}},
	} {
		why := own.differs(tc.other)
		if (why == "") != (tc.want == nil) {
			t.Errorf("%s: %q", name, why)
		}
		for _, w := range tc.want {
			if !strings.Contains(why, w) {
				t.Errorf("%s: %q lacks %q", name, why, w)
			}
		}
	}
}

// startAlone starts a member with its own list of all nodes, of which the first votes.
func startAlone(t *testing.T, c *cluster, i int, order ...int) *Member {
	t.Helper()
	o := c.options(i)
	o.Peers = nil
	for _, n := range order {
		o.Peers = append(o.Peers, c.voters[n])
	}
	o.Voters = Voters(o.Peers)
	m, err := Start(o)
	if err != nil {
		t.Fatal(err)
	}
	c.members[i] = m
	return m
}

// refusedWith waits until a member ends, and wants both lists in its reason.
func refusedWith(t *testing.T, m *Member, want ...string) {
	t.Helper()
	err := m.Ready(within(t, enough))
	if err == nil || errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("%s is ready, or waits: %v", m.o.Name, err)
	}
	for _, w := range want {
		if !strings.Contains(err.Error(), w) {
			t.Errorf("%s says %v, without %q", m.o.Name, err, w)
		}
	}
}

// Two nodes that list each other in another order would be two clusters. They are started at the same moment, and one
// after the other.
func TestListsInAnotherOrder(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 2)
	a, b := c.voters[0].Peer, c.voters[1].Peer
	first, second := startAlone(t, c, 0, 0, 1), startAlone(t, c, 1, 1, 0)
	// One may be refused before the other has asked it: then the other begins, alone as its list says.
	select {
	case <-first.Done():
		refusedWith(t, first, "a="+a+",b="+b, "b="+b+",a="+a)
	case <-second.Done():
		refusedWith(t, second, "a="+a+",b="+b, "b="+b+",a="+a)
	case <-time.After(20 * time.Second):
		t.Fatal("nobody is refused")
	}
	c.stop(0, 1)
	c.wipe(0)
	c.wipe(1)

	if err := startAlone(t, c, 0, 0, 1).Ready(within(t, enough)); err != nil {
		t.Fatal(err)
	}
	refusedWith(t, startAlone(t, c, 1, 1, 0), "node a does not mean the same cluster", "a at http://"+a, "b="+b+",a="+a)
}

// Two nodes that formed a cluster each are listed together later.
func TestFormedAloneAndJoined(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 3)
	for i := range 2 {
		if err := startAlone(t, c, i, i).Ready(within(t, enough)); err != nil {
			t.Fatal(err)
		}
		c.stop(i)
	}
	c.start(0)
	c.start(1)
	ends := []*Member{c.members[0], c.members[1]}
	select {
	case <-ends[0].Done():
		refusedWith(t, ends[0], "of the cluster", "node b runs a member of the cluster", "b at http://"+c.voters[1].Peer)
	case <-ends[1].Done():
		refusedWith(t, ends[1], "of the cluster", "node a runs a member of the cluster", "a at http://"+c.voters[0].Peer)
	case <-time.After(20 * time.Second):
		t.Fatal("nobody refuses")
	}
}

// A node that only its own list has as a voter is not added. Once the lists of those that run have it, it is.
func TestUnlistedIsNotAdded(t *testing.T) {
	t.Parallel()
	c := startCluster(t)
	five := append(slices.Clone(c.voters), Voter{Name: "d", Peer: porttest.Address(t), Client: porttest.Address(t)},
		Voter{Name: "e", Peer: porttest.Address(t), Client: porttest.Address(t)})
	three := c.voters
	c.voters, c.members = five, append(c.members, nil, nil)
	c.start(3)
	until(t, "refused", func() bool { return c.members[3].refusal.get() != nil })
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if err := c.members[3].Ready(ended); err == nil || !strings.Contains(err.Error(), "d is not one of those that run") {
		t.Fatalf("it was added, or does not say why not: %v", err)
	}
	if c.voters = three; identity(t, c, 0) == 0 {
		t.Fatal("the cluster does not answer")
	}
	c.voters = five
	for i := range 3 {
		c.stop(i)
		c.start(i)
		c.ready(i)
	}
	c.ready(3)
	c.start(4)
	c.ready(4)
	c.stop(0, 1) // three of five go on
	put(t, c.dial(Options{}, 4, 3, 2), "k", "1")
}

// Two of five leave: the lists of those that stay say so first. A member that is gone for good is taken out by name.
func TestMembersLeave(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 5)
	c.start(0, 1, 2, 3, 4)
	c.ready(0, 1, 2, 3, 4)
	put(t, c.dial(Options{}, 0), "k", "1")
	five := c.voters
	leaving := c.options(4)
	leaving.Peers, leaving.Voters = slices.Clone(five), five[:3]
	c.stop(4)
	untilItSays(t, "restart them first", func(ctx context.Context) error { return Leave(ctx, leaving) })
	c.voters = five[:3]
	for i := range 3 {
		c.stop(i)
		c.start(i)
		c.ready(i)
	}
	if err := Leave(within(t, enough), leaving); err != nil {
		t.Fatal(err)
	}
	if has, _ := hasLog(leaving.Dir); has {
		t.Error("its files are in place")
	}
	c.stop(3)
	s := c.dial(Options{Learn: true}, 0, 1, 2)
	if err := Remove(within(t, enough), s, "d"); err != nil {
		t.Fatal(err)
	}
	if answer, err := admin(t, c, 0).MemberList(within(t, enough)); err != nil || len(answer.Members) != 3 {
		t.Fatalf("the members are %v, %v", answer, err)
	}
	c.stop(2)
	put(t, s, "k", "2") // two of three
}
