package etcd

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"runtime/debug"
	"runtime/pprof"
	"sync"
	"time"

	"go.etcd.io/etcd/server/v3/embed"
	"go.etcd.io/etcd/server/v3/etcdserver/api/rafthttp"
	"go.etcd.io/etcd/server/v3/storage/wal"
	"golang.org/x/sys/unix"

	"penstock/internal/descriptors"
)

// outcome says how a run of etcd ended.
type outcome int

const (
	over     outcome = iota // the member has ended: see Err
	stranded                // it has learned of addresses that no longer hold, and starts again
	broken                  // a fatal line has ended it: see lastHook
)

const (
	closeLimit  = 5 * time.Second // of the end of etcd, without what it takes to give the leadership away
	faultPause  = 5 * time.Second // between a fault and the next start, and between two looks whether it lasts
	steadyAfter = time.Minute     // an etcd that ran for so long starts again after startRetryPause
)

func (m *Member) run() {
	defer close(m.done)
	defer m.shown.close()
	defer m.http.CloseIdleConnections()
	strandings := 0
	for {
		server, err := m.bringUp()
		if err != nil {
			m.end(err)
			return
		}
		began := time.Now()
		what, fault := m.serve(server, strandings < maxStrandings)
		ended := m.shutDown(server)
		switch {
		case what == over || m.ctx.Err() != nil:
			return
		case !ended:
			m.giveUp(server, cmp.Or(fault, errStops))
			return
		case what == stranded:
			strandings++
			m.o.Log.Info("the embedded etcd member starts again: it has learned of addresses that no longer hold")
			continue
		case isDiskFault(fault) && m.memberCount() == 1 && m.o.Fatal != nil:
			m.o.Fatal(fault) // nobody else decides, so the node is of no use without it
			return
		case !m.waitOut(fault, time.Since(began) > steadyAfter):
			return
		}
		m.o.Log.Info("the embedded etcd member starts again after a fault", "fault", fault)
	}
}

// serve waits while etcd runs. It returns stranded only if mayRepeat is set and the member has not been ready yet.
func (m *Member) serve(server *embed.Etcd, mayRepeat bool) (outcome, error) {
	var after sync.WaitGroup
	ctx, stop := context.WithCancel(m.ctx)
	defer func() { stop(); waitFor(&after, closeLimit) }()
	m.phase.set("a majority of the members")
	if m.o.Fatal != nil {
		after.Go(func() { m.watchGround(ctx, server) })
	}
	ready := server.Server.ReadyNotify()
	look := time.NewTicker(strandedAfter)
	defer look.Stop()
	for {
		select {
		case <-ready:
			ready = nil
			look.Stop()
			if err := m.agreeToServe(server); err != nil {
				m.end(err)
				return over, nil
			}
			m.isReady()
			after.Go(func() { m.settle(ctx, server) })
			after.Go(func() { m.watchOthers(ctx, server) })
			after.Go(func() { m.keepRoom(ctx, server) })
			after.Go(func() { m.watchPorts(ctx) })
		case <-look.C:
			if ready != nil && mayRepeat && m.stranded(server) {
				return stranded, nil
			}
		case err := <-m.broken:
			m.setFault(err)
			return broken, err
		case err := <-server.Err():
			if fault := m.justBroken(); fault != nil {
				return broken, fault
			}
			m.end(fmt.Errorf("%w: %w", ErrMemberStopped, err))
			return over, nil
		case <-server.Server.StopNotify():
			if fault := m.justBroken(); fault != nil {
				return broken, fault
			}
			m.end(fmt.Errorf("%w: it was removed from its cluster, or its disk failed; its log lines say which. "+
				"If another node took its place, give this one a new name; otherwise empty %s and start again",
				ErrMemberStopped, m.o.Dir))
			return over, nil
		case <-m.ctx.Done():
			return over, nil
		}
	}
}

