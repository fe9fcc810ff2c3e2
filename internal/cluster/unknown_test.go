package cluster

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"

	"penstock/internal/cluster/kv"
	"penstock/internal/meta"
	"penstock/replicate"
)

// enrich puts fields of a newer version into a row, wherever a newer version could have put some.
func (n *testNode) enrich(t *testing.T, key string, edit func(string) string) {
	t.Helper()
	for range 100 {
		e, err := n.s.get(ctx(t), key)
		if err != nil || e.ModRevision == 0 {
			t.Fatalf("%s: %v, %v", key, e, err)
		}
		next := edit(string(e.Value))
		if next == string(e.Value) || !json.Valid([]byte(next)) {
			t.Fatalf("%s becomes %s", e.Value, next)
		}
		ok, _, err := n.s.kv.Txn(ctx(t), []kv.Cond{{Key: e.Key, ModRevision: e.ModRevision}}, []kv.Op{
			{Key: e.Key, Value: []byte(next)},
		})
		if err != nil {
			t.Fatal(err)
		}
		if ok {
			return
		}
	}
	t.Fatal("somebody else was always faster")
}

// kept fails unless a row has all of the texts.
func (n *testNode) kept(t *testing.T, key string, texts ...string) {
	t.Helper()
	e, err := n.s.get(ctx(t), key)
	if err != nil {
		t.Fatal(err)
	}
	for _, text := range texts {
		if !strings.Contains(string(e.Value), text) {
			t.Errorf("%s lacks %s: %s", key, text, e.Value)
		}
	}
}

func first(field string) func(string) string {
	return func(s string) string { return strings.Replace(s, "{", "{"+field+",", 1) }
}

// Every kind of row that is rewritten keeps the fields that a newer version has put into it.
func TestUnknownFieldsAreKept(t *testing.T) {
	w := newWorld(t, 3)
	a, b := w.nodes[0], w.nodes[1]
	topic, err := a.CreateTopic(ctx(t), meta.Topic{Name: "t", Partitions: 1, Replicas: 3})
	if err != nil {
		t.Fatal(err)
	}
	id := meta.PartitionID{Topic: topic.ID}
	part, row, node := partKey(partsDir, id), topicKey(topicsDir, topic.ID), nodeKey(nodesDir, b.node.ID)

	// A partition, and its members; a report and its end leave the other members as they were.
	a.enrich(t, part, func(s string) string {
		return first(`"newer":[1,{"x":2}]`)(strings.Replace(s, `{"node":1,`, `{"disk":"fine","node":1,`, 1))
	})
	third := replicate.Member{Node: 3, Store: w.nodes[2].node.Store}
	if err := a.ReportCopy(ctx(t), id, third, meta.CopyDamaged); err != nil {
		t.Fatal(err)
	}
	a.kept(t, part, `"newer":[1,{"x":2}]`, `"disk":"fine"`, `"damaged":[`)
	var st replicate.State
	w.until(b, "the report", func(s *meta.Snapshot) bool {
		row := s.Partitions.Get(id)
		if row == nil || len(row.Damaged) != 1 {
			return false
		}
		st = row.State
		return true
	})
	leader := w.nodes[st.Leader-1]
	want := st
	want.ISR = slices.DeleteFunc(slices.Clone(st.ISR), func(m replicate.Member) bool { return m.Node == 3 })
	if leader.node.ID != 3 {
		if _, err := leader.ChangeISR(ctx(t), id, &want); err != nil {
			t.Fatal(err)
		}
		a.kept(t, part, `"newer":[1,{"x":2}]`, `"disk":"fine"`)
	}

	// A topic and its settings.
	a.enrich(t, row, first(`"compaction":"on"`))
	if _, err := a.ConfigureTopic(ctx(t), topic.ID, meta.TopicSettings{RetentionBytes: 5}); err != nil {
		t.Fatal(err)
	}
	a.enrich(t, row, func(s string) string { return strings.Replace(s, `"settings":{`, `"settings":{"tier":"cold",`, 1) })
	if err := b.ExpandTopic(ctx(t), topic.ID, 2); err != nil {
		t.Fatal(err)
	}
	a.kept(t, row, `"compaction":"on"`, `"tier":"cold"`, `"partitions":2`)

	// A node: a change by an operator, and its level.
	a.enrich(t, node, first(`"zone":"north"`))
	if err := a.Drain(ctx(t), b.node.ID, true); err != nil {
		t.Fatal(err)
	}
	if err := b.Raised(ctx(t), 7); err != nil {
		t.Fatal(err)
	}
	a.kept(t, node, `"zone":"north"`, `"draining":true`, `"store_level":7`)
	if err := a.Drain(ctx(t), b.node.ID, false); err != nil {
		t.Fatal(err)
	}

	// A node of a version that says more in its own row.
	if err := a.ReportData(ctx(t), 5, 0, false); err != nil {
		t.Fatal(err)
	}
	self := nodeKey(nodesDir, a.node.ID)
	a.enrich(t, self, first(`"zone":"south"`))
	if err := a.ReportData(ctx(t), 6, 0, false); err != nil {
		t.Fatal(err)
	}
	a.kept(t, self, `"zone":"south"`, `"logged":6`)

	// A tombstone.
	stone := meta.TombstoneKey{Topic: "t", Node: b.node.ID}
	if err := a.Tombstone(ctx(t), stone, time.Now().Add(time.Hour)); err != nil {
		t.Fatal(err)
	}
	a.enrich(t, tombstoneKey(stone), first(`"why":"moved"`))
	w.until(a, "the tombstone", func(*meta.Snapshot) bool { return a.s.cur.Load().raw[tombstoneKey(stone)].rev != 0 })
	if err := a.Tombstone(ctx(t), stone, time.Now().Add(2*time.Hour)); err != nil {
		t.Fatal(err)
	}
	a.kept(t, tombstoneKey(stone), `"why":"moved"`)
}

