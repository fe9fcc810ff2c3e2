package etcd

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.etcd.io/etcd/server/v3/storage/wal"

	"penstock/internal/cluster/kv"
	"penstock/tests/support/patience"
	"penstock/tests/support/porttest"
)

func TestMain(m *testing.M) {
	if options := os.Getenv(childVariable); options != "" {
		os.Exit(runChild(options))
	}
	wal.SegmentSizeBytes = 1 << 20 // instead of 64 MiB for each of some thirty members
	flag.Parse()
	if err := flag.Set("test.parallel", "6"); err != nil { // tests mostly wait and compute little
		panic(err)
	}
	os.Exit(m.Run())
}

// Fast enough for tests, and still ten heartbeats per election timeout.
const (
	testHeartbeat = 30 * time.Millisecond
	testElection  = 300 * time.Millisecond
)

// cluster is a cluster of real embedded members on loopback, in this process.
type cluster struct {
	t       testing.TB
	dir     string
	voters  []Voter
	members []*Member
	tls     TLSFiles
	log     *syncBuffer

	heartbeat, election time.Duration
}

// startCluster makes a cluster of three members, all of them running.
func startCluster(t testing.TB) *cluster {
	t.Helper()
	c := newCluster(t, 3)
	c.start(0, 1, 2)
	c.ready(0, 1, 2)
	return c
}

// newCluster makes addresses and directories for count members; none runs yet.
func newCluster(t testing.TB, count int) *cluster {
	t.Helper()
	c := &cluster{
		t: t, dir: t.TempDir(), members: make([]*Member, count), log: new(syncBuffer), heartbeat: testHeartbeat,
		election: testElection,
	}
	for i := range count {
		name := string(rune('a' + i))
		c.voters = append(c.voters, Voter{Name: name, Peer: porttest.Address(t), Client: porttest.Address(t)})
	}
	t.Cleanup(func() {
		var all []int
		for i := range c.members {
			all = append(all, i)
		}
		c.stop(all...)
		if t.Failed() {
			t.Logf("log of the members:\n%s", c.log)
		}
	})
	return c
}

func (c *cluster) options(i int) MemberOptions {
	return MemberOptions{
		Name: c.voters[i].Name, Voters: c.voters, Dir: filepath.Join(c.dir, c.voters[i].Name), TLS: c.tls,
		Heartbeat: c.heartbeat, Election: c.election, UnsafeNoFsync: true,
		Fatal: func(err error) { c.t.Errorf("a member whose files nobody has damaged ends the process: %v", err) },
		Log:   slog.New(slog.NewTextHandler(c.log, nil)).With("node", c.voters[i].Name),
	}
}

func (c *cluster) start(which ...int) {
	c.t.Helper()
	for _, i := range which {
		m, err := Start(c.options(i))
		if err != nil {
			c.t.Fatal(err)
		}
		c.members[i] = m
	}
}

func (c *cluster) ready(which ...int) {
	c.t.Helper()
	began := time.Now()
	defer func() { c.t.Logf("ready %v after %v", which, time.Since(began)) }()
	for _, i := range which {
		if err := c.members[i].Ready(within(c.t, enough)); err != nil {
			c.t.Fatal(err)
		}
	}
}

func (c *cluster) stop(which ...int) {
	c.t.Helper()
	began := time.Now()
	defer func() { c.t.Logf("stop %v took %v", which, time.Since(began)) }()
	var all sync.WaitGroup
	for _, i := range which {
		if m := c.members[i]; m != nil {
			all.Go(func() {
				if err := m.Close(); err != nil {
					c.t.Error(err)
				}
			})
			c.members[i] = nil
		}
	}
	all.Wait()
}

// wipe removes a stopped member's disk.
func (c *cluster) wipe(i int) {
	c.t.Helper()
	if err := os.RemoveAll(filepath.Join(c.dir, c.voters[i].Name)); err != nil {
		c.t.Fatal(err)
	}
}

// dial returns a client of the given members, which prefers the first.
func (c *cluster) dial(o Options, which ...int) kv.Store {
	c.t.Helper()
	var endpoints []string
	for _, i := range which {
		endpoints = append(endpoints, c.voters[i].Client)
	}
	return dial(c.t, endpoints, o)
}

