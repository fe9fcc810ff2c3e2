package cluster

import (
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"golang.org/x/sys/unix"

	"penstock/internal/cluster/kv"
	"penstock/internal/cluster/kv/memory"
	"penstock/internal/meta"
	"penstock/replicate"
)

// fleet describes a large cluster: its rows are made directly, as if all its topics had been there for a while.
type fleet struct {
	nodes, topics, partitions int // partitions of each topic
	r                         *rand.Rand
	members                   []meta.Node
}

func newFleet(nodes, topics, partitions int) *fleet {
	f := &fleet{nodes: nodes, topics: topics, partitions: partitions, r: rand.New(rand.NewPCG(1, 2))}
	for i := range nodes {
		f.members = append(f.members, meta.Node{
			ID: replicate.NodeID(i + 1), Name: fmt.Sprintf("n%d", i+1), Store: f.uuid(), Boot: f.uuid(), Version: "1.0.0",
			Peer: fmt.Sprintf("10.0.0.%d:4154", i+1), Host: fmt.Sprintf("10.0.0.%d", i+1),
			NSQ: fmt.Sprintf("10.0.0.%d:4150", i+1), HTTP: fmt.Sprintf("10.0.0.%d:4151", i+1),
			Rack: fmt.Sprintf("r%d", i%3), Level: 3, StoreLevel: 3,
		})
	}
	return f
}

func (f *fleet) uuid() (id uuid.UUID) {
	for i := range id {
		id[i] = byte(f.r.UintN(256))
	}
	return id
}

// entries returns the rows of all but the live nodes: leaderships are even, and so are replicas.
func (f *fleet) entries(prefix string) []kv.Entry {
	var all []kv.Entry
	add := func(key string, row []byte) {
		all = append(all, kv.Entry{Key: prefix + key, Value: row, ModRevision: int64(len(all)/100 + 2)})
	}
	add(clusterKey, encode(f.uuid()))
	add(lastIDKey, encode(f.nodes))
	add(levelKey, encode(levelRow{Level: 2}))
	for i := range f.members {
		add(nodeKey(nodesDir, f.members[i].ID), encode(f.members[i]))
	}
	next := 0
	for n := range f.topics {
		t := &meta.Topic{
			ID: f.uuid(), Name: fmt.Sprintf("topic-%d", n), Partitions: f.partitions, Replicas: 3, MinISR: 2, CreatedNs: 1,
		}
		add(topicKey(topicsDir, t.ID), encode(t))
		add(namesDir+t.Name, encode(t.ID))
		for i := range f.partitions {
			p := &meta.Partition{ID: meta.PartitionID{Topic: t.ID, Partition: uint32(i)}}
			p.State = replicate.State{Epoch: 1, Version: 1, MinISR: 2}
			turn := next / f.nodes * 2 // so that a node's partitions have their other replicas on all others
			for k := range 3 {
				m := &f.members[next%f.nodes]
				if k > 0 {
					m = &f.members[(next+1+(turn+k-1)%(f.nodes-1))%f.nodes]
				}
				p.State.Replicas = append(p.State.Replicas, m.ID)
				p.State.ISR = append(p.State.ISR, replicate.Member{Node: m.ID, Store: m.Store})
			}
			p.State.Leader, p.State.Boot = p.State.Replicas[0], f.members[p.State.Replicas[0]-1].Boot
			noteTerm(p)
			add(partKey(partsDir, p.ID), encodePartition(p))
			next++
		}
	}
	return all
}

// live returns the rows that say that all nodes are alive.
func (f *fleet) live(prefix string) []kv.Entry {
	var all []kv.Entry
	for i := range f.members {
		m := &f.members[i]
		row := encode(processRow{m.ID, m.Boot})
		all = append(all, kv.Entry{Key: prefix + nodeKey(liveDir, m.ID), Value: row, ModRevision: 1})
	}
	return all
}

// stateOf returns the state of a node that has read these entries.
func stateOf(entries []kv.Entry) *state {
	b := build(newState(), DefaultPrefix, slog.New(slog.DiscardHandler))
	for i := range entries {
		b.apply(&kv.Event{Entry: entries[i]})
	}
	st, _ := b.finish(1 << 20)
	return st
}

// large returns a cluster of 100 nodes and 100,000 partitions, or a tenth of these in short mode.
func large() *fleet {
	if testing.Short() {
		return newFleet(100, 100, 100)
	}
	return newFleet(100, 1000, 100)
}

// changed returns st after one event.
func changed(st *state, key string, row []byte) *state {
	b := build(st, DefaultPrefix, slog.New(slog.DiscardHandler))
	rev := st.snap.Revision + 1
	e := kv.Event{Entry: kv.Entry{Key: DefaultPrefix + key, Value: row, ModRevision: rev}, Deleted: row == nil}
	b.apply(&e)
	next, _ := b.finish(rev)
	return next
}

// maxPlanTime bounds one plan for 100 nodes with 100,000 partitions. It takes about a tenth of that.
const maxPlanTime = time.Second

