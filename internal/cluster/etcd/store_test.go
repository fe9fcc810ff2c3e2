package etcd

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/zap"
	"google.golang.org/grpc"

	"penstock/internal/cluster/kv"
	"penstock/tests/support/porttest"
)

func single(t *testing.T) *cluster {
	t.Helper()
	c := newCluster(t, 1)
	c.start(0)
	c.ready(0)
	return c
}

func TestLeaseExpires(t *testing.T) {
	t.Parallel()
	s := single(t).dial(Options{}, 0)
	ctx := within(t, enough)
	lease, err := s.Grant(ctx, 2500*time.Millisecond)
	if err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	ttl, err := s.KeepAlive(ctx, lease)
	if err != nil || ttl < 2500*time.Millisecond || ttl > 4*time.Second {
		t.Fatalf("a lease of 2.5 s lives %v, %v", ttl, err)
	}
	ok, revision, err := s.Txn(ctx, nil, []kv.Op{{Key: "mine", Value: []byte("x"), Lease: lease}})
	if err != nil || !ok {
		t.Fatal(ok, err)
	}
	entries, _, err := s.List(ctx, "mine")
	if err != nil || len(entries) != 1 || entries[0].Lease != lease {
		t.Fatalf("%+v, %v", entries, err)
	}
	w := watch(t, s, "mine", revision)
	w.waitFor(t, 1) // the deletion
	if took := time.Since(began); took < ttl {
		t.Errorf("it ran out after %v", took)
	}
	if _, err := s.KeepAlive(ctx, lease); !errors.Is(err, kv.ErrLeaseGone) {
		t.Errorf("KeepAlive of a lease that ran out: %v", err)
	}
	if _, _, err := s.Txn(ctx, nil, []kv.Op{{Key: "mine", Lease: lease}}); !errors.Is(err, kv.ErrLeaseGone) {
		t.Errorf("Txn with a lease that ran out: %v", err)
	}
	if err := s.Revoke(ctx, lease); !errors.Is(err, kv.ErrLeaseGone) {
		t.Errorf("Revoke of a lease that ran out: %v", err)
	}
}

func TestWatchBelowCompaction(t *testing.T) {
	t.Parallel()
	c := single(t)
	s := c.dial(Options{}, 0)
	var last int64
	for i := range 10 {
		last = put(t, s, "k", fmt.Sprint(i))
	}
	behind := watch(t, s, "k", last)
	if _, err := admin(t, c, 0).Compact(within(t, enough), last, clientv3.WithCompactPhysical()); err != nil {
		t.Fatal(err)
	}
	err := s.Watch(within(t, enough), "k", last-5, func([]kv.Event, int64) { t.Error("it saw something") })
	if !errors.Is(err, kv.ErrCompacted) {
		t.Errorf("a watch from a compacted revision ends with %v", err)
	}
	put(t, s, "k", "after")
	if events := behind.waitFor(t, 1); events[0] != "k=after" {
		t.Errorf("the watch that was up to date saw %v", events)
	}
}

// A store that was put back to an older state has other changes under the revisions that a watch waits for.
func TestWatchOfAStoreThatWentBack(t *testing.T) {
	t.Parallel()
	c := single(t)
	s := c.dial(Options{ProgressEvery: 50 * time.Millisecond}, 0)
	var last int64
	for range 20 {
		last = put(t, s, "k", "v")
	}
	w := watch(t, s, "k", last-1)
	w.waitFor(t, 1)
	c.stop(0)
	c.wipe(0)
	c.start(0)
	c.ready(0)
	select {
	case err := <-w.ended:
		if !errors.Is(err, kv.ErrCompacted) {
			t.Errorf("the watch ends with %v", err)
		}
	case <-time.After(20 * time.Second):
		t.Error("the watch waits for revisions that may never come")
	}
}

func TestListReadsPagesAtOneRevision(t *testing.T) {
	t.Parallel()
	s := single(t).dial(Options{AttemptTimeout: enough, RequestTimeout: enough}, 0)
	const count = MaxPageEntries + 300
	ctx := within(t, enough)
	for from := 0; from < count; from += 100 {
		var ops []kv.Op
		for i := from; i < min(from+100, count); i++ {
			ops = append(ops, kv.Op{Key: fmt.Sprintf("p/%06d", i), Value: []byte{byte(i)}})
		}
		if ok, _, err := s.Txn(ctx, nil, ops); err != nil || !ok {
			t.Fatal(ok, err)
		}
	}
	for _, prefix := range []string{"p/", ""} {
		entries, _, err := s.List(ctx, prefix)
		if err != nil || len(entries) != count {
			t.Fatalf("List %q: %d entries, %v", prefix, len(entries), err)
		}
		for i, e := range entries {
			if want := fmt.Sprintf("p/%06d", i); e.Key != want {
				t.Fatalf("entry %d is %q, not %q", i, e.Key, want)
			}
		}
	}
}

