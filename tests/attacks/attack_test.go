//go:build attacks

package attacks

import (
	"context"
	"fmt"
	"io"
	"maps"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"penstock/internal/shares"
	"penstock/tests/cluster/harness"
)

// attack is how one resource is taken.
type attack struct {
	flags        []string                 // of the node, such that a bound is near
	files        int                      // what the node may open; 0: as this process
	disk         int64                    // of the node's data, a file system of its own of so many bytes; 0: as all tests
	certificates bool                     // whether the node offers HTTPS
	cluster      bool                     // a cluster of one, with the ports for nodes and an embedded etcd
	late         bool                     // its bound is met only after some seconds
	waits        bool                     // at its bound requests wait; this machine cannot send enough to be refused
	before       bool                     // other bounds are met before it
	setUp        func(n *node)            // before the quiet time
	run          func(a *assault)         // until a.ctx ends; then all that it began ends
	other        func(n *node) error      // what somebody else does with the resource meanwhile, and must be able to
	after        func(n *node, count int) // what must hold afterwards
}

// assault is an attack that is under way.
type assault struct {
	node *node
	ctx  context.Context
	done atomic.Int64  // connections, requests or messages of the attacker
	pace chan struct{} // has a value for each connection that may begin
	all  sync.WaitGroup
}

// often runs do on so many goroutines, again and again.
func (a *assault) often(count int, do func(i int)) {
	for i := range count {
		a.all.Go(func() {
			for a.ctx.Err() == nil {
				do(i)
				a.done.Add(1)
			}
		})
	}
}

// attacked starts the attack in a process of its own, which has the least priority: an attacker has a machine of its
// own, and what it computes is no cost of the node. The function that it returns ends the attack and says how often it
// did what it does.
func (n *node) attacked(r *shares.Resource) (end func() int) {
	n.t.Helper()
	cmd := exec.Command(os.Args[0], "-test.run=^TestAttacker$", "-test.v")
	cmd.Env = append(os.Environ(), "TEST_ATTACKER="+strings.Join([]string{
		r.Name, n.NSQ, n.HTTP, n.Native, n.https, n.peer, n.etcd,
	}, "|"))
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	var out strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &out
	in, err := cmd.StdinPipe()
	if err != nil {
		n.t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		n.t.Fatal(err)
	}
	return func() int {
		_ = in.Close()
		defer time.AfterFunc(3*patience, func() { _ = cmd.Process.Kill() }).Stop()
		if err := cmd.Wait(); err != nil {
			n.t.Fatalf("the attacker: %v\n%s", err, out.String())
		}
		_, text, _ := strings.Cut(out.String(), "did it ")
		text, _, _ = strings.Cut(text, " times")
		count, err := strconv.Atoi(text)
		if err != nil {
			n.t.Fatalf("the attacker: %s", out.String())
		}
		return count
	}
}

// TestAttacker is the attacker's process. It attacks until its standard input ends.
func TestAttacker(t *testing.T) {
	who := strings.Split(os.Getenv("TEST_ATTACKER"), "|")
	if len(who) != 7 {
		t.Skip("this is the part of TestAttacks that attacks")
	}
	if err := syscall.Setpriority(syscall.PRIO_PROCESS, 0, 19); err != nil {
		t.Fatal(err)
	}
	n := &node{
		Node: &harness.Node{NSQ: who[1], HTTP: who[2], Native: who[3]}, t: t, https: who[4], peer: who[5], etcd: who[6],
	}
	ctx, cancel := context.WithCancel(t.Context())
	a := &assault{node: n, ctx: ctx, pace: make(chan struct{})}
	a.all.Go(a.goes)
	a.all.Go(func() { attacks()[who[0]].run(a) })
	_, _ = io.Copy(io.Discard, os.Stdin)
	cancel()
	a.all.Wait()
	fmt.Printf("did it %d times\n", a.done.Load())
}

// silent connects from the attacker's address, sends some bytes and reads until the other side ends it.
func (a *assault) silent(to, first string) {
	if nc, err := a.connects(to); err == nil {
		a.holds(nc, first)
	}
}

// connects connects as the attacker, at the pace: beyond it, the kernel that both sides share here is what becomes
// slow, not the node.
func (a *assault) connects(to string) (net.Conn, error) {
	if err := a.mayConnect(); err != nil {
		return nil, err
	}
	nc, err := dial(attacker, to)
	if err != nil {
		return nil, err
	}
	_ = nc.(*net.TCPConn).SetLinger(0) // no socket stays behind
	return nc, nil
}

// mayConnect waits until the pace allows another connection.
func (a *assault) mayConnect() error {
	select {
	case <-a.pace:
		return nil
	case <-a.ctx.Done():
		return a.ctx.Err()
	}
}

// goes gives the pace.
func (a *assault) goes() {
	tick := time.NewTicker(pause)
	defer tick.Stop()
	for {
		select {
		case <-a.ctx.Done():
			return
		case <-tick.C:
		}
		for range connects * int(pause) / int(time.Second) {
			select {
			case a.pace <- struct{}{}:
			case <-a.ctx.Done():
				return
			}
		}
	}
}

const (
	connects = 2000 // a second
	pause    = 5 * time.Millisecond
)

// holds sends some bytes and waits for the end of the connection, or of the attack.
func (a *assault) holds(nc net.Conn, first string) {
	defer nc.Close()
	stop := context.AfterFunc(a.ctx, func() { _ = nc.Close() })
	defer stop()
	_, _ = nc.Write([]byte(first))
	var in [4096]byte
	for {
		if _, err := nc.Read(in[:]); err != nil {
			return
		}
	}
}