// threadTime returns how long the caller's thread, to which it must be locked, has had a processor. On a machine that
// has others to do, a plan waits for one much longer than it computes.
func threadTime(t *testing.T) time.Duration {
	t.Helper()
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_THREAD, &u); err != nil {
		t.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

func TestScale(t *testing.T) {
	f := large()
	entries := append(f.entries(DefaultPrefix), f.live(DefaultPrefix)...)
	begin := time.Now()
	st := stateOf(entries)
	t.Logf("a node reads %d rows in %v", len(entries), time.Since(begin))
	t.Run("plan", func(t *testing.T) { testScalePlan(t, f, st) })
	t.Run("change", func(t *testing.T) { testScaleChange(t, st, entries) })
}

// A plan looks at every partition, but does no more work for those that are as they should be.
func testScalePlan(t *testing.T, f *fleet, st *state) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	count := st.snap.Partitions.Len()
	t.Logf("%d nodes, %d partitions", len(st.snap.Nodes), count)
	wanted := encode(meta.Rebalance{Wanted: true})
	draining, new := f.members[9], f.members[9]
	draining.Draining = true
	new.ID, new.Name = replicate.NodeID(f.nodes+1), "new"
	joined := changed(changed(st, nodeKey(nodesDir, new.ID), encode(new)),
		nodeKey(liveDir, new.ID), encode(processRow{new.ID, new.Boot}))
	dead := changed(st, nodeKey(liveDir, 7), nil)
	for _, c := range []struct {
		what     string
		st       *state
		commands int
	}{
		{"nothing to do", st, 0},
		{"a node is dead", dead, count / f.nodes},
		{"a node drains", changed(st, nodeKey(nodesDir, draining.ID), encode(draining)), MaxDrainMoveCount},
		{"a node has joined", changed(joined, rebalanceKey, wanted), DefaultRebalanceMoves},
		{"a node is gone", changed(dead, rebalanceKey, encode(meta.Rebalance{Wanted: true, Gone: 7})), count / f.nodes},
	} {
		var commands []command
		var stuck []meta.PartitionID
		took := time.Hour
		for range 5 { // the machine may be busy
			begin := threadTime(t)
			commands, stuck = plan(c.st, DefaultPrefix, time.Now(), DefaultRebalanceMoves, view{})
			if took = min(took, threadTime(t)-begin); took < maxPlanTime/2 {
				break
			}
		}
		t.Logf("%s: %d commands in %v", c.what, len(commands), took)
		if len(commands) < c.commands || len(commands) > c.commands+DefaultRebalanceMoves || len(stuck) > 0 {
			t.Errorf("%s: %d commands, %d stuck; want %d commands", c.what, len(commands), len(stuck), c.commands)
		}
		if took > maxPlanTime {
			t.Errorf("%s: the plan took %v", c.what, took)
		}
	}
}

// What a node does when it hears of one changed row depends on the topic's partitions, not on all of them.
func testScaleChange(t *testing.T, st *state, entries []kv.Entry) {
	i := slices.IndexFunc(entries, func(e kv.Entry) bool { return strings.HasPrefix(e.Key, DefaultPrefix+partsDir) })
	key := strings.TrimPrefix(entries[i].Key, DefaultPrefix)
	id, err := parsePart(strings.TrimPrefix(key, partsDir))
	if err != nil {
		t.Fatal(err)
	}
	next := st
	const rounds = 100
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	begin := time.Now()
	for range rounds {
		next = changed(st, key, entries[i].Value)
	}
	took := time.Since(begin) / rounds
	runtime.ReadMemStats(&after)
	bytes := (after.TotalAlloc - before.TotalAlloc) / rounds
	t.Logf("one changed row of %d partitions takes %v and %d bytes", st.snap.Partitions.Len(), took, bytes)
	if bytes > 400_000 { // a pointer for each of 100,000 partitions alone would be twice as much
		t.Errorf("one changed row makes a node allocate %d bytes", bytes)
	}
	other := id
	other.Partition++
	if next.snap.Partitions.Get(id) == st.snap.Partitions.Get(id) ||
		next.snap.Partitions.Get(other) != st.snap.Partitions.Get(other) {
		t.Error("it is not that row that has changed")
	}
	if want := loadOf(next.snap); !maps.Equal(want.leads, next.load.leads) ||
		!maps.Equal(want.replicas, next.load.replicas) {
		t.Error("the load is not that of the rows")
	}
}

// With the most nodes that a cluster may have, the transactions that compare the rows of all of them still fit.
func TestMostNodes(t *testing.T) {
	f := newFleet(MaxNodeCount, 1, 100)
	entries := append(f.entries(DefaultPrefix), f.live(DefaultPrefix)[1:]...)
	m := memory.New(memory.Options{Entries: entries, Revision: entries[len(entries)-MaxNodeCount].ModRevision})
	defer m.Close()
	node := New(m.Store(), Options{})
	reg := meta.Registration{Node: f.members[0]}
	reg.Node.ID = 0
	if _, err := node.Join(ctx(t), reg); err != nil {
		t.Fatal(err)
	}
	defer node.Close()
	topic, err := node.CreateTopic(ctx(t), meta.Topic{Name: "large", Partitions: 3 * MaxNodeCount})
	if err != nil {
		t.Fatal(err)
	}
	if used := len(loadOf(node.Snapshot()).leads); used != MaxNodeCount || topic.Replicas != 3 {
		t.Errorf("%d nodes lead; the topic has %d replicas", used, topic.Replicas)
	}
	if err := node.RaiseLevel(ctx(t), 3); err != nil {
		t.Error(err)
	}
	for s := node.Snapshot(); s.Level != 3; s = node.Snapshot() {
		select {
		case <-ctx(t).Done():
			t.Fatal("the level was not raised")
		default:
			time.Sleep(time.Millisecond)
		}
	}
}
