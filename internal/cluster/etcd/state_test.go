package etcd

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"

	"penstock/internal/cluster/kv"
)

// until waits for a condition.
func until(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for ctx := within(t, enough); !holds(); {
		if !pause(ctx, 20*time.Millisecond) {
			t.Fatalf("not %s", what)
		}
	}
}

// That the store takes no changes is known before anybody needs one, and ends by itself.
func TestFullIsKnown(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 1)
	c.start(0)
	c.ready(0)
	s := c.dial(Options{}, 0)
	if why := Full(s); why != "" {
		t.Fatal(why)
	}
	alarm := func(action etcdserverpb.AlarmRequest_AlarmAction) {
		t.Helper()
		// Of a member that is none: its own alarm a member takes back.
		_, err := etcdserverpb.NewMaintenanceClient(admin(t, c, 0).ActiveConnection()).Alarm(within(t, enough),
			&etcdserverpb.AlarmRequest{Action: action, MemberID: 7, Alarm: etcdserverpb.AlarmType_NOSPACE})
		if err != nil {
			t.Fatal(err)
		}
	}
	alarm(etcdserverpb.AlarmRequest_ACTIVATE)
	until(t, "full", func() bool { return Full(s) != "" })
	if why := Full(s); !strings.Contains(why, "takes no changes") || !strings.Contains(why, "etcdctl alarm disarm") {
		t.Error(why)
	}
	if _, _, err := s.Txn(t.Context(), nil, []kv.Op{{Key: "k"}}); !errors.Is(err, kv.ErrUnavailable) {
		t.Error(err)
	}
	alarm(etcdserverpb.AlarmRequest_DEACTIVATE)
	until(t, "room again", func() bool { return Full(s) == "" })
	put(t, s, "k", "1")
}

// A member that has filled itself with old revisions makes room, and the cluster takes changes again.
func TestMemberMakesRoom(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 1)
	o := c.options(0)
	o.QuotaBytes = 8 << 20
	m, err := Start(o)
	if err != nil {
		t.Fatal(err)
	}
	c.members[0] = m
	c.ready(0)
	s := c.dial(Options{Learn: true, Log: o.Log}, 0)
	value := []byte(strings.Repeat("x", 500<<10))
	full := false
	for range 100 {
		_, _, err := s.Txn(t.Context(), nil, []kv.Op{{Key: "k", Value: value}})
		if full = err != nil && strings.Contains(err.Error(), "has used up its space"); full {
			break
		}
	}
	if !full || !strings.Contains(c.log.String(), "go on by themselves") { // it may have room again by now
		t.Fatal("the store is not full, or the client does not say so")
	}
	put(t, s, "k", "small")
	until(t, "room", func() bool { return Full(s) == "" })
	if !strings.Contains(c.log.String(), "it has removed old revisions and goes on") {
		t.Error("the log does not say so")
	}
}

// A member that the others cannot reach is named by each of them, with the address at which they look for it.
func TestApart(t *testing.T) {
	t.Parallel()
	c := startCluster(t)
	c.stop(2)
	want := []string{"c (" + c.voters[2].Peer + ")"}
	for _, i := range []int{0, 1} {
		until(t, "apart", func() bool { return slices.Equal(c.members[i].Apart(), want) })
	}
	c.start(2)
	c.ready(2)
	for _, i := range []int{0, 1} {
		until(t, "together", func() bool { return c.members[i].Apart() == nil })
	}
}