func TestTooLargeTransactionIsRefused(t *testing.T) {
	t.Parallel()
	s := single(t).dial(Options{}, 0)
	ops := make([]kv.Op, 200)
	for i := range ops {
		ops[i].Key = fmt.Sprint(i)
	}
	began := time.Now()
	_, _, err := s.Txn(within(t, enough), nil, ops)
	if err == nil || errors.Is(err, kv.ErrUnavailable) || !strings.Contains(err.Error(), "nothing was changed") {
		t.Errorf("200 ops: %v", err)
	}
	if took := time.Since(began); took > 8*time.Second {
		t.Errorf("the refusal took %v", took)
	}
}

// A frozen member keeps its connections and answers nothing: one attempt is lost, and the watch goes on at another
// member.
func TestFrozenMemberIsLeft(t *testing.T) {
	t.Parallel()
	c := startCluster(t)
	p := newProxy(t, c.voters[0].Client)
	s := dial(t, []string{p.address(), c.voters[1].Client}, Options{
		AttemptTimeout: 300 * time.Millisecond, ProgressEvery: 100 * time.Millisecond, StallAfter: 300 * time.Millisecond,
	})
	other := c.dial(Options{}, 2)
	lease, err := s.Grant(within(t, enough), 20*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	w := watch(t, s, "k", 0)
	put(t, other, "k", "1")
	w.waitFor(t, 1)

	p.freeze()
	put(t, other, "k", "2") // only the watch itself can notice
	if events := w.distinct(t, 2); events[1] != "k=2" {
		t.Errorf("the watch saw %v", events)
	}
	began := time.Now()
	if _, err := s.KeepAlive(within(t, enough), lease); err != nil {
		t.Errorf("the lease was lost with a frozen member: %v", err)
	}
	if took := time.Since(began); took > 8*time.Second {
		t.Errorf("it took %v", took)
	}
	p.thaw()
	put(t, other, "k", "3")
	if events := w.distinct(t, 3); events[2] != "k=3" {
		t.Errorf("the watch saw %v", events)
	}
}

// A dead first endpoint costs nothing that a user would notice, not even for a transaction.
func TestDeadEndpointIsSkipped(t *testing.T) {
	t.Parallel()
	c := single(t)
	s := dial(t, []string{porttest.Address(t), porttest.Address(t), c.voters[0].Client}, Options{})
	if ok, _, err := s.Txn(within(t, enough), nil, []kv.Op{{Key: "a"}}); err != nil || !ok {
		t.Error(ok, err)
	}
}

func TestNobodyAnswers(t *testing.T) {
	t.Parallel()
	began := time.Now()
	nobody := []string{porttest.Address(t), porttest.Address(t)}
	_, err := Dial(t.Context(), nobody, Options{DialTimeout: 500 * time.Millisecond})
	if !errors.Is(err, kv.ErrUnavailable) {
		t.Errorf("Dial to nobody: %v", err)
	}
	if took := time.Since(began); took > 4*time.Second {
		t.Errorf("it took %v", took)
	}
	if _, err := Dial(t.Context(), nil, Options{}); err == nil {
		t.Error("Dial without an endpoint")
	}
}

// A majority of the members may take longer to elect a leader than one request may take. Dial waits on, and says so.
func TestDialWaitsForAMajority(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 3)
	var log syncBuffer
	o := Options{
		DialTimeout: 30 * time.Second, RequestTimeout: time.Second, AttemptTimeout: 500 * time.Millisecond,
		Log: slog.New(slog.NewTextHandler(&log, nil)),
	}
	dialled := make(chan error, 1)
	go func() {
		s, err := Dial(t.Context(), Endpoints(c.voters, ""), o)
		if err == nil {
			err = s.Close()
		}
		dialled <- err
	}()
	for !strings.Contains(log.String(), "waits for a majority") {
		select {
		case err := <-dialled:
			t.Fatalf("Dial without a member: %v", err)
		case <-time.After(10 * time.Millisecond):
		}
	}
	c.start(0, 1, 2)
	if err := <-dialled; err != nil {
		t.Error(err)
	}
}

