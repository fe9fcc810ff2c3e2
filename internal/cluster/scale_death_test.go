package cluster

import (
	"context"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"penstock/internal/cluster/kv"
	"penstock/internal/cluster/kv/memory"
	"penstock/internal/meta"
	"penstock/replicate"
)

// What the simulated etcd costs: three members that flush, on a busy machine (docs/operate/scale.md). Quiet ones are
// faster.
const (
	txnTime    = 2400 * time.Microsecond // of a transaction of one row, when nobody else asks
	txnRowTime = 35 * time.Microsecond   // of each further row
	txnSlots   = 4                       // transactions under way at a time: with more callers, 1700 in a second
	readTime   = time.Millisecond
	aliveTime  = 200 * time.Microsecond // extending a lease needs no flush
	watchTime  = time.Millisecond       // until a watch brings what was written
)

// slowEtcd makes a map as slow as etcd, and counts what it is asked. Its clients are those of one synctest bubble.
type slowEtcd struct {
	m     *memory.Map
	slots chan struct{}

	txns, refused, reads, alives, events, bytes atomic.Int64
}

// slowClient is one client.
type slowClient struct {
	*memory.Store
	e *slowEtcd
}

func newSlowEtcd(m *memory.Map) *slowEtcd {
	return &slowEtcd{m: m, slots: make(chan struct{}, txnSlots)}
}

func (e *slowEtcd) client() *slowClient { return &slowClient{e.m.Store(), e} }

func (c *slowClient) Txn(ctx context.Context, conds []kv.Cond, ops []kv.Op) (bool, int64, error) {
	c.e.slots <- struct{}{}
	time.Sleep(txnTime + time.Duration(len(ops)-1)*txnRowTime)
	<-c.e.slots
	ok, rev, err := c.Store.Txn(ctx, conds, ops)
	if c.e.txns.Add(1); !ok {
		c.e.refused.Add(1)
	}
	return ok, rev, err
}

func (c *slowClient) List(ctx context.Context, prefix string) ([]kv.Entry, int64, error) {
	time.Sleep(readTime)
	c.e.reads.Add(1)
	return c.Store.List(ctx, prefix)
}

func (c *slowClient) KeepAlive(ctx context.Context, id kv.LeaseID) (time.Duration, error) {
	time.Sleep(aliveTime)
	c.e.alives.Add(1)
	return c.Store.KeepAlive(ctx, id)
}

func (c *slowClient) Watch(ctx context.Context, prefix string, after int64, changed func([]kv.Event, int64)) error {
	return c.Store.Watch(ctx, prefix, after, func(events []kv.Event, revision int64) {
		time.Sleep(watchTime)
		for i := range events {
			c.e.events.Add(1)
			c.e.bytes.Add(int64(len(events[i].Key) + len(events[i].Value)))
		}
		changed(events, revision)
	})
}

// dead is the node that dies.
const dead replicate.NodeID = 2

// leaders does what the engines of all nodes but the real ones do: a leader takes a dead node out of the ISR of each
// of its partitions, all at once.
type leaders struct {
	client *slowClient
	stores map[replicate.NodeID]*store // of each leader; they have not joined
	dead   replicate.NodeID
	done   sync.WaitGroup
	// mu guards the fields below.
	mu   sync.Mutex
	rows map[meta.PartitionID]*partEntry
	down bool // they know that the node is dead
}

func (l *leaders) look(ctx context.Context, events []kv.Event) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i := range events {
		key := strings.TrimPrefix(events[i].Key, DefaultPrefix)
		switch dir, rest := splitKey(key); dir {
		case partsDir:
			id, _ := parsePart(rest)
			p, err := decodePartition(id, events[i].Value)
			if err != nil {
				panic(err)
			}
			l.rows[id] = &partEntry{Partition: *p, rev: events[i].ModRevision}
			if l.down {
				l.shrink(ctx, l.rows[id])
			}
		case downDir, liveDir:
			if events[i].Deleted != (dir == liveDir) || l.down {
				continue
			}
			l.down = true
			for _, row := range l.rows {
				l.shrink(ctx, row)
			}
		}
	}
}