// A change may be decided on a row that this node's watch has not brought yet: the fields of that row are kept, not
// those of an older one.
func TestUnknownFieldsOfANewerRow(t *testing.T) {
	w := newWorld(t, 1)
	a := w.nodes[0]
	topic, err := a.CreateTopic(ctx(t), meta.Topic{Name: "t", Partitions: 1, Replicas: 1})
	if err != nil {
		t.Fatal(err)
	}
	key, before := topicKey(topicsDir, topic.ID), a.s.cur.Load()
	a.enrich(t, key, first(`"compaction":"on"`))
	row, err := a.s.get(ctx(t), key)
	if err != nil {
		t.Fatal(err)
	}
	conds, ops := []kv.Cond{{Key: a.s.key(key), ModRevision: row.ModRevision}}, []kv.Op{put(a.s.key(key), topic)}
	if ops, err = a.s.keepUnknown(ctx(t), before, conds, ops); err != nil ||
		!strings.Contains(string(ops[0].Value), `"compaction":"on"`) {
		t.Errorf("it becomes %s, %v", ops[0].Value, err)
	}
}

func TestUnknownFieldsOfTheLevel(t *testing.T) {
	w := emptyWorld(t)
	a := w.levelled("a", 3, 2, 2)
	w.join(a)
	a.enrich(t, levelKey, first(`"since":"today"`))
	if err := a.RaiseLevel(ctx(t), 3); err != nil {
		t.Fatal(err)
	}
	a.kept(t, levelKey, `"since":"today"`)
	if err := a.Raised(ctx(t), 3); err != nil {
		t.Fatal(err)
	}
	w.level(a, 3, 3)
	a.kept(t, levelKey, `"since":"today"`, `"level":3`)
}

func TestMergeUnknown(t *testing.T) {
	for _, tc := range []struct{ old, known, next, want string }{
		{`{"a":1,"x":2}`, `{"a":1}`, `{"a":3}`, `{"a":3,"x":2}`},
		{`{"a":1,"gone":2}`, `{"a":1,"gone":2}`, `{"a":3}`, `{"a":3}`},
		{
			`{"l":[{"n":1,"x":5},{"n":2}]}`, `{"l":[{"n":1},{"n":2}]}`, `{"l":[{"n":2},{"n":1},{"n":3}]}`,
			`{"l":[{"n":2},{"n":1,"x":5},{"n":3}]}`,
		},
		{`{"l":[{"n":1,"x":5}]}`, `{"l":[{"n":1}]}`, `{"l":[]}`, `{"l":[]}`},
		{`{"big":12345678901234567890,"a":1}`, `{"a":1}`, `{"a":2}`, `{"a":2,"big":12345678901234567890}`},
		{`"x"`, `"x"`, `"y"`, `"y"`},
		{`null`, `null`, `{"a":1}`, `{"a":1}`},
	} {
		if got := string(mergeUnknown([]byte(tc.old), []byte(tc.known), []byte(tc.next))); got != tc.want {
			t.Errorf("%s, known %s, next %s: %s, want %s", tc.old, tc.known, tc.next, got, tc.want)
		}
	}
}

// The other kinds of rows that are rewritten. The controller ends a move at once, so the writer is asked instead.
func TestUnknownFieldsOfAMove(t *testing.T) {
	w := newWorld(t, 1)
	s := w.nodes[0].s
	key := partKey(movesDir, meta.PartitionID{Topic: theTopic})
	b := build(newState(), s.opts.Prefix, s.log)
	b.apply(&kv.Event{Entry: kv.Entry{Key: s.key(key), Value: []byte(`{"from":1,"to":2,"speed":"slow"}`), ModRevision: 5}})
	st, _ := b.finish(5)
	ops, err := s.keepUnknown(ctx(t), st, []kv.Cond{{Key: s.key(key), ModRevision: 5}}, []kv.Op{
		put(s.key(key), moveRow{From: 1, To: 2, Cancel: true}),
	})
	if err != nil || string(ops[0].Value) != `{"cancel":true,"from":1,"speed":"slow","to":2}` {
		t.Errorf("%s, %v", ops[0].Value, err)
	}
}
