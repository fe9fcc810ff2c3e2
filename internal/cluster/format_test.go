package cluster

import (
	"log/slog"
	"os"
	"reflect"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"penstock/internal/cluster/kv"
	"penstock/internal/meta"
	"penstock/replicate"
)

// FORMAT.md describes what is written: keys and values, byte for byte. Its examples have every field that a row can
// have, also those that are left out when they are empty.
func TestFormat(t *testing.T) {
	text, err := os.ReadFile("FORMAT.md")
	if err != nil {
		t.Fatal(err)
	}
	type row struct{ key, value string }
	documented := map[string]row{}
	for _, m := range regexp.MustCompile("(?m)^\\| (\\w+) \\| `([^`]*)` \\| `([^`]*)` \\|$").FindAllStringSubmatch(
		string(text), -1) {
		documented[m[1]] = row{m[2], m[3]}
	}
	topic, disk, boot, cluster := uuid.UUID{0x77}, uuid.UUID{0xdd}, uuid.UUID{0xbb}, uuid.UUID{0x55}
	id := meta.PartitionID{Topic: topic, Partition: 12}
	process := processRow{Node: 3, Boot: boot}
	partition := &meta.Partition{
		ID: id,
		State: replicate.State{
			Epoch: 5, Version: 9, Leader: 3, Boot: boot, MinISR: 2,
			Replicas: []replicate.NodeID{3, 1}, ISR: []replicate.Member{{Node: 3, Store: disk}}, Restored: 4,
			Short: []replicate.Member{{Node: 3, Store: disk}}, Forced: 5,
		},
		Damaged:   []replicate.Member{{Node: 1, Store: disk}},
		Contested: []replicate.Member{{Node: 1, Store: disk}},
		Transfer:  meta.Transfer{To: 1, Epoch: 5},
		Terms:     []meta.Term{{Epoch: 4, Node: 1}, {Epoch: 5, Node: 3}},
	}
	written := map[string]row{}
	add := func(name, key string, value []byte) { written[name] = row{key, string(value)} }
	add("cluster", clusterKey, encode(cluster))
	add("ids", lastIDKey, encode(replicate.NodeID(3)))
	add("nodes", nodeKey(nodesDir, 3), encode(meta.Node{
		ID: 3, Name: "n3", Store: disk, Boot: boot, Version: "1.0.0",
		Peer: "h:4154", Host: "h", NSQ: "h:4150", HTTP: "h:4151", HTTPS: "h:4152", Lookup: "h:4161", Native: "h:4250",
		Rack: "r1", Level: 2, StoreLevel: 1, Logged: 9, UnknownTopics: 2, ClockDiffers: true, SinceMs: 5, Disk: meta.DiskSlow,
	}))
	add("level", levelKey, encode(levelRow{Level: 1, Wanted: 2}))
	add("rebalance", rebalanceKey, encode(meta.Rebalance{
		Wanted: true, Paused: true, Nodes: []replicate.NodeID{1, 2}, Gone: 3,
	}))
	add("live", nodeKey(liveDir, 3), encode(process))
	add("controller", controllerKey, encode(process))
	add("down", nodeKey(downDir, 3), encode(process))
	add("topics", topicKey(topicsDir, topic), encode(meta.Topic{
		ID: topic, Name: "t", Partitions: 1, Replicas: 3, MinISR: 2, CreatedNs: 5, MadeBy: "shop",
		Settings: meta.TopicSettings{
			Version: 4, RetentionBytes: -1, KeepAgeMs: 60_000, KeepBytes: -1,
			QuotaCount: 1000, QuotaMode: meta.QuotaReject, MinISR: 2,
		},
	}))
	add("names", namesDir+"t", encode(topic))
	add("parts", partKey(partsDir, id), encodePartition(partition))
	add("creating", topicKey(creatingDir, topic), encode("t"))
	add("moves", partKey(movesDir, id), encode(moveRow{From: 1, To: 2, Drain: true, Cancel: true}))
	add("deleted", topicKey(deletedDir, topic), encode(deletedRow{Name: "t", AtNs: 5}))
	add("tombstones", tombstoneKey(meta.TombstoneKey{Topic: "t", Node: 3}), encode(tombstoneRow{UntilNs: 5}))
	add("proof", proofKey, encode(proofRow{[]string{"c0ffee"}}))
	add("restored", restoredKey, encode(restoredRow{Generation: 1, Revision: 812, Nodes: []string{"n1", "n3"}}))
	add("forced", partKey(forcedDir, id), encode(forcedRow{
		Epoch: 5, Node: 3, FormerISR: memberRows(partition.Damaged), AtNs: 5,
	}))
	for name, w := range written {
		if d := documented[name]; d != w {
			t.Errorf("%s\nwritten    %s = %s\ndocumented %s = %s", name, w.key, w.value, d.key, d.value)
		}
	}
	if len(documented) != len(written) {
		t.Errorf("%d rows are documented, %d are written", len(documented), len(written))
	}
	for name, row := range map[string]any{
		"nodes": meta.Node{}, "level": levelRow{}, "rebalance": meta.Rebalance{}, "live": processRow{},
		"topics": meta.Topic{}, "parts": partitionRow{}, "moves": moveRow{}, "deleted": deletedRow{},
		"tombstones": tombstoneRow{}, "forced": forcedRow{},
	} {
		for _, field := range fieldsOf(reflect.TypeOf(row)) {
			stored := name != "topics" || field != "durability" // see meta.TopicSettings.Stored
			if stored && !strings.Contains(documented[name].value, `"`+field+`":`) {
				t.Errorf("%s: the example lacks the field %s", name, field)
			}
		}
	}
	again, err := decodePartition(id, encodePartition(partition))
	if err != nil || string(encodePartition(again)) != string(encodePartition(partition)) {
		t.Errorf("%+v, %v", again, err)
	}
}