// shrink proposes what ChangeISR would write, if a leader other than the dead one has it in its ISR. mu is held.
func (l *leaders) shrink(ctx context.Context, row *partEntry) {
	isDead := func(m replicate.Member) bool { return m.Node == l.dead }
	if row.State.Leader == l.dead || !slices.ContainsFunc(row.State.ISR, isDead) {
		return
	}
	next := edit(&row.Partition)
	next.State.ISR = slices.DeleteFunc(next.State.ISR, isDead)
	leader := l.stores[row.State.Leader]
	if leader == nil {
		leader = New(l.client, Options{}).(*store)
		l.stores[row.State.Leader] = leader
	}
	l.done.Go(func() { _, _ = leader.putISR(ctx, next, row.rev, nil) })
}

// maxStartTxns is what a node needs to join and to become the controller.
const maxStartTxns = 4

// healing is what one death costs, in simulated time.
type healing struct {
	led, whole          time.Duration // from the death until the last partition is led, and until no ISR has the dead node
	txns, events, bytes int64         // until whole; events and bytes of one node
	alives              int           // extensions of a lease in the 10 s before
	leaderships, held   int           // the dead node's leaderships and replicas
}

// die lets a node of a fleet die, of which one node runs package cluster, and is the controller. told: another node
// sees that its process has ended.
func die(t *testing.T, f *fleet, told bool) (h healing) {
	entries := f.entries(DefaultPrefix)
	synctest.Test(t, func(t *testing.T) {
		m := memory.New(memory.Options{Entries: entries, Revision: entries[len(entries)-1].ModRevision})
		defer m.Close()
		e := newSlowEtcd(m)
		ctx, cancel := context.WithCancel(t.Context())
		rest := &leaders{
			client: e.client(), stores: map[replicate.NodeID]*store{}, dead: dead,
			rows: map[meta.PartitionID]*partEntry{},
		}
		defer rest.done.Wait()
		defer cancel()
		lease, err := rest.client.Grant(ctx, time.Hour)
		if err != nil {
			t.Fatal(err)
		}
		deadLease, err := rest.client.Grant(ctx, DefaultLeaseTTL)
		if err != nil {
			t.Fatal(err)
		}
		for i, row := range f.live(DefaultPrefix)[1:] {
			op := kv.Op{Key: row.Key, Value: row.Value, Lease: lease}
			if f.members[i+1].ID == rest.dead {
				op.Lease = deadLease
			}
			if ok, _, err := rest.client.Store.Txn(ctx, nil, []kv.Op{op}); !ok || err != nil {
				t.Fatal(ok, err)
			}
		}
		node := New(e.client(), Options{Logger: slog.New(slog.DiscardHandler)})
		reg := meta.Registration{Node: f.members[0]}
		reg.Node.ID = 0
		if _, err := node.Join(ctx, reg); err != nil {
			t.Fatal(err)
		}
		defer node.Close()
		for node.Snapshot().Controller == 0 {
			time.Sleep(10 * time.Millisecond)
		}
		_, rev := m.Entries()
		for _, p := range node.Snapshot().Partitions.All() {
			rest.rows[p.ID] = &partEntry{Partition: *p, rev: node.(*store).cur.Load().parts.Get(p.ID).rev}
		}
		rest.done.Go(func() {
			_ = rest.client.Store.Watch(ctx, DefaultPrefix, rev, func(es []kv.Event, _ int64) {
				time.Sleep(watchTime)
				rest.look(ctx, es)
			})
		})
		idle := e.alives.Load()
		const idleTime = 10
		for range idleTime {
			if _, err := rest.client.Store.KeepAlive(ctx, deadLease); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Second)
		}
		if h.alives = int(e.alives.Load() - idle); e.txns.Load() > maxStartTxns || e.events.Load() > maxStartTxns ||
			h.alives > idleTime+1 {
			t.Errorf("an idle node asks for more than its lease: %d transactions, %d events, %d extensions of the lease",
				e.txns.Load(), e.events.Load(), h.alives)
		}
		if _, err := rest.client.Store.KeepAlive(ctx, deadLease); err != nil {
			t.Fatal(err)
		}
		txns, events, bytes := e.txns.Load(), e.events.Load(), e.bytes.Load()
		death := time.Now()
		if told {
			boot := f.members[dead-1].Boot
			for range f.nodes - 2 { // everybody who was connected to it
				rest.done.Go(func() { _ = node.ReportDown(ctx, dead, boot) })
			}
		}
		load := node.(*store).cur.Load().load
		h.leaderships, h.held = load.leads[dead], load.replicas[dead]
		h.led = until(node, death, func(p *meta.Partition) bool { return p.State.Leader != dead })
		h.whole = until(node, death, func(p *meta.Partition) bool {
			return !slices.ContainsFunc(p.State.ISR, func(m replicate.Member) bool { return m.Node == dead })
		})
		h.txns, h.events, h.bytes = e.txns.Load()-txns, e.events.Load()-events, e.bytes.Load()-bytes
	})
	return h
}

