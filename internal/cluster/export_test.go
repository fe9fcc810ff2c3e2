package cluster

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"penstock/internal/cluster/kv"
	"penstock/internal/cluster/kv/memory"
	"penstock/internal/meta"
	"penstock/replicate"
	"penstock/tests/support/kvfaults"
)

// seeded returns a map with the rows, as a restored cluster begins.
func seeded(t *testing.T, prefix string, rows []Row) *kvfaults.Map {
	t.Helper()
	m := kvfaults.New(memory.Options{})
	s := m.Store("seed")
	defer s.Close()
	for i := range rows {
		if _, _, err := s.Txn(ctx(t), nil, []kv.Op{{Key: prefix + rows[i].Key, Value: rows[i].Value()}}); err != nil {
			t.Fatal(err)
		}
	}
	return m
}

func exportOf(t *testing.T, n *testNode) *Export {
	t.Helper()
	data, err := n.Export(ctx(t))
	if err != nil {
		t.Fatal(err)
	}
	e, err := ReadExport(data)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// A cluster is exported, dies, and is restored: nodes keep their numbers, topics their identity; every partition begins
// an epoch above all that its logs can know, with all replicas that come back in its ISR, and the copies are compared.
func TestReviveACluster(t *testing.T) {
	w := newWorld(t, 3)
	topic := w.create(w.nodes[0], meta.Topic{Name: "t", Partitions: 4, Replicas: 3})
	if _, err := w.nodes[0].ConfigureTopic(ctx(t), topic.ID, meta.TopicSettings{QuotaBytes: 7}); err != nil {
		t.Fatal(err)
	}
	old := w.until(w.nodes[1], "the settings", func(s *meta.Snapshot) bool {
		return s.Topics[topic.ID] != nil && s.Topics[topic.ID].Settings.QuotaBytes == 7
	})
	e := exportOf(t, w.nodes[1])
	if later := exportOf(t, w.nodes[2]); e.Cluster != old.Cluster || later.Revision < e.Revision || e.Newer(later) {
		t.Fatalf("%+v, then %+v", e.Revision, later.Revision)
	}
	rows, err := e.Revive(map[string]uuid.UUID{
		w.nodes[0].reg.Node.Name: w.nodes[0].reg.Node.Store, w.nodes[2].reg.Node.Name: w.nodes[2].reg.Node.Store,
	})
	if err != nil {
		t.Fatal(err)
	}
	for i := range rows {
		if folder, _ := splitKey(rows[i].Key); folder == liveDir || folder == downDir || rows[i].Key == controllerKey {
			t.Errorf("%s survives", rows[i].Key)
		}
	}
	w2 := &world{t: t, m: seeded(t, DefaultPrefix, rows), opts: w.opts}
	for _, n := range w.nodes {
		w2.start(n.reg.Node.Name, n.reg.Node.Store)
	}
	s := w2.until(w2.nodes[0], "leaders", func(s *meta.Snapshot) bool {
		for _, p := range s.Partitions.All() {
			if !led(s, p) {
				return false
			}
		}
		return s.Partitions.Len() == 4
	})
	if s.Cluster != old.Cluster || len(s.Nodes) != 3 || s.Names["t"] == nil || s.Names["t"].ID != topic.ID ||
		s.Topics[topic.ID].Settings.QuotaBytes != 7 ||
		s.Topics[topic.ID].Settings.Version <= old.Topics[topic.ID].Settings.Version+1000 {
		t.Errorf("%s", describe(s))
	}
	for id, p := range s.Partitions.All() {
		was := old.Partitions.Get(id).State
		back := []replicate.Member{w.nodes[0].member(), w.nodes[2].member()}
		byNode := func(a, b replicate.Member) int { return int(a.Node) - int(b.Node) }
		slices.SortFunc(back, byNode)
		isr := slices.SortedFunc(slices.Values(p.State.ISR), byNode)
		if p.State.Epoch <= was.Epoch+1000 || p.State.Restored <= was.Epoch+1000 || p.State.Restored >= p.State.Epoch ||
			!slices.Equal(isr, back) || !slices.Equal(p.State.Replicas, was.Replicas) {
			t.Errorf("%v was %+v and is %+v", id, was, p.State)
		}
	}
	w2.close()
	w.close()
}

// If no replica of a partition comes back, the partition waits for them. Fields that this version does not know stay.
func TestReviveKeeps(t *testing.T) {
	node := func(id replicate.NodeID, name string) Row {
		return rowOf(nodeKey(nodesDir, id), encode(meta.Node{
			ID: id, Name: name, Store: uuid.UUID{byte(id)}, Logged: 7, UnknownTopics: 2, ClockDiffers: true,
		}))
	}
	id := meta.PartitionID{Topic: theTopic}
	e := &Export{
		Format: ExportFormat, Cluster: uuid.UUID{1}, Revision: 9, Generation: 2,
		Rows: []Row{
			{Key: "future", Text: "\xff"},
			node(1, "a"), node(2, "b"), node(3, "c"),
			{Key: partKey(partsDir, id), Text: `{"epoch":5,"version":1,"leader":1,"min_isr":1,"replicas":[1,2],` +
				`"later":{"x":1},"isr":[{"node":1,"store":"01000000-0000-0000-0000-000000000000","y":2}]}`},
			{Key: nodeKey(liveDir, 1), Text: "{}"},
		},
	}
	rows, err := e.Revive(map[string]uuid.UUID{"c": {9}})
	if err != nil {
		t.Fatal(err)
	}
	at := func(key string) string {
		i := slices.IndexFunc(rows, func(r Row) bool { return r.Key == key })
		if i < 0 {
			return ""
		}
		return string(rows[i].Value())
	}
	part := at(partKey(partsDir, id))
	for _, want := range []string{`"later":{"x":1}`, `"restored":1048581`, `"node":1`, `"node":2`} {
		if !strings.Contains(part, want) {
			t.Errorf("%s is not in %s", want, part)
		}
	}
	if n := at(nodeKey(nodesDir, 1)); !strings.Contains(n, `"name":"a"`) || strings.Contains(n, "logged") ||
		strings.Contains(n, "unknown") || strings.Contains(n, "clock") {
		t.Errorf("a node's row is %s: its directory comes back from another moment", n)
	}
	if n := at(nodeKey(nodesDir, 3)); !strings.Contains(n, `"store":"09000000-`) {
		t.Errorf("a node's row is %s: it comes back with another directory", n)
	}
	if at("future") != "\xff" || at(nodeKey(liveDir, 1)) != "" {
		t.Error("an unknown row is lost, or a live one stays")
	}
	if got := at(restoredKey); got != `{"generation":3,"revision":9,"nodes":["c"]}` {
		t.Errorf("restored: %s", got)
	}
	e.Rows = append(e.Rows, Row{Key: partsDir + "x", Text: "{}"})
	if _, err := e.Revive(nil); err == nil || !strings.Contains(err.Error(), partsDir+"x") {
		t.Errorf("a row that cannot be read: %v", err)
	}
	if _, err := ReadExport([]byte(`{"format":2}`)); err == nil {
		t.Error("another format is read")
	}
	if _, err := ExportOf(nil, DefaultPrefix, 1, time.Time{}); err == nil {
		t.Error("a store without a cluster is exported")
	}
}

// A node on whose directory nobody counted when the metadata were rebuilt does not start.
func TestCheckMark(t *testing.T) {
	row, err := json.Marshal(restoredRow{Generation: 2, Revision: 50, Nodes: []string{"a", "b"}})
	if err != nil {
		t.Fatal(err)
	}
	restored := []kv.Entry{{Key: "p/restored", Value: row}, {Key: "p/ids", Value: []byte("3")}}
	id := uuid.UUID{7}
	mark := func(generation uint64, revision int64) Mark { return Mark{id, generation, revision} }
	saw := func(generation uint64, revision int64) meta.Seen {
		return meta.Seen{Cluster: id, Generation: generation, Revision: revision}
	}
	for _, c := range []struct {
		name    string
		mark    Mark
		seen    meta.Seen
		entries []kv.Entry
		refused string
	}{
		{"c", mark(0, 99), meta.Seen{}, restored[1:], ""}, // the metadata were never rebuilt
		{"a", mark(1, 50), meta.Seen{}, restored, ""},     // its own metadata were taken
		{"a", mark(1, 20), meta.Seen{}, restored, ""},     // an older backup
		{"c", mark(2, 1), meta.Seen{}, restored, ""},      // of the rebuilt cluster
		{"c", mark(1, 20), meta.Seen{}, restored, "without the data directory of"},
		{"a", mark(1, 51), meta.Seen{}, restored, "metadata were rebuilt from"},
		{"a", mark(0, 20), meta.Seen{}, restored, "metadata were rebuilt from"}, // from before an earlier rebuild
		{"a", mark(1, 50), saw(1, 60), restored, ""},                            // it was named, and saw more
		{"a", mark(0, 20), saw(2, 1), restored, ""},                             // it has lived on since
		{"a", mark(0, 20), saw(1, 60), restored, ""},                            // so the old mark says nothing
		{"c", mark(0, 20), saw(1, 60), restored, "without the data directory of"},
		{"a", Mark{}, saw(1, 60), restored, ""},                              // named, never restored
		{"c", Mark{}, meta.Seen{}, restored, ""},                             // empty
		{"c", Mark{}, saw(1, 20), restored, "without the data directory of"}, // a survivor that nobody named
		{"c", Mark{}, saw(2, 20), restored, ""},                              // it joined later
		{"a", mark(1, 1), meta.Seen{}, []kv.Entry{{Key: "p/restored", Value: []byte("{")}}, "cannot be read"},
	} {
		err := CheckMark(c.mark, c.seen, c.name, c.entries, "p/")
		if (err == nil) != (c.refused == "") || err != nil && !strings.Contains(err.Error(), c.refused) {
			t.Errorf("%s %+v %+v: %v", c.name, c.mark, c.seen, err)
		}
	}
}
