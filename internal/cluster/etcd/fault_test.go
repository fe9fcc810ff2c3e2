package etcd

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/zap"
	"golang.org/x/sys/unix"
)

// await waits until something holds.
func await(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for ctx := within(t, enough); !holds(); {
		if !pause(ctx, 20*time.Millisecond) {
			t.Fatalf("it never happens: %s", what)
		}
	}
}

// etcd has a fatal line, as its purge does when no descriptor is left. The process goes on, the others serve the
// node's client, the member says what is wrong, starts again by itself, and votes again.
func TestMemberOutlivesAFatalLine(t *testing.T) {
	t.Parallel()
	c := startCluster(t)
	s := c.dial(Options{}, 0, 1, 2)
	put(t, s, "a", "1")
	m := c.members[0]
	server := serverLogger(m.o.Log, func() bool { return false }, lastHook{&m.o, m.broken})
	go server.Fatal("failed to purge wal file", zap.Error(fmt.Errorf("open: %w", syscall.EMFILE)))
	await(t, "the fault is told", func() bool { return strings.Contains(m.Fault(), "too many open files") })
	put(t, s, "a", "2")
	await(t, "the fault ends", func() bool { return m.Fault() == "" })
	select {
	case <-m.Done():
		t.Fatalf("the member has ended: %v", m.Err())
	default:
	}
	c.stop(2) // so the majority needs it
	put(t, s, "a", "3")
	if got := get(t, c.dial(Options{}, 0), "a"); got != "3" {
		t.Errorf("it serves %q", got)
	}
}

// After a disk that failed nothing is read back in the same process.
func TestMemberWhoseDiskFails(t *testing.T) {
	t.Parallel()
	c := startCluster(t)
	m := c.members[1]
	server := serverLogger(m.o.Log, func() bool { return false }, lastHook{&m.o, m.broken})
	go server.Fatal("failed to save", zap.Error(fmt.Errorf("sync: %w", syscall.EIO)))
	await(t, "the fault is told", func() bool { return strings.Contains(m.Fault(), "restart the node") })
	put(t, c.dial(Options{}, 0, 2), "a", "1")
	c.stop(1)
	if m.Fault() == "" {
		t.Error("the fault has gone")
	}
}

// The only member has nobody that goes on in its place.
func TestOnlyMemberWhoseDiskFails(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 1)
	o := c.options(0)
	said := make(chan error, 1)
	o.Fatal = func(err error) { said <- err }
	c.startWith(0, o)
	c.ready(0)
	m := c.members[0]
	server := serverLogger(m.o.Log, func() bool { return false }, lastHook{&m.o, m.broken})
	go server.Fatal("failed to save", zap.Error(fmt.Errorf("sync: %w", syscall.EIO)))
	select {
	case err := <-said:
		if errors.Is(err, ErrDirectory) || !errors.Is(err, syscall.EIO) {
			t.Errorf("it says %v", err)
		}
	case <-time.After(enough):
		t.Error("the process goes on")
	}
}

// A lack is waited for until it is over, an error of the disk until the member ends.
func TestFailedDiskIsWaitedForInVain(t *testing.T) {
	t.Parallel()
	for fault, again := range map[error]bool{syscall.EIO: false, syscall.EMFILE: true} {
		m := &Member{o: MemberOptions{Dir: t.TempDir(), Log: slog.New(slog.DiscardHandler)}}
		limit := 2 * startRetryPause
		if again {
			limit = enough
		}
		m.ctx = within(t, limit)
		if got := m.waitOut(fmt.Errorf("x: %w", fault), true); got != again {
			t.Errorf("after %v it starts again: %v", fault, got)
		}
	}
}

// Without a descriptor nobody can say whether there is a log: then it is not taken for a new member, whose files would
// be removed, and no damage is found.
func TestShortageIsNoLostLog(t *testing.T) {
	if os.Getenv(childVariable+"_LOG") == "" { // the limit is of the whole process
		c := newCluster(t, 1)
		c.start(0)
		c.ready(0)
		c.stop(0)
		inChild(t, childVariable+"_LOG="+c.options(0).Dir)
		return
	}
	dir := os.Getenv(childVariable + "_LOG")
	if has, err := hasLog(dir); err != nil || !has {
		t.Fatal(has, err)
	}
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 4, Max: 4}); err != nil {
		t.Fatal(err)
	}
	has, err := hasLog(dir)
	if err == nil || has {
		t.Errorf("without descriptors: a log %v, %v", has, err)
	}
	m := &Member{o: MemberOptions{Dir: dir, Log: slog.New(slog.DiscardHandler)}}
	if fault := m.lacks(m.o.damaged(checkFiles(dir))); fault == nil {
		t.Error("a lack of descriptors is taken for damage")
	}
}

// The member's port for members does not accept any more: it says so.
func TestPortThatDoesNotAccept(t *testing.T) {
	t.Parallel()
	for name, files := range map[string]TLSFiles{"plain": {}, "with certificates": certificates(t)} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newCluster(t, 1)
			c.tls = files
			c.start(0)
			c.ready(0)
			m := c.members[0]
			if why := m.Fault(); why != "" {
				t.Fatal(why)
			}
			_ = m.fronts[peerFront].gate.ln.Close()
			await(t, "the port is missed", func() bool { return strings.Contains(m.Fault(), c.voters[0].Peer) })
			if strings.Contains(m.Fault(), "for clients") {
				t.Error(m.Fault())
			}
		})
	}
}

// The names of etcd's sockets are short, wherever the data directory is, and nothing is left of them in it.
func TestSocketsOfADeepDirectory(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 1)
	c.dir = filepath.Join(c.dir, strings.Repeat("a-long-name/", 20))
	must(t, os.MkdirAll(filepath.Join(c.options(0).Dir, socketsDir, "left"), 0o755)) // by a start that was killed
	c.start(0)
	c.ready(0)
	put(t, c.dial(Options{}, 0), "a", "1")
	if _, err := os.Stat(filepath.Join(c.options(0).Dir, socketsDir)); !os.IsNotExist(err) {
		t.Errorf("the sockets have names: %v", err)
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// etcd waits at its end for a lock that nobody releases. Its end has a bound, and as it leads, the process has to end:
// nobody else would decide.
func TestEtcdThatDoesNotEnd(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 1)
	o := c.options(0)
	said := make(chan error, 1)
	o.Fatal = func(err error) { said <- err }
	o.setDefaults()
	must(t, os.MkdirAll(o.Dir, 0o700))
	m := &Member{o: o, self: o.Voters[0], broken: make(chan error, 1)}
	m.ctx, m.stop = context.WithCancel(t.Context())
	defer m.stop()
	server, err := m.start(way{cluster: m.initialCluster(nil), state: embed.ClusterStateFlagNew})
	must(t, err)
	<-server.Server.ReadyNotify()
	tx := server.Server.Backend().BatchTx()
	tx.Lock()
	began := time.Now()
	ended := m.shutDown(server)
	took := time.Since(began)
	m.giveUp(server, m.o.stops("it holds a lock", syscall.EMFILE, startsAgain))
	tx.Unlock()
	if ended || took > 2*o.Election+closeLimit+5*time.Second {
		t.Errorf("it has ended: %v, after %v", ended, took)
	}
	if err := <-said; !errors.Is(err, errStops) || !strings.Contains(err.Error(), "It leads") {
		t.Errorf("it says %v", err)
	}
	if !strings.Contains(m.Fault(), "could not be ended") {
		t.Errorf("it shows %q", m.Fault())
	}
	<-server.Server.StopNotify()
}
