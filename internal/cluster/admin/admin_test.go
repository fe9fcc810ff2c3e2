package admin

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"penstock/internal/cluster/kv"
	"penstock/internal/meta"
	"penstock/internal/node/health"
	"penstock/replicate"
)

var update = flag.Bool("update", false, "rewrite the golden files")

func ask(h http.Handler, method, path, body string) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest(method, path, strings.NewReader(body)))
	return w
}

// sentence demands {"message"} and nothing else.
func sentence(t *testing.T, w *httptest.ResponseRecorder) string {
	t.Helper()
	var got map[string]string
	err := json.Unmarshal(w.Body.Bytes(), &got)
	if delete(got, "leader"); err != nil || len(got) != 1 || got["message"] == "" { // see TestTransferAnswer
		t.Fatalf("the answer %d %q is no message (%v)", w.Code, w.Body, err)
	}
	return got["message"]
}

// The answers are an interface that tools read, so their names must not change.
func TestGolden(t *testing.T) {
	h := Handler(&fakeStore{shown: testSnapshot()}, Self{Name: "n2"})
	for _, path := range []string{"/cluster/status", "/cluster/topics"} {
		w := ask(h, "GET", path, "")
		if w.Code != 200 || w.Header().Get("Content-Type") != "application/json; charset=utf-8" {
			t.Fatalf("%s: %d %v", path, w.Code, w.Header())
		}
		var got bytes.Buffer
		if err := json.Indent(&got, w.Body.Bytes(), "", "  "); err != nil {
			t.Fatal(err)
		}
		name := filepath.Join("testdata", filepath.Base(path)+".json")
		if *update {
			if err := os.MkdirAll("testdata", 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(name, got.Bytes(), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(got.Bytes(), want) {
			t.Errorf("%s differs from %s; it is now\n%s", path, name, &got)
		}
	}
}

// shown is the status of a node that knows nothing but the store's rows.
func shown(s *meta.Snapshot, self string) *Status {
	h := &handler{self: Self{Name: self}}
	return statusOf(s, h.facts(s))
}

// allTrusting is the View of a node that believes the rows of the store.
func allTrusting() *health.View {
	v := health.Trusting(2)
	return &v
}

func TestStatusCounts(t *testing.T) {
	st := shown(testSnapshot(), "n2")
	if st.PartitionCount != 6 || st.Leaderless != 3 || st.BelowMinISR != 2 || st.UnderReplicated != 4 || st.Damaged != 1 ||
		!st.Joined || st.Controller != "n2" {
		t.Errorf("%+v", st)
	}
	for i, want := range []struct{ leaders, replicas, inSync, needed int }{
		{2, 5, 4, 2}, {1, 5, 3, 1}, {1, 4, 2, 1}, {1, 1, 1, 0}, {0, 0, 0, 0},
	} {
		if n := st.Nodes[i]; n.Leaders != want.leaders || n.Replicas != want.replicas || n.InSync != want.inSync ||
			n.Needed != want.needed {
			t.Errorf("node %s: %d leaders, %d replicas, %d in sync, want %+v", n.Name, n.Leaders, n.Replicas, n.InSync, want)
		}
	}
	if shown(testSnapshot(), "n3").Joined { // its lease ran out
		t.Error("a node without a lease says that it has joined")
	}
	if shown(testSnapshot(), "n9").Joined {
		t.Error("an unknown node says that it has joined")
	}
}

// O1: what the node knows itself is younger than the rows of a store that has fallen silent. The rows still say that n1
// and n4 live.
func TestStatusInAnOutage(t *testing.T) {
	look := func() *health.Facts {
		return &health.Facts{Node: "n2", Cluster: &health.Cluster{View: health.View{
			Self: 2, StoreAge: 28 * time.Second, LeaseLength: 2500 * time.Millisecond,
			Gone: map[replicate.NodeID]time.Duration{1: 27 * time.Second}, Connected: map[replicate.NodeID]bool{5: true},
		}}}
	}
	h := Handler(&fakeStore{shown: testSnapshot()}, Self{Name: "n2", Health: look})
	var st Status
	if err := json.Unmarshal(ask(h, "GET", "/cluster/status", "").Body.Bytes(), &st); err != nil {
		t.Fatal(err)
	}
	if st.Joined || st.Healthy || st.Controller != "" || st.Leaderless != 6 || st.AgeMs != 28_000 ||
		!strings.Contains(st.Health, "no lease and serves nothing; the metadata store has not answered for 28.0s") {
		t.Errorf("%+v", st)
	}
	for i, want := range []Node{
		{Name: "n1", Presence: health.Dead, PresenceMs: 27_000},
		{Name: "n2", Presence: health.NoLease, PresenceMs: 28_000},
		{Name: "n3", Presence: health.Dead, PresenceMs: 28_000},
		{Name: "n4", Presence: health.Unknown, PresenceMs: 28_000},
		{Name: "2", Presence: health.Live, Live: true},
	} {
		if n := st.Nodes[i]; n.Name != want.Name || n.Live != want.Live || n.Presence != want.Presence ||
			n.PresenceMs != want.PresenceMs {
			t.Errorf("%+v, want %+v", n, want)
		}
	}
	var all Topics
	if err := json.Unmarshal(ask(h, "GET", "/cluster/topics", "").Body.Bytes(), &all); err != nil {
		t.Fatal(err)
	}
	for _, p := range all.Topics[0].Partitions {
		if all.AgeMs != 28_000 || p.State != StateLeaderless {
			t.Errorf("%d ms old: %+v", all.AgeMs, p)
		}
	}
}

func TestPartitionStates(t *testing.T) {
	all := topicsOf(testSnapshot(), allTrusting(), []*meta.Topic{testSnapshot().Names["orders"]})
	want := []PartitionState{
		StateUnderReplicated, StateUnderReplicated, StateBelowMinISR, StateLeaderless, StateLeaderless, StateLeaderless,
	}
	for i, p := range all.Topics[0].Partitions {
		if p.State != want[i] || int(p.Partition) != i {
			t.Errorf("partition %d is %s, want %s", i, p.State, want[i])
		}
	}
	s := testSnapshot()
	delete(s.Nodes, 3) // removed, although rows still name it
	p := partitionOf(s, allTrusting(), meta.PartitionID{Topic: ordersID, Partition: 3})
	if p.Leader != "3" || !reflect.DeepEqual(p.ISR, []string{"3"}) || p.State != StateLeaderless {
		t.Errorf("a row that names a removed node: %+v", p)
	}
}

func TestTopicsOfOne(t *testing.T) {
	h := Handler(&fakeStore{shown: testSnapshot()}, Self{Name: "n2"})
	var all Topics
	if w := ask(h, "GET", "/cluster/topics?topic=orders", ""); w.Code != 200 ||
		json.Unmarshal(w.Body.Bytes(), &all) != nil || len(all.Topics) != 1 {
		t.Errorf("%d %s", w.Code, w.Body)
	}
	if w := ask(h, "GET", "/cluster/topics?topic=none", ""); w.Code != 404 ||
		!strings.Contains(sentence(t, w), `no topic "none"`) {
		t.Errorf("%d %s", w.Code, w.Body)
	}
	if w := ask(h, "HEAD", "/cluster/topics", ""); w.Code != 200 {
		t.Errorf("HEAD: %d", w.Code)
	}
}

func TestCommands(t *testing.T) {
	for _, tc := range []struct {
		path, body string
		call       string // the call that reaches the store
	}{
		{"drain", `{"node":"n1","on":true}`, "drain 1 true"},
		{"drain", `{"node":"n3","on":false}`, "drain 3 false"},
		{"drain", `{"node":4,"on":true}`, "drain 4 true"},
		{"drain", `{"node":"4","on":true}`, "drain 4 true"},
		{"drain", `{"node":"2","on":true}`, "drain 5 true"}, // a name has precedence over a number
		{"move", `{"topic":"orders","partition":0,"from":"n1","to":"n4"}`, "move " + ordersID.String() + "/0 1 4"},
		{
			"force-leader", `{"topic":"orders","partition":3,"node":"n1","i_accept_data_loss":true}`,
			"force " + ordersID.String() + "/3 1",
		},
		// A leader that waits for a replica which may have more than its shortened log goes on without it.
		{
			"force-leader", `{"topic":"orders","partition":0,"node":"n1","i_accept_data_loss":true}`,
			"force " + ordersID.String() + "/0 1",
		},
		{
			"transfer-leader", `{"topic":"orders","partition":0,"to":"n2"}`, "transfer " + ordersID.String() + "/0 2",
		},
		{"transfer-leader", `{"topic":"orders","partition":0}`, "transfer " + ordersID.String() + "/0 0"},
		{"remove-node", `{"node":"2"}`, "remove 5"},
		{"expand", `{"topic":"orders","partitions":8}`, "expand " + ordersID.String() + " 8"},
		{"set-replicas", `{"topic":"orders","replicas":2}`, "replicas " + ordersID.String() + " 2"},
		{"rebalance", `{"action":"start"}`, "rebalance start"},
		{"rebalance", `{"action":"pause"}`, "rebalance pause"},
		{"rebalance", `{"action":"resume"}`, "rebalance resume"},
		{"rebalance", `{"action":"cancel"}`, "rebalance cancel"},
		{"move", `{"topic":"orders","partition":1,"cancel":true}`, "move " + ordersID.String() + "/1 2 2"},
		{"upgrade", `{"level":2}`, "raise 2"},
	} {
		store := &fakeStore{shown: testSnapshot()}
		store.shown.Nodes[5].Live = false
		store.shown.Moves = map[meta.PartitionID]meta.Move{{Topic: ordersID, Partition: 1}: {From: 2, To: 4}}
		w := ask(Handler(store, Self{Name: "n2"}), "POST", "/cluster/"+tc.path, tc.body)
		if w.Code != 200 || !reflect.DeepEqual(store.calls, []string{tc.call}) {
			t.Errorf("%s %s: %d %s, the store was asked for %q", tc.path, tc.body, w.Code, w.Body, store.calls)
			continue
		}
		sentence(t, w)
	}
}

// A refused command must not have reached the store.
func TestRefusals(t *testing.T) {
	for _, tc := range []struct {
		path, body string
		status     int
		want       string
	}{
		{"drain", ``, 400, "not the JSON object"},
		{"drain", `[]`, 400, "not the JSON object that /cluster/drain takes: it is a list, and must be an object"},
		{"expand", `{"topic":"orders","partitions":"x"}`, 400, "partitions is a string, and must be a whole number"},
		{"drain", `{"node":"n1","on":true} {}`, 400, "goes on"},
		{"drain", `{"node":"n1","onn":true}`, 400, "onn"},
		{"drain", `{"node":"n1"}`, 400, "on is missing"},
		{"drain", `{"on":true}`, 400, "node is missing"},
		{"drain", `{"node":-1,"on":true}`, 400, "a name or a number"},
		{"drain", `{"node":null,"on":true}`, 400, "node is missing"},
		{"drain", `{"node":"n9","on":true}`, 404, "there are 2, n1, n2, n3, n4"},
		{"drain", `{"node":0,"on":true}`, 404, "no node"},
		{"drain", strings.Repeat(" ", MaxBodyBytes+1), 413, "4096"},
		{"move", `{"topic":"orders","from":"n1","to":"n4"}`, 400, "partition is missing"},
		{"move", `{"partition":0,"from":"n1","to":"n4"}`, 400, "topic is missing"},
		{"move", `{"topic":"none","partition":0,"from":"n1","to":"n4"}`, 404, "no topic"},
		{"move", `{"topic":"orders","partition":6,"from":"n1","to":"n4"}`, 404, "no partition 6: it has 6, counted from 0"},
		{"move", `{"topic":"orders","partition":-1,"from":"n1","to":"n4"}`, 400, "not the JSON object"},
		{"move", `{"topic":"orders","partition":0,"from":"n4","to":"n1"}`, 409, "it is on n1, n2, n3"},
		{"move", `{"topic":"orders","partition":0,"from":"n1","to":"n2"}`, 409, "already"},
		{"move", `{"topic":"orders","partition":4,"from":"n1","to":"n3"}`, 409, "not alive"},
		{"move", `{"topic":"orders","partition":0,"from":"n1","to":"5"}`, 409, "is draining"},
		{"move", `{"topic":"orders","partition":0,"from":"n1"}`, 400, "to is missing"},
		{"move", `{"topic":"orders","partition":0,"cancel":true}`, 409, "is not moving"},
		{"move", `{"topic":"orders","partition":0,"from":"n1","cancel":true}`, 400, "say nothing to it"},
		{"force-leader", `{"topic":"orders","partition":3,"node":"n1"}`, 400, "lost for ever"},
		{
			"force-leader", `{"topic":"orders","partition":3,"node":"n4","i_accept_data_loss":true}`, 409, "it is on n1, n2, n3",
		},
		{"force-leader", `{"topic":"orders","partition":3,"node":"n3","i_accept_data_loss":true}`, 409, "not alive"},
		{"force-leader", `{"topic":"orders","partition":0,"node":"n2","i_accept_data_loss":true}`, 409, "nothing to force"},
		{"transfer-leader", `{"topic":"orders"}`, 400, "partition is missing"},
		{"transfer-leader", `{"topic":"orders","partition":0,"to":"n9"}`, 404, `no node "n9"`},
		{"transfer-leader", `{"topic":"orders","partition":0,"to":"n1"}`, 409, "node n1 leads partition 0 of topic orders"},
		{"transfer-leader", `{"topic":"orders","partition":0,"to":"n3"}`, 409, "node n3: it is not alive: nothing was"},
		{"transfer-leader", `{"topic":"orders","partition":0,"to":"n4"}`, 409, "node n4: it has no replica"},
		{"transfer-leader", `{"topic":"orders","partition":3,"to":"n1"}`, 409, "has no live leader"},
		{"transfer-leader", `{"topic":"orders","partition":2}`, 409, "no other replica of partition 2 of topic orders can"},
		{"transfer-leader", `{"topic":"orders","partition":6}`, 404, "no partition 6"},
		{"remove-node", `{"node":"n1"}`, 409, "is alive"},
		{"remove-node", `{"node":"n3"}`, 409, "n3 holds 4 replicas of partitions, one of them of topic orders: "},
		{"expand", `{"topic":"orders","partitions":6}`, 400, "never fewer"},
		{"expand", `{"topic":"orders","partitions":65537}`, 400, "up to 65536"},
	} {
		store := &fakeStore{shown: testSnapshot()}
		store.shown.Nodes[5].Draining = true
		w := ask(Handler(store, Self{Name: "n2"}), "POST", "/cluster/"+tc.path, tc.body)
		if message := sentence(t, w); w.Code != tc.status || !strings.Contains(message, tc.want) || len(store.calls) != 0 {
			t.Errorf("%s %.80s: %d %s, want %d %s; the store was asked for %q",
				tc.path, tc.body, w.Code, message, tc.status, tc.want, store.calls)
		}
	}
}

// More partitions than a channel's settings allow are refused, and the store is not asked.
func TestExpandIsRefusedForAChannel(t *testing.T) {
	store := &fakeStore{shown: testSnapshot()}
	var asked string
	self := Self{Name: "n2", MayExpand: func(_ context.Context, topic string, partitions int) error {
		asked = fmt.Sprint(topic, " ", partitions)
		return fmt.Errorf("%w: channel c takes fewer", meta.ErrSettings)
	}}
	w := ask(Handler(store, self), "POST", "/cluster/expand", `{"topic":"orders","partitions":8}`)
	want := "the topic's settings are not valid; nothing was changed: channel c takes fewer"
	if m := sentence(t, w); w.Code != 400 || m != want || asked != "orders 8" || len(store.calls) != 0 {
		t.Errorf("%d %s, asked for %q, %q", w.Code, m, asked, store.calls)
	}
}

// If the live leader cannot read its own log, another one may be forced.
func TestForceAwayFromDamagedLeader(t *testing.T) {
	store := &fakeStore{shown: testSnapshot()}
	p := store.shown.Partitions.Get(meta.PartitionID{Topic: ordersID})
	p.Damaged = p.State.ISR[:1]
	w := ask(Handler(store, Self{Name: "n2"}), "POST", "/cluster/force-leader",
		`{"topic":"orders","partition":0,"node":"n2","i_accept_data_loss":true}`)
	if w.Code != 200 || len(store.calls) != 1 {
		t.Errorf("%d %s, %q", w.Code, w.Body, store.calls)
	}
}

func TestStoreErrors(t *testing.T) {
	for _, tc := range []struct {
		err    error
		status int
	}{
		{meta.ErrNotFound, 404},
		{meta.ErrExists, 409},
		{meta.ErrConflict, 409},
		{meta.ErrTooFewNodes, 409},
		{meta.ErrUnsafe, 409},
		{meta.ErrUnavailable, 503},
		// etcd did not answer in time, and the error says by itself what became of the change.
		{fmt.Errorf("%w (%w: not done (%w))", meta.ErrUnavailable, kv.ErrUnavailable, context.DeadlineExceeded), 503},
		{errors.New("meta: something else"), 500},
	} {
		store := &fakeStore{shown: testSnapshot(), err: fmt.Errorf("%w (more)", tc.err)}
		w := ask(Handler(store, Self{Name: "n2"}), "POST", "/cluster/drain", `{"node":"n1","on":true}`)
		if message := sentence(t, w); w.Code != tc.status || strings.HasPrefix(message, "meta: ") ||
			!strings.HasSuffix(message, "(more)") {
			t.Errorf("%v: %d %s, want %d", tc.err, w.Code, message, tc.status)
		}
	}
}

// A node that runs a part of the metadata store stays a member: the others would miss it for ever.
func TestRemoveNodeOfTheStore(t *testing.T) {
	look := func() *health.Facts {
		return &health.Facts{Node: "n2", Cluster: &health.Cluster{View: health.View{
			Self: 2, Leased: true, StoreNodes: []string{"n1", "n2", "2"},
		}}}
	}
	store := &fakeStore{shown: testSnapshot()}
	store.shown.Nodes[5].Live = false
	w := ask(Handler(store, Self{Name: "n2", Health: look}), "POST", "/cluster/remove-node", `{"node":"2"}`)
	if got := sentence(t, w); w.Code != 409 || !strings.Contains(got, "node 2 runs a member of the metadata store") ||
		len(store.calls) > 0 {
		t.Errorf("%d %s, and the store was asked for %q", w.Code, got, store.calls)
	}
}

// A node that was a member of etcd, and is in no list any more, is taken out there first: if that fails, it stays.
func TestRemoveNodeFromTheStoreItself(t *testing.T) {
	for _, fails := range []error{nil, meta.ErrUnavailable} {
		store := &fakeStore{shown: testSnapshot()}
		store.shown.Nodes[5].Live = false
		forgot := ""
		forget := func(_ context.Context, name string) error { forgot = name; return fails }
		w := ask(Handler(store, Self{Name: "n2", Forget: forget}), "POST", "/cluster/remove-node", `{"node":"2"}`)
		if forgot != "2" || (w.Code == 200) != (fails == nil) || (len(store.calls) == 1) != (fails == nil) {
			t.Errorf("%v: %d %s, forgot %q, and the store was asked for %q", fails, w.Code, w.Body, forgot, store.calls)
		}
	}
}

// A node whose end this node has seen, and whose lease the store still has, is not called alive.
func TestRemoveNodeBeforeItsLeaseEnds(t *testing.T) {
	for _, tc := range []struct {
		storeAge time.Duration
		status   int
		want     string
	}{
		{time.Second, 409, "node n1 is dead, and its lease has not ended yet: repeat this in 2.5s; nothing was changed"},
		{28 * time.Second, 503, "the metadata store has not answered for 28.0s, and only it can say that node n1 is dead: " +
			"nothing was changed; see whether a majority of etcd runs"},
	} {
		look := func() *health.Facts {
			return &health.Facts{Node: "n2", Cluster: &health.Cluster{View: health.View{
				Self: 2, Leased: true, StoreAge: tc.storeAge, LeaseLength: 2500 * time.Millisecond,
				Gone: map[replicate.NodeID]time.Duration{1: time.Second},
			}}}
		}
		store := &fakeStore{shown: testSnapshot()}
		w := ask(Handler(store, Self{Name: "n2", Health: look}), "POST", "/cluster/remove-node", `{"node":"n1"}`)
		if got := sentence(t, w); w.Code != tc.status || got != tc.want || len(store.calls) > 0 {
			t.Errorf("%d %s, and the store was asked for %q; want %d %s", w.Code, got, store.calls, tc.status, tc.want)
		}
	}
}

func TestStoreSilent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &fakeStore{shown: testSnapshot(), hang: true}
		w := ask(Handler(store, Self{Name: "n2"}), "POST", "/cluster/drain", `{"node":"n1","on":true}`)
		if w.Code != 504 || !strings.Contains(sentence(t, w), "may have been made") {
			t.Errorf("%d %s", w.Code, w.Body)
		}
	})
}