// campaign is how long each attack lasts, one after the other, so that what the tenant notices can be judged; 0: they
// are short and run side by side, which shows only that each meets its bound and that nobody else is refused.
func campaign(t *testing.T) time.Duration {
	text := os.Getenv("TEST_ATTACK_SECONDS")
	if text == "" {
		return 0
	}
	seconds, err := strconv.ParseFloat(text, 64)
	if err != nil {
		t.Fatal(err)
	}
	return time.Duration(seconds * float64(time.Second))
}

const (
	// slower is how much slower a neighbor's answers may become. Below noise nobody can say, because of what else this
	// machine does; beside other attacks, below noisy.
	slower = 5
	noise  = 20 * time.Millisecond
	noisy  = 2 * time.Second
	// moreMemory is how much more memory the node may take.
	moreMemory = 64 << 20
	// recovery is how long after an attack all must be as before; beside other attacks, lateRecovery.
	recovery     = 5 * time.Second
	lateRecovery = time.Minute
)

func attacks() map[string]*attack {
	all := maps.Clone(byStrangers)
	maps.Copy(all, byTenants)
	return all
}

// Each resource of the table is attacked. Nobody else notices.
func TestAttacks(t *testing.T) {
	known := map[string]bool{}
	attacks := attacks()
	for _, r := range shares.Table {
		known[r.Name] = true
		if attacks[r.Name] == nil {
			t.Errorf("nobody attacks %q", r.Name)
		}
	}
	for name := range attacks {
		if !known[name] {
			t.Errorf("%q is no resource", name)
		}
	}
	for _, r := range shares.Table {
		if a := attacks[r.Name]; a != nil {
			t.Run(strings.ReplaceAll(r.Name, " ", "_"), func(t *testing.T) { a.test(t, r) })
		}
	}
}

// test runs the attack on one resource.
func (at *attack) test(t *testing.T, r *shares.Resource) {
	length, unsure, within, more := campaign(t), noise, recovery, int64(moreMemory)
	if length == 0 {
		t.Parallel()
		length, unsure, within = 2*time.Second, noisy, lateRecovery
		more *= 3 // what is garbage stays longer, too
	}
	calm := min(length/2, 4*time.Second)
	n := at.start(t)
	if at.setUp != nil {
		at.setUp(n)
	}
	before, _ := metric(n.metrics(), r.Metric) // some series begin with the first use
	tenant := n.publishes()
	time.Sleep(calm / 2) // caches and the heap settle
	tenant.report()
	time.Sleep(calm)
	quiet := tenant.report()

	end := n.attacked(r)
	met, others := at.watch(n, r, before, length)
	during := tenant.report()
	count := end()
	began := time.Now()
	n.recovers(at)
	took := time.Since(began)
	tenant.report()
	time.Sleep(calm)
	after := tenant.report()

	t.Logf("%d times; quiet: %v; meanwhile: %v; %v after: %v", count, quiet, during, took.Round(time.Millisecond),
		after)
	most := slower * max(quiet.p99, unsure/slower)
	for _, part := range []struct {
		when string
		report
		most time.Duration
	}{
		{"meanwhile", during, most},
		// One stall of the device is enough for 1 % of so few answers.
		{"afterwards", after, max(most, after.device+noise)},
	} {
		for _, e := range part.errors[:min(len(part.errors), 3)] {
			t.Errorf("%s, one of %d errors: %s", part.when, len(part.errors), e)
		}
		if part.count == 0 || part.p99 > part.most {
			t.Errorf("%s the 99th percentile of %d answers is %v, quiet %v", part.when, part.count, part.p99, quiet.p99)
		}
	}
	if n := during.memory - quiet.memory; n > more {
		t.Errorf("the node takes %d MiB more", n>>20)
	}
	if took > within {
		t.Errorf("it took %v until all was as before", took)
	}
	for _, err := range others {
		t.Errorf("meanwhile, somebody else: %v", err)
	}
	if !met && !at.before && !at.waits && (!at.late || length > 10*time.Second) {
		t.Errorf("the attack has not met the bound: %s is as before", r.Metric)
	}
	if at.after != nil {
		at.after(n, count)
	}
}

// watch waits for the end of the attack. It returns whether the resource's metric moved, and what failed of what others
// did with the resource.
func (at *attack) watch(n *node, r *shares.Resource, before float64, d time.Duration) (met bool, others []error) {
	met = r.Metric == ""
	for end := time.Now().Add(d); time.Now().Before(end); time.Sleep(200 * time.Millisecond) {
		if !met {
			_, page, err := request(client(neighbor), "GET", "http://"+n.HTTP+"/metrics", "root", "")
			if err != nil && len(others) < 3 {
				others = append(others, err)
			}
			now, _ := metric(page, r.Metric)
			met = now > before
		}
		if at.other != nil {
			if err := at.other(n); err != nil && len(others) < 3 {
				others = append(others, err)
			}
		}
	}
	return met, others
}

// recovers waits until a client gets in and somebody else has the resource.
func (n *node) recovers(at *attack) {
	n.t.Helper()
	for end := time.Now().Add(2 * lateRecovery); ; time.Sleep(50 * time.Millisecond) {
		c, err := login(neighbor, n.NSQ, "good")
		if err == nil {
			err = c.pub("good", "x")
			_ = c.Close()
		}
		if err == nil && at.other != nil {
			err = at.other(n)
		}
		if err == nil {
			return
		}
		if time.Now().After(end) {
			n.t.Fatalf("nothing is as before: %v", err)
		}
	}
}