// waitFor waits until all is over, or until limit: a fatal line may have left locks that nobody releases.
func waitFor(all *sync.WaitGroup, limit time.Duration) {
	over := make(chan struct{})
	go func() { all.Wait(); close(over) }()
	select {
	case <-over:
	case <-time.After(limit):
	}
}

// isReady notes that the member serves, again if it had a fault.
func (m *Member) isReady() {
	m.fault.set("")
	m.refusal.set(nil)
	select {
	case <-m.ready:
	default:
		close(m.ready)
	}
}

// justBroken returns the fault because of which etcd has ended; nil: there is none.
func (m *Member) justBroken() error {
	select {
	case err := <-m.broken:
		m.setFault(err)
		return err
	default:
		return nil
	}
}

// setFault shows why etcd does not run. Ready says it, too.
func (m *Member) setFault(err error) {
	m.refusal.set(err)
	if m.fault.set(err.Error()) != err.Error() {
		m.o.Log.Error("the embedded etcd member has a fault; this node goes on as a client of the other members",
			"error", err)
	}
}

// Fault says why the member does not do its part, although the node runs, and what to do; empty: it does.
func (m *Member) Fault() string { return cmp.Or(m.fault.get(), m.deaf.get()) }

// waitOut waits until the fault is over. It returns false if the member is to end before. A disk that has failed is
// waited for in vain: what was written last may be in the memory of the kernel only.
func (m *Member) waitOut(fault error, soon bool) bool {
	if isDiskFault(fault) {
		<-m.ctx.Done()
		return false
	}
	wait := faultPause
	if soon {
		wait = startRetryPause
	}
	for ; ; wait = faultPause {
		if !pause(m.ctx, wait) {
			return false
		}
		err := shortage(m.o.Dir)
		if err == nil && roomFor(m.o.Dir, 2*wal.SegmentSizeBytes) { // it would stop again at the next file of its log
			return true
		}
		m.o.Log.Debug("the embedded etcd member does not start again yet", "error", err)
	}
}

// giveUp leaves an etcd alone that could not be ended after a fatal line: its goroutines wait for one that is gone.
// It goes on voting, which harms nobody. But if it leads, nothing is applied anywhere, so then the process has to end.
func (m *Member) giveUp(server *embed.Etcd, fault error) {
	fault = fmt.Errorf("%w. But it could not be ended, so it does not before this node is restarted: do that when it is "+
		"cured", fault)
	m.setFault(fault)
	for leads := 0; pause(m.ctx, time.Second); {
		if leads++; server.Server.Leader() != server.Server.MemberID() {
			leads = 0
		}
		if leads >= apartRounds && m.o.Fatal != nil {
			m.o.Fatal(fmt.Errorf("%w. It leads the other members, and nothing would be decided", fault))
			return
		}
	}
}

// end records why the member ended, unless Close ended it.
func (m *Member) end(err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.ctx.Err() == nil {
		m.err = err
	}
}

// shutDown ends etcd, and says whether it has ended in time.
func (m *Member) shutDown(server *embed.Etcd) (ended bool) {
	for _, f := range m.fronts {
		f.refuse()
	}
	m.mu.Lock()
	rpc := m.rpc
	m.rpc = nil
	m.mu.Unlock()
	if rpc != nil {
		// etcd would wait seconds for the watches of other nodes to end by themselves.
		hang := time.AfterFunc(goodbyeTime, rpc.Stop)
		rpc.GracefulStop()
		hang.Stop()
	}
	if len(m.fronts) > 0 {
		m.fronts[clientFront].close()
	}
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		// etcd also gives a new leader the whole time of a request, which is wasted when all members stop at once.
		hurry := time.AfterFunc(2*m.o.Election, server.Server.HardStop)
		server.Close()
		hurry.Stop()
	}()
	select {
	case <-closed:
		ended = true
	case <-time.After(2*m.o.Election + closeLimit):
		m.o.Log.Error("the embedded etcd does not end, and is left behind", "after", 2*m.o.Election+closeLimit)
	}
	for _, f := range m.fronts {
		f.close()
	}
	m.fronts = nil
	if ended {
		m.sockets.close()
	}
	return ended
}