func dial(t testing.TB, endpoints []string, o Options) kv.Store {
	t.Helper()
	o.DialTimeout = cmp.Or(o.DialTimeout, enough)
	s, err := Dial(within(t, enough), endpoints, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

// enough is how long something may take that must happen, on a machine that is much busier.
var enough = patience.Or(2 * time.Minute)

func within(t testing.TB, d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}

// untilItSays calls what waits in vain, a little at a time, until its error says why: on a busy machine it may not know
// at first. It returns that error.
func untilItSays(t testing.TB, why string, waits func(context.Context) error) error {
	t.Helper()
	for end := time.Now().Add(enough); ; {
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		err := waits(ctx)
		cancel()
		if err == nil || time.Now().After(end) {
			t.Fatalf("it does not wait, or does not say %q: %v", why, err)
		}
		if strings.Contains(err.Error(), why) {
			return err
		}
	}
}

// put writes one key and returns the revision. It repeats a write that was not answered, as a caller with an
// unconditional write may do.
func put(t testing.TB, s kv.Store, key, value string) int64 {
	t.Helper()
	ctx := within(t, enough)
	for {
		ok, revision, err := s.Txn(ctx, nil, []kv.Op{{Key: key, Value: []byte(value)}})
		if err == nil && ok {
			return revision
		}
		if ctx.Err() != nil {
			t.Fatalf("put %s: %v %v", key, ok, err)
		}
	}
}

// get reads one key; "" if there is no such key. It repeats a read that was not answered.
func get(t testing.TB, s kv.Store, key string) string {
	t.Helper()
	ctx := within(t, enough)
	entries, _, err := s.List(ctx, key)
	for errors.Is(err, kv.ErrUnavailable) && ctx.Err() == nil {
		entries, _, err = s.List(ctx, key)
	}
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if e.Key == key {
			return string(e.Value)
		}
	}
	return ""
}

// syncBuffer is a log that several goroutines write.
type syncBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *syncBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *syncBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

// watched collects the events that a watch hands over.
type watched struct {
	mu     sync.Mutex
	events []string
	last   int64
	grown  chan struct{}
	ended  chan error
}

func watch(t testing.TB, s kv.Store, prefix string, after int64) *watched {
	t.Helper()
	w := &watched{last: after, grown: make(chan struct{}, 1), ended: make(chan error, 1)}
	ctx, cancel := context.WithCancel(context.Background())
	finished := make(chan struct{})
	go func() {
		defer close(finished)
		w.ended <- s.Watch(ctx, prefix, after, func(events []kv.Event, revision int64) {
			w.mu.Lock()
			defer w.mu.Unlock()
			if revision <= w.last {
				t.Errorf("revision %d comes after %d", revision, w.last)
			}
			w.last = revision
			for _, e := range events {
				if e.ModRevision != revision {
					t.Errorf("an event of revision %d comes with revision %d", e.ModRevision, revision)
				}
				w.events = append(w.events, fmt.Sprintf("%s=%s", e.Key, e.Value))
			}
			select {
			case w.grown <- struct{}{}:
			default:
			}
		})
	}()
	t.Cleanup(func() { cancel(); <-finished })
	return w
}

// distinct is waitFor without the writes that put has repeated.
func (w *watched) distinct(t testing.TB, count int) []string {
	t.Helper()
	for all := count; ; all++ {
		if events := slices.Compact(w.waitFor(t, all)); len(events) >= count {
			return events
		}
	}
}

// waitFor returns when the watch has seen count events.
func (w *watched) waitFor(t testing.TB, count int) []string {
	t.Helper()
	limit := time.After(enough)
	for {
		w.mu.Lock()
		events := append([]string(nil), w.events...)
		w.mu.Unlock()
		if len(events) >= count {
			return events
		}
		select {
		case <-w.grown:
		case err := <-w.ended:
			t.Fatalf("the watch ended after %d of %d events: %v", len(events), count, err)
		case <-limit:
			t.Fatalf("the watch saw %d of %d events: %v", len(events), count, events)
		}
	}
}
