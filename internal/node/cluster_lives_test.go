package node_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"penstock/internal/cluster"
	"penstock/internal/meta"
	"penstock/internal/node"
	"penstock/internal/node/datadir"
	"penstock/internal/node/errs"
	"penstock/tests/support/faultaio"
)

// lines collects a log.
type lines struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lines) count(text string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Count(l.b.String(), text)
}

// newLoggedCluster starts three nodes, whose logs go to logs, with a topic "t" of which all copies hold what h has.
func newLoggedCluster(t *testing.T) (tc *testCluster, h *ackLog, logs *lines) {
	logs, h = new(lines), newAckLog()
	tc = newTestCluster(t, 3, func(o *node.Options) {
		o.Logger = slog.New(slog.NewTextHandler(logs, nil)).With("at", o.NodeID)
	})
	tc.create("t", 1)
	tc.publishPart(h, "begin")
	return tc, h, logs
}

// openCopy starts a process of m's name on a copy of its disk, at an address of its own.
func (tc *testCluster) openCopy(m *testNode, disk *faultaio.Disk) (*node.Engine, error) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		tc.t.Fatal(err)
	}
	o := tc.options(m)
	o.Disk = disk
	store := tc.store
	store.Logger = o.Logger
	o.Cluster = &node.ClusterOptions{
		Store: cluster.New(tc.kv.Store(m.name+" copy"), store), Listener: ln, LeaveTimeout: 200 * time.Millisecond,
		Node: meta.Node{Host: "127.0.0.1", Peer: ln.Addr().String()}, JoinTimeout: patience,
	}
	return node.Open(context.Background(), o)
}

// publishPart publishes a few messages of partition 0 of "t" and waits until all copies hold them.
func (tc *testCluster) publishPart(h *ackLog, name string) {
	tc.t.Helper()
	for i, try := 0, 0; i < 5; try++ {
		topic := tc.topic(tc.leader("t", 0), "t")
		switch err := h.publish(context.Background(), topic, fmt.Sprintf("message %d of part %s, try %d", i, name, try)); {
		case err == nil:
			i++
		case !errors.Is(err, errs.ErrUnknown) || try > 20: // the leader may just be another one
			tc.t.Fatal(err)
		}
	}
	tc.awaitEqualCopies("t", 0)
}

// registeredDurably waits until a node's directory says that its present process has registered.
func (tc *testCluster) registeredDurably(m *testNode) {
	tc.t.Helper()
	tc.eventually("the directory knows that its process registered", func() bool {
		data, err := m.disk.ReadFile(datadir.NodePath, datadir.MaxFileBytes)
		n := new(datadir.Node)
		if err == nil {
			err = datadir.UnsealFile(data, n, func() error { return nil })
		}
		return err == nil && len(n.Lives) > 0 && n.Lives[len(n.Lives)-1] == datadir.Life{
			Boot: m.e.Node().Boot, Registered: true,
		}
	})
}

// A node that comes back with an older state of its disk knows it before it registers: all its copies are shortened,
// also those that the older state does not have, and with the others it has everything again. A node that was killed
// and one that stopped are not taken for that.
func TestClusterOlderDirectory(t *testing.T) {
	t.Parallel()
	tc, h, logs := newLoggedCluster(t)
	x := tc.others(tc.leader("t", 0))[0]
	tc.registeredDurably(x)
	tc.stop(x)
	older := x.disk.Kill(7)
	tc.start(x)
	if s := x.e.Storage(); s.OlderDirectory != 0 || s.Shortened != 0 {
		t.Fatalf("stopped and started: %+v", s)
	}
	tc.awaitInSync("t")
	tc.create("later", 1)
	tc.publishPart(h, "b")
	tc.kill(x)
	tc.start(x)
	if s := x.e.Storage(); s.OlderDirectory != 0 || s.Shortened != 0 {
		t.Fatalf("killed and started: %+v", s)
	}
	tc.awaitInSync("t")
	tc.stop(x)
	if n := logs.count("this data directory is not the one"); n != 0 {
		t.Fatalf("%d lines about an older directory", n)
	}

	x.disk = older
	tc.openWithoutStore(x) // it cannot compare, and must not forget to
	tc.start(x)
	if s := x.e.Storage(); s.OlderDirectory != 1 || s.Shortened != 2 {
		t.Errorf("with an older state: %d, and %d copies are shortened", s.OlderDirectory, s.Shortened)
	}
	if n := logs.count("this data directory is not the one"); n != 1 {
		t.Errorf("%d lines say so", n)
	}
	tc.awaitInSync("t")
	tc.awaitInSync("later")
	tc.awaitHeld(h, tc.nodes)
	tc.publishPart(h, "c")
	tc.eventually("the copies are whole", func() bool { return x.e.Storage().Shortened == 0 })
	tc.checkCopies(h, "t", 1)
	tc.kill(x)
	tc.start(x)
	if s := x.e.Storage(); s.OlderDirectory != 0 {
		t.Error("its own later process takes the directory for an older one")
	}
}