func count(s *meta.Snapshot, is func(*meta.Partition) bool) (n int) {
	for _, p := range s.Partitions.All() {
		if is(p) {
			n++
		}
	}
	return n
}

// until waits until a condition holds for all partitions, and returns how long after begin that was.
func until(node meta.Store, begin time.Time, ok func(*meta.Partition) bool) time.Duration {
	for time.Since(begin) < time.Minute {
		if count(node.Snapshot(), ok) == node.Snapshot().Partitions.Len() {
			break
		}
		time.Sleep(20 * time.Millisecond)
	}
	return time.Since(begin)
}

// When a node of 100 dies that leads 1000 of 100,000 partitions and follows in 2000, all of them are led again within
// two seconds of the moment at which somebody knows.
func TestScaleDeath(t *testing.T) {
	for _, c := range []struct {
		name  string
		f     *fleet
		told  bool
		after time.Duration // until the store knows of the death
	}{
		{"its process ended", large(), true, 0},
		{"its machine fell silent", newFleet(100, 100, 100), false, DefaultLeaseTTL},
	} {
		t.Run(c.name, func(t *testing.T) {
			h := die(t, c.f, c.told)
			t.Logf("%d leaderships, %d replicas: all led after %v, whole ISRs after %v; %d transactions, each node heard of %d "+
				"rows, %d bytes", h.leaderships, h.held, h.led, h.whole, h.txns, h.events, h.bytes)
			if h.led > c.after+2*time.Second {
				t.Errorf("the last partition was led after %v", h.led)
			}
			// One report, its end, the live row; each election and each ISR once.
			if most := int64(h.leaderships + h.held + 5); h.events > most {
				t.Errorf("each node heard of %d rows, more than %d", h.events, most)
			}
		})
	}
}

// What a node hears of when another one dies depends on the replicas of that node, and not on how many nodes there are.
// An idle node hears of nothing.
func TestScaleTraffic(t *testing.T) {
	var of3 healing
	for _, nodes := range []int{3, 10, 30, 100} {
		h := die(t, newFleet(nodes, nodes, 100), true)
		t.Logf("%d nodes: the dead one led %d and held %d; each of the others heard of %d rows, %d bytes; %d transactions",
			nodes, h.leaderships, h.held, h.events, h.bytes, h.txns)
		if nodes == 3 {
			of3 = h
		}
		// Each row is written once. Every node that was connected to the dead one tells the store, and writes the rows that
		// it leads in a few transactions: those that it knows at once, and those that it gets to lead.
		if h.events > of3.events+of3.events/50 || h.txns > 5*int64(nodes)+10 {
			t.Errorf("with %d nodes: %+v, and with 3: %+v", nodes, h, of3)
		}
	}
}
