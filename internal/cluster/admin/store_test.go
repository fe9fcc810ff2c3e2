package admin_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"penstock/internal/cluster"
	"penstock/internal/cluster/admin"
	"penstock/internal/cluster/kv"
	"penstock/internal/cluster/kv/memory"
	"penstock/internal/meta"
	"penstock/replicate"
)

// member is a node of a cluster without an engine: its store and its HTTP address.
type member struct {
	t       *testing.T
	name    string
	store   meta.Store
	url     string
	changed chan struct{}
}

func join(t *testing.T, m *memory.Map, name string) *member {
	t.Helper()
	return joinBy(t, m.Store(), name)
}

func joinBy(t *testing.T, way kv.Store, name string) *member {
	t.Helper()
	n := &member{t: t, name: name, changed: make(chan struct{}, 1)}
	logger := slog.New(slog.DiscardHandler)
	n.store = cluster.New(way, cluster.Options{
		Logger: logger, LeaseTTL: time.Second, ControllerTick: 20 * time.Millisecond,
	})
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	_, err := n.store.Join(ctx, meta.Registration{
		Node: meta.Node{
			Name: name, Store: uuid.New(), Boot: uuid.New(), Version: "test", Peer: name + ":1", NSQ: name + ":2",
		},
		Changed: func(*meta.Change) {
			select {
			case n.changed <- struct{}{}:
			default:
			}
		},
		Lease: func(time.Time) {},
	})
	if err != nil {
		t.Fatalf("%s does not join: %v", name, err)
	}
	t.Cleanup(func() { _ = n.store.Close() })
	server := httptest.NewServer(admin.Handler(n.store, admin.Self{Name: name}))
	t.Cleanup(server.Close)
	n.url = server.URL
	return n
}