// external is an etcd without any part of this package, at an address and in a directory.
func external(t *testing.T, address, dir string) (stop func()) {
	t.Helper()
	c := embed.NewConfig()
	c.Name, c.Dir, c.UnsafeNoFsync = "external", dir, true
	c.ListenClientUrls, c.AdvertiseClientUrls = urls("http", address), urls("http", address)
	c.ListenPeerUrls, c.AdvertisePeerUrls = urls("http", "127.0.0.1:0"), urls("http", "127.0.0.1:1")
	c.InitialCluster = "external=http://127.0.0.1:1"
	c.BcryptCost = 4 // with the usual one, checking a password takes seconds under the race detector
	c.ZapLoggerBuilder = embed.NewZapLoggerBuilder(zap.NewNop())
	var clients *grpc.Server
	registered := make(chan struct{})
	c.ServiceRegister = func(s *grpc.Server) { clients = s; close(registered) }
	e, err := embed.StartEtcd(c)
	if err != nil {
		t.Fatal(err)
	}
	<-e.Server.ReadyNotify()
	stop = sync.OnceFunc(func() { <-registered; clients.Stop(); e.Close() })
	t.Cleanup(stop)
	return stop
}

func TestUserAndPassword(t *testing.T) {
	t.Parallel()
	address, dir, ctx := porttest.Address(t), t.TempDir(), within(t, enough)
	stop := external(t, address, dir)
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{address}, Logger: zap.NewNop()})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	_, err1 := client.UserAdd(ctx, "root", "secret")
	_, err2 := client.UserGrantRole(ctx, "root", "root")
	_, err3 := client.AuthEnable(ctx)
	if err := errors.Join(err1, err2, err3); err != nil {
		t.Fatal(err)
	}
	root := Options{Username: "root", Password: "secret", RequestTimeout: enough}
	s := dial(t, []string{address}, root)
	revision := put(t, s, "a", "1")
	w := watch(t, s, "a", revision-1)
	if events := w.waitFor(t, 1); events[0] != "a=1" {
		t.Errorf("the watch saw %v", events)
	}
	lease, err := s.Grant(ctx, time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.KeepAlive(ctx, lease); err != nil {
		t.Error(err)
	}
	stop() // a restarted member has no tokens
	external(t, address, dir)
	if _, err := s.KeepAlive(ctx, lease); err != nil {
		t.Errorf("after a restart: %v", err)
	}
	put(t, dial(t, []string{address}, root), "a", "2")
	if events := w.waitFor(t, 2); events[1] != "a=2" { // only the watch can renew its token
		t.Errorf("the watch saw %v", events)
	}
	put(t, s, "a", "3")
	for _, o := range []Options{{}, {Username: "root", Password: "wrong"}} {
		if s, err := Dial(ctx, []string{address}, o); err == nil {
			_ = s.Close()
			t.Errorf("user %q with password %q is let in", o.Username, o.Password)
		} else if errors.Is(err, kv.ErrUnavailable) || !strings.Contains(err.Error(), "check user, password") {
			t.Errorf("user %q: %v", o.Username, err)
		}
	}
}

// proxy passes bytes on until it is frozen; then its connections stay open and nothing passes.
type proxy struct {
	l      net.Listener
	mu     sync.Mutex
	moving *sync.Cond
	frozen bool
	conns  []net.Conn
}

func newProxy(t *testing.T, target string) *proxy {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &proxy{l: l}
	p.moving = sync.NewCond(&p.mu)
	var all sync.WaitGroup
	all.Go(func() {
		for {
			in, err := l.Accept()
			if err != nil {
				return
			}
			out, err := net.Dial("tcp", target)
			if err != nil {
				_ = in.Close()
				continue
			}
			p.mu.Lock()
			p.conns = append(p.conns, in, out)
			p.mu.Unlock()
			all.Go(func() { p.carry(in, out) })
			all.Go(func() { p.carry(out, in) })
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		p.thaw()
		p.mu.Lock()
		for _, c := range p.conns {
			_ = c.Close()
		}
		p.mu.Unlock()
		all.Wait()
	})
	return p
}

func (p *proxy) carry(to io.WriteCloser, from io.Reader) {
	defer to.Close()
	b := make([]byte, 64<<10)
	for {
		n, err := from.Read(b)
		p.mu.Lock()
		for p.frozen {
			p.moving.Wait()
		}
		p.mu.Unlock()
		if _, werr := to.Write(b[:n]); err != nil || werr != nil {
			return
		}
	}
}

func (p *proxy) address() string { return p.l.Addr().String() }

func (p *proxy) freeze() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.frozen = true
}

func (p *proxy) thaw() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.frozen = false
	p.moving.Broadcast()
}