func TestBeforeJoin(t *testing.T) {
	h := Handler(new(fakeStore), Self{Name: "n2"})
	var st Status
	if w := ask(h, "GET", "/cluster/status", ""); w.Code != 200 || json.Unmarshal(w.Body.Bytes(), &st) != nil ||
		st.Joined || st.Node != "n2" {
		t.Errorf("%d %s", w.Code, w.Body)
	}
	for _, path := range []string{"GET /cluster/topics", "POST /cluster/drain"} {
		method, path, _ := strings.Cut(path, " ")
		if w := ask(h, method, path, `{"node":"n1","on":true}`); w.Code != 503 ||
			!strings.Contains(sentence(t, w), "has not joined") {
			t.Errorf("%s: %d %s", path, w.Code, w.Body)
		}
	}
}

func TestMethodsAndPaths(t *testing.T) {
	h := Handler(&fakeStore{shown: testSnapshot()}, Self{Name: "n2"})
	for _, tc := range []struct {
		method, path string
		status       int
		allow        string
	}{
		{"POST", "/cluster/status", 405, "GET"},
		{"GET", "/cluster/drain", 405, "POST"},
		{"DELETE", "/cluster/topics", 405, "GET"},
		{"GET", "/cluster/", 404, ""},
		{"GET", "/cluster/stats", 404, ""},
		{"GET", "/cluster/status?topic=%zz", 400, ""},
		{"GET", "/cluster/topics?topic=%zz", 400, ""},
	} {
		w := ask(h, tc.method, tc.path, "")
		if w.Code != tc.status || w.Header().Get("Allow") != tc.allow {
			t.Errorf("%s %s: %d %v", tc.method, tc.path, w.Code, w.Header())
		}
		sentence(t, w)
	}
}

func FuzzBodies(f *testing.F) {
	f.Add("drain", `{"node":1e3,"on":true}`)
	f.Add("move", `{"topic":"orders","partition":0,"from":"n1","to":4}`)
	f.Add("force-leader", `{"topic":"orders","partition":3,"node":"n1","i_accept_data_loss":false}`)
	f.Add("expand", `{"topic":"orders","partitions":1e9}`)
	f.Fuzz(func(t *testing.T, name, body string) {
		for _, known := range []string{"drain", "move", "force-leader", "remove-node", "expand", "upgrade"} {
			if name != known {
				continue
			}
			store := &fakeStore{shown: testSnapshot()}
			w := ask(Handler(store, Self{Name: "n2"}), "POST", "/cluster/"+name, body)
			sentence(t, w)
			if (w.Code == 200) != (len(store.calls) == 1) || w.Code >= 500 {
				t.Errorf("%s %q: %d %s, the store was asked for %q", name, body, w.Code, w.Body, store.calls)
			}
		}
	})
}