func (n *member) ask(method, path, body string, answer any) int {
	n.t.Helper()
	r, err := http.NewRequestWithContext(n.t.Context(), method, n.url+path, strings.NewReader(body))
	if err != nil {
		n.t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		n.t.Fatal(err)
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	if err == nil {
		err = json.Unmarshal(data, answer)
	}
	if err != nil {
		n.t.Fatalf("%s answers %d %q: %v", path, resp.StatusCode, data, err)
	}
	return resp.StatusCode
}

// tell sends a command and demands a status.
func (n *member) tell(command, body string, status int) {
	n.t.Helper()
	var done admin.Done
	if got := n.ask("POST", "/cluster/"+command, body, &done); got != status {
		n.t.Errorf("%s %s: %d %s, want %d", command, body, got, done.Message, status)
	}
}

// until checks a condition at every change of the metadata.
func (n *member) until(what string, wanted func(st *admin.Status, topics []admin.Topic) bool) {
	n.t.Helper()
	deadline := time.After(20 * time.Second)
	for {
		var st admin.Status
		var all admin.Topics
		if n.ask("GET", "/cluster/status", "", &st) == 200 && n.ask("GET", "/cluster/topics", "", &all) == 200 &&
			wanted(&st, all.Topics) {
			return
		}
		select {
		case <-n.changed:
		case <-deadline:
			n.t.Fatalf("it does not come to %s: %+v %+v", what, st, all)
		}
	}
}

// The commands on a real store; each is sent to another node than the one that shows its effect. There are no engines,
// so replicas do not catch up and leaders do not hand over: a command that needs them ends where they would begin.
func TestOnTheStore(t *testing.T) {
	m := memory.New(memory.Options{})
	defer m.Close()
	nodes := make([]*member, 4)
	for i := range nodes {
		nodes[i] = join(t, m, fmt.Sprintf("n%d", i+1))
	}
	first, second := nodes[0], nodes[1]
	first.until("four nodes and a controller", func(st *admin.Status, _ []admin.Topic) bool {
		return len(st.Nodes) == 4 && st.Joined && st.Controller != "" && st.Node == "n1"
	})
	if _, err := second.store.CreateTopic(t.Context(), meta.Topic{
		Name: "orders", Partitions: 1, Replicas: 2, MinISR: 1,
	}); err != nil {
		t.Fatal(err)
	}
	first.until("a topic", func(st *admin.Status, topics []admin.Topic) bool {
		return len(topics) == 1 && topics[0].Partitions[0].State == admin.StateOK && st.PartitionCount == 1
	})

	// B88
	second.tell("expand", `{"topic":"orders","partitions":3}`, 200)
	first.until("three partitions", func(st *admin.Status, topics []admin.Topic) bool {
		return len(topics[0].Partitions) == 3 && topics[0].Partitions[2].State == admin.StateOK && st.UnderReplicated == 0
	})
	first.tell("expand", `{"topic":"orders","partitions":3}`, 400)

	testMove(t, first, second)
	testForce(t, nodes)

	// A drain is shown, and ends. It comes last because it moves replicas at once.
	first.tell("drain", `{"node":"n4","on":true}`, 200)
	first.until("a draining node", func(st *admin.Status, _ []admin.Topic) bool { return st.Nodes[3].Draining })
	first.tell("drain", `{"node":4,"on":false}`, 200)
	first.until("no draining node", func(st *admin.Status, _ []admin.Topic) bool { return !st.Nodes[3].Draining })
}

func (n *member) partition(number int) admin.Partition {
	n.t.Helper()
	var all admin.Topics
	if status := n.ask("GET", "/cluster/topics?topic=orders", "", &all); status != 200 {
		n.t.Fatalf("topics: %d", status)
	}
	return all.Topics[0].Partitions[number]
}

// B89, its first half: the new replica is there and not in sync, the old one is still there.
func testMove(t *testing.T, first, second *member) {
	t.Helper()
	p := first.partition(0)
	to := ""
	for _, name := range []string{"n1", "n2", "n3", "n4"} {
		if !slices.Contains(p.Replicas, name) {
			to = name
		}
	}
	body := fmt.Sprintf(`{"topic":"orders","partition":0,"from":%q,"to":%q}`, p.Replicas[1], to)
	second.tell("move", body, 200)
	first.until("a third replica", func(st *admin.Status, topics []admin.Topic) bool {
		now := topics[0].Partitions[0]
		return len(now.Replicas) == 3 && len(now.ISR) == 2 && now.State == admin.StateUnderReplicated &&
			st.UnderReplicated == 1
	})
	first.tell("move", body, 409)
}

// If the whole ISR is gone, nobody leads, although a replica is alive, until an operator forces it. A node that holds
// replicas cannot be removed.
func testForce(t *testing.T, nodes []*member) {
	t.Helper()
	p := nodes[0].partition(1)
	var leader, other, asked *member
	for _, n := range nodes {
		switch {
		case n.name == p.Leader:
			leader = n
		case slices.Contains(p.Replicas, n.name):
			other = n
		default:
			asked = n
		}
	}
	force := fmt.Sprintf(`{"topic":"orders","partition":1,"node":%q,"i_accept_data_loss":true}`, other.name)
	asked.tell("force-leader", force, 409) // it has a leader

	leader.until("knowing what it leads", func(_ *admin.Status, topics []admin.Topic) bool {
		return len(topics) == 1 && len(topics[0].Partitions) == 3 && topics[0].Partitions[1].Leader == leader.name
	})
	snapshot := leader.store.Snapshot()
	id := meta.PartitionID{Topic: snapshot.Names["orders"].ID, Partition: 1}
	want := snapshot.Partitions.Get(id).State
	want.ISR = slices.DeleteFunc(slices.Clone(want.ISR), func(m replicate.Member) bool { return m.Node != want.Leader })
	if _, err := leader.store.ChangeISR(t.Context(), id, &want); err != nil {
		t.Fatal(err)
	}
	if err := leader.store.Leave(t.Context()); err != nil {
		t.Fatal(err)
	}
	asked.until("the end of its leader", func(st *admin.Status, topics []admin.Topic) bool {
		now := topics[0].Partitions[1]
		return now.State == admin.StateLeaderless && slices.Equal(now.ISR, []string{leader.name}) && st.Leaderless == 1
	})
	asked.tell("remove-node", fmt.Sprintf(`{"node":%q}`, leader.name), 409)
	asked.tell("force-leader", force, 200)
	asked.until("the forced leader", func(st *admin.Status, topics []admin.Topic) bool {
		now := topics[0].Partitions[1]
		return now.Leader == other.name && now.Epoch > p.Epoch && st.Leaderless == 0
	})
}

// held is a way to the metadata whose watch brings nothing while it is held up.
type held struct {
	kv.Store
	mu sync.Mutex
}

func (h *held) Watch(ctx context.Context, prefix string, after int64, changed func([]kv.Event, int64)) error {
	return h.Store.Watch(ctx, prefix, after, func(es []kv.Event, revision int64) {
		h.mu.Lock()
		defer h.mu.Unlock()
		changed(es, revision)
	})
}

// A command finds a node that joined a moment ago, and a topic that was made a moment ago, through a node that has not
// heard of them yet.
func TestCommandsThroughANodeThatIsBehind(t *testing.T) {
	m := memory.New(memory.Options{})
	t.Cleanup(m.Close)
	n1 := join(t, m, "n1")
	way := &held{Store: m.Store()}
	n2 := joinBy(t, way, "n2")
	n2.until("two nodes", func(st *admin.Status, _ []admin.Topic) bool { return len(st.Nodes) == 2 })

	way.mu.Lock()
	goOn := sync.OnceFunc(way.mu.Unlock)
	defer goOn()
	join(t, m, "n3")
	time.AfterFunc(50*time.Millisecond, goOn)
	n2.tell("drain", `{"node":"n3","on":true}`, 200)

	way.mu.Lock()
	again := sync.OnceFunc(way.mu.Unlock)
	defer again()
	_, err := n1.store.CreateTopic(t.Context(), meta.Topic{Name: "orders", Partitions: 1, Replicas: 1})
	if err != nil {
		t.Fatal(err)
	}
	time.AfterFunc(50*time.Millisecond, again)
	n2.tell("expand", `{"topic":"orders","partitions":3}`, 200)
	n2.tell("drain", `{"node":"n9","on":true}`, 404)
}