// fieldsOf lists the JSON names of a row's fields and of those within them.
func fieldsOf(t reflect.Type) (names []string) {
	switch {
	case t.Kind() == reflect.Slice || t.Kind() == reflect.Array:
		return fieldsOf(t.Elem())
	case t.Kind() != reflect.Struct:
		return nil
	}
	for i := range t.NumField() {
		name, _, _ := strings.Cut(t.Field(i).Tag.Get("json"), ",")
		names = append(append(names, name), fieldsOf(t.Field(i).Type)...)
	}
	return names
}

// Whatever rows a store has, reading them does not panic, and keeps everything that is readable.
func FuzzState(f *testing.F) {
	for _, key := range []string{
		clusterKey, lastIDKey, controllerKey, nodeKey(nodesDir, 3), nodeKey(liveDir, 3), nodeKey(downDir, 3),
		topicKey(topicsDir, theTopic),
		namesDir + "t", partKey(partsDir, meta.PartitionID{Topic: theTopic}),
		partKey(movesDir, meta.PartitionID{Topic: theTopic}),
		topicKey(creatingDir, theTopic), topicKey(deletedDir, theTopic), tombstoneKey(meta.TombstoneKey{Topic: "t", Node: 3}),
	} {
		f.Add(key, []byte(`{}`), false)
		f.Add(key, []byte(`"`), true)
	}
	f.Add("nodes/3", []byte(`{"id":4,"boot":"bb000000-0000-0000-0000-000000000000"}`), false)
	f.Add("topics/x/y", []byte(`{"partitions":-1}`), false)
	f.Fuzz(func(t *testing.T, key string, value []byte, deleted bool) {
		fuzzState(t, key, value, deleted)
	})
}

// fuzzState applies one more event to a sound state, and plans on the result.
func fuzzState(t *testing.T, key string, value []byte, deleted bool) {
	st := stateFrom(t, `
		node 1
		node 2 dead
		node 3
		part 0 lead 1 of 1 2 3 isr 1 2 3 min 2
		part 1 lead 2 of 2 3 1 isr 1 2 3 min 2
		topic 3 min 2
		move 1 2 1`)
	b := build(st, "/", slog.New(slog.DiscardHandler))
	e := &kv.Event{Entry: kv.Entry{Key: "/" + key, Value: value, ModRevision: 100}, Deleted: deleted}
	b.apply(e)
	next, change := b.finish(100)
	if change.Snapshot != next.snap || st.snap.Revision == 100 {
		t.Fatal("the wrong snapshot")
	}
	for id, p := range next.snap.Partitions.All() {
		if p.ID != id || !next.visible(id) {
			t.Fatalf("partition %v is shown as %v", p.ID, id)
		}
		PreferredLeader(next.snap, id)
	}
	commands, _ := plan(next, "/", time.Unix(0, 0), DefaultRebalanceMoves, view{})
	seen := map[meta.PartitionID]bool{}
	for i := range commands {
		c := &commands[i]
		if c.next == nil {
			continue
		}
		if seen[c.next.ID] {
			t.Fatalf("two commands for %v", c.next.ID)
		}
		seen[c.next.ID] = true
	}
}