// A process on a copy of the directory of a node that lives is refused, and both say so. When the node was killed, the
// same copy takes over without waiting for the lease, and the original, started after it, knows that it is not what ran
// last.
func TestClusterNameIsHeld(t *testing.T) {
	t.Parallel()
	tc, h, logs := newLoggedCluster(t)
	l := tc.leader("t", 0)
	tc.registeredDurably(l)
	duplicate := l.disk.Kill(1)
	e, err := tc.openCopy(l, duplicate)
	if !errors.Is(err, meta.ErrNameHeld) || !strings.Contains(err.Error(), l.e.Node().Peer) {
		t.Fatalf("a copy was opened: %v, %v", e, err)
	}
	tc.eventually("the living one says so", func() bool {
		return logs.count("another process tried to start under this node's name") == 1
	})
	if !node.Leads(l.e, "t", 0) {
		t.Error("the node that lives does not lead any more")
	}
	tc.publishPart(h, "e")

	duplicate = l.disk.Kill(1)
	boot := l.e.Node().Boot
	tc.kill(l)
	began := time.Now()
	if e, err = tc.openCopy(l, duplicate); err != nil {
		t.Fatal(err)
	}
	took := time.Since(began)
	if s := e.Storage(); s.OlderDirectory != 0 || took > longLease/3 {
		t.Errorf("it took %v until it had taken over, older: %d", took, s.OlderDirectory)
	}
	if e.Node().Boot == boot {
		t.Error("it has the boot of the other process")
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := errors.Join(e.Leave(ctx), e.Close()); err != nil {
		t.Fatal(err)
	}
	tc.start(l)
	if s := l.e.Storage(); s.OlderDirectory != 1 || s.Shortened != 1 {
		t.Errorf("the original: %d, and %d copies are shortened", s.OlderDirectory, s.Shortened)
	}
	tc.awaitHeld(h, tc.nodes)
	tc.publishPart(h, "f")
}

// A process that is replaced stops serving when it hears of it, although its lease has not ended.
func TestClusterReplacedProcessStops(t *testing.T) {
	t.Parallel()
	tc, _, _ := newLoggedCluster(t)
	l := tc.leader("t", 0)
	tc.registeredDurably(l)
	duplicate := l.disk.Kill(1)
	tc.network.closePort(l.name) // nobody can be asked there, as behind a firewall that refuses
	e, err := tc.openCopy(l, duplicate)
	if err != nil {
		t.Fatal(err)
	}
	tc.eventually("the replaced process has no lease", func() bool { return !node.Leased(l.e) })
	tc.kill(l)
	tc.eventually("somebody else leads", func() bool {
		for _, m := range tc.running() {
			if node.Leads(m.e, "t", 0) {
				return true
			}
		}
		return node.Leads(e, "t", 0)
	})
	if err := e.Close(); err != nil {
		t.Error(err)
	}
}

// If the metadata are of an earlier moment than a node saw, the partitions with a copy there are treated as after a
// restore: all replicas are compared, nothing is lost, nobody is refused, and the next start finds nothing.
func TestClusterOlderMetadata(t *testing.T) {
	t.Parallel()
	tc, h, _ := newLoggedCluster(t)
	x := tc.nodes[1]
	tc.eventually("it keeps what it saw", func() bool {
		s, err := datadir.ReadSeen(x.disk)
		return err == nil && s.Cluster == x.e.Snapshot().Cluster && s.Revision > 0
	})
	tc.stop(x)
	seen, err := datadir.ReadSeen(x.disk)
	if err != nil {
		t.Fatal(err)
	}
	seen.Revision += 1 << 30
	if err := datadir.WriteSeen(x.disk, seen); err != nil {
		t.Fatal(err)
	}
	tc.start(x)
	if n := x.e.Storage().OlderMetadata; n != 1 {
		t.Errorf("the rows of %d partitions were older", n)
	}
	if st := x.row("t", 0).State; st.Restored == 0 {
		t.Errorf("the row is %+v", st)
	}
	tc.awaitInSync("t")
	tc.publishPart(h, "i")
	tc.awaitHeld(h, tc.nodes)
	tc.stop(x)
	tc.start(x)
	if n := x.e.Storage().OlderMetadata; n != 0 {
		t.Errorf("at the next start the rows of %d partitions were older", n)
	}
	tc.checkCopies(h, "t", 1)
}