// errAbandoned is why etcd did not start: a fatal line, or Close.
var errAbandoned = errors.New("etcd: the embedded member did not start")

// start runs etcd with the way into the cluster that was decided. Nobody reaches it yet but this process. All
// goroutines of etcd get a label, for the trace of a panic that nobody can recover from. The next start finds what was
// damaged. It has a goroutine of its own, which a fatal line may end.
func (m *Member) start(w way) (server *embed.Etcd, err error) {
	select {
	case <-m.broken: // of an etcd that has ended since
	default:
	}
	if m.sockets, err = openSockets(m.o.Dir); err != nil {
		return nil, err
	}
	c := m.config(w, m.sockets.path(peerFront), m.sockets.path(clientFront))
	label := pprof.Labels("embedded etcd", m.o.Dir+"; the messages are unharmed: start the node again, it says what to do")
	err = errAbandoned
	started := make(chan struct{})
	go func() {
		defer close(started)
		defer func() {
			if p := recover(); p != nil {
				err = m.o.unusable(m.o.readBy(string(debug.Stack())), fmt.Sprint(p))
			}
		}()
		pprof.Do(m.ctx, label, func(context.Context) {
			if server, err = embed.StartEtcd(c); err == nil {
				err = m.sockets.hide()
			}
		})
	}()
	<-started
	if err != nil && server != nil {
		m.shutDown(server)
		return nil, err
	}
	if err != nil {
		m.sockets.close()
		select {
		case fault := <-m.broken:
			return nil, fault
		default:
			return nil, err
		}
	}
	return server, nil
}

// The numbers of Member.fronts.
const (
	peerFront = iota
	clientFront
)

// listen takes the member's addresses. Connections wait there until open.
func (m *Member) listen() (all []net.Listener, err error) {
	for _, address := range []string{m.o.ListenPeer, m.o.ListenClient} {
		ln, err := net.Listen("tcp", address)
		if err != nil {
			for _, ln := range all {
				_ = ln.Close()
			}
			return nil, fmt.Errorf("etcd: the embedded member cannot listen: free the address or choose other ports: %w", err)
		}
		all = append(all, ln)
	}
	return all, nil
}

// open lets members and clients reach etcd.
func (m *Member) open(all []net.Listener) {
	config, limit := m.tls.server(m.o.Admit), descriptors.Limit()
	m.fronts = make([]*front, len(all))
	for i, ln := range all {
		m.fronts[i] = newFront(newGate(ln, config, m.o.Log, limit), m.sockets.address(i), writeLimits[i])
	}
}

// writeLimits are etcd's own, by front.
var writeLimits = [...]time.Duration{peerFront: rafthttp.ConnWriteTimeout, clientFront: 0}

// shortage says why etcd could not use its files just now; nil: it could. It is asked where an error of etcd's code may
// come from a lack of descriptors or of space, and not from the files.
func shortage(dir string) error {
	var files []*os.File
	defer func() {
		for _, f := range files {
			_ = f.Close()
		}
	}()
	for range spareFiles {
		f, err := os.Open(dir)
		if err != nil {
			return err
		}
		files = append(files, f)
	}
	f, err := os.CreateTemp(dir, "room-*")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())
	_, err = f.Write(make([]byte, spareBytes))
	return errors.Join(err, f.Sync(), f.Close())
}

// roomFor says whether a directory's disk has room for more bytes.
func roomFor(dir string, bytes int64) bool {
	var disk unix.Statfs_t
	return unix.Statfs(dir, &disk) != nil || int64(disk.Bavail)*disk.Bsize >= bytes
}

const (
	spareFiles = 32       // that must be free for a start
	spareBytes = 64 << 10 // likewise
)
