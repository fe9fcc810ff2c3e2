package cluster

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"penstock/internal/cluster/kv"
	"penstock/internal/meta"
)

const removes = "remove replicas that the topic does not want any more: "

var shrinkPlans = []planCase{
	{"the last one goes", `
		node 1
		node 2
		node 3
		part 0 lead 1 of 1 2 3 isr 1 2 3 min 2
		topic 2 min 2`, removes + `part 0 epoch 5 lead 1 of 1 2 isr 1 2 min 2`, 0},
	{"min_isr comes down before replicas go", `
		node 1
		node 2
		node 3
		part 0 lead 1 of 1 2 3 isr 1 2 3 min 2
		topic 1 min 1`, `towards the replicas that the topic wants: part 0 epoch 5 lead 1 of 1 2 3 isr 1 2 3 min 1`, 0},
	{"never the leader", `
		node 1
		node 2
		node 3
		part 0 lead 3 of 1 2 3 isr 1 2 3 min 1
		topic 1 min 1`, removes + `part 0 epoch 5 lead 3 of 3 isr 3 min 1`, 0},
	{"the preferred leader only if others cannot go", `
		node 1
		node 2
		node 3
		part 0 lead 3 of 1 2 3 isr 1 2 3 min 1
		topic 2 min 1`, removes + `part 0 epoch 5 lead 3 of 1 3 isr 1 3 min 1`, 0},
	{"one that is behind goes first", `
		node 1
		node 2
		node 3
		part 0 lead 1 of 1 2 3 isr 1 3 min 2
		topic 2 min 2`, removes + `part 0 epoch 5 lead 1 of 1 3 isr 1 3 min 2`, 0},
	{"nothing goes while one that stays is behind", `
		node 1
		node 2
		node 3
		part 0 lead 1 of 1 2 3 isr 1 min 1
		topic 2 min 1`, ``, 0},
	{"or dead, although the row still lists it in the ISR", `
		node 1
		node 2 dead
		node 3 dead
		part 0 lead 1 of 1 2 3 isr 1 2 3 min 1
		topic 2 min 1`, ``, 0},
	{"two that are dead go together", `
		node 1
		node 2 dead
		node 3 dead
		part 0 lead 1 of 1 2 3 isr 1 min 1
		topic 1 min 1`, removes + `part 0 epoch 5 lead 1 of 1 isr 1 min 1`, 0},
	{"one on a draining node, then one on a slow disk, then one on the node with the most", `
		node 1
		node 2 draining
		node 3 slow
		node 4
		part 0 lead 1 of 1 2 3 4 isr 1 2 3 4 min 2
		part 1 lead 1 of 1 3 4 isr 1 3 4 min 2
		topic 2 min 2`, removes + `part 0 epoch 5 lead 1 of 1 4 isr 1 4 min 2
		` + removes + `part 1 epoch 5 lead 1 of 1 4 isr 1 4 min 2`, 0},
	{"from the node that holds the most", `
		node 1
		node 2
		node 3
		part 0 lead 1 of 1 2 3 isr 1 2 3 min 2
		part 1 lead 2 of 2 1 isr 1 2 min 2
		topic 2 min 2`, removes + `part 0 epoch 5 lead 1 of 1 3 isr 1 3 min 2`, 0},
	{"from the rack that has another one, rather than from the node that holds the most", `
		node 1 rack=a
		node 2 rack=a
		node 3 rack=b
		part 0 lead 1 of 1 2 3 isr 1 2 3 min 2
		part 1 lead 3 of 3 1 isr 1 3 min 2
		topic 2 min 2`, removes + `part 0 epoch 5 lead 1 of 1 3 isr 1 3 min 2`, 0},
	{"a hand-over that was ordered comes first", `
		node 1
		node 2
		node 3
		part 0 lead 1 of 3 1 2 isr 1 2 3 min 1 transfer 3
		topic 1 min 1`, ``, 0},
	{"unless it cannot happen now", `
		node 1
		node 2
		node 3 slow
		part 0 lead 1 of 3 1 2 isr 1 2 3 min 1 transfer 3
		topic 1 min 1`, removes + `part 0 epoch 5 lead 1 of 1 isr 1 min 1 transfer 3 in 5`, 0},
	{"a move comes first", `
		node 1
		node 2
		node 3
		node 4 dead
		part 0 lead 1 of 1 2 3 isr 1 2 3 min 2
		topic 2 min 2
		move 0 3 4`, ``, 0},
	{"nobody leads", `
		node 1 dead
		node 2
		part 0 lead 1 of 1 2 isr 1 min 1
		topic 1 min 1`, ``, 1},
}

// A node whose disk hangs by its row, or has failed, gets no replica, since it could not catch up. One that has a
// replica and is not in sync is not waited for.
var hungPlans = []planCase{
	{"a slow disk gets a replica, one that hangs does not", `
		node 1
		node 2 hung
		node 3 failed
		node 4 slow
		part 0 lead 1 of 1 isr 1 min 1
		topic 2 min 1`, `towards the replicas that the topic wants: part 0 epoch 5 lead 1 of 1 4 isr 1 min 1`, 0},
	{"also if there is nobody else", `
		node 1
		node 2 hung
		part 0 lead 1 of 1 isr 1 min 1
		topic 2 min 1`, ``, 0},
	{"a drain waits, too", `
		node 1 draining
		node 2
		node 3 failed
		part 0 lead 2 of 2 1 isr 1 2 min 1
		topic 2 min 1`, ``, 0},
	{"one that hangs is not waited for", `
		node 1
		node 2 hung
		node 3
		part 0 lead 1 of 1 2 isr 1 min 1
		topic 3 min 1`, `towards the replicas that the topic wants: part 0 epoch 5 lead 1 of 1 2 3 isr 1 min 1`, 0},
}

// B90.
func TestPlansOfDisksThatHang(t *testing.T) { runPlans(t, hungPlans) }

// What a topic does not want any more goes only if nobody changes the topic, or begins to move the partition, in the
// same moment: the move would be of a replica that is gone.
func TestShrinkIsConditional(t *testing.T) {
	st := stateFrom(t, `
		node 1
		node 2
		part 0 lead 1 of 1 2 isr 1 2 min 1
		topic 1 min 1`)
	commands, _ := plan(st, "/", time.Unix(0, 0), 1, view{})
	if len(commands) != 1 || commands[0].why+": " != removes {
		t.Fatalf("planned are %+v", commands)
	}
	for _, cond := range []kv.Cond{
		{Key: "/" + topicKey(topicsDir, theTopic), ModRevision: st.topics[theTopic]},
		{Key: "/" + partKey(movesDir, meta.PartitionID{Topic: theTopic})},
	} {
		if !slices.Contains(commands[0].conds, cond) {
			t.Errorf("%+v is no condition of it: %+v", cond, commands[0].conds)
		}
	}
}

func TestPlanShrink(t *testing.T) { runPlans(t, shrinkPlans) }

// The number of replicas of a topic changes, min_isr follows, and what cannot be is refused in one sentence.
func TestSetReplicas(t *testing.T) {
	w := newWorld(t, 3)
	a, b := w.nodes[0], w.nodes[1]
	topic := w.create(a, meta.Topic{Name: "x", Partitions: 2, Replicas: 3})
	id := part(topic, 1)
	shape := func(what string, replicas, isr, least int) {
		t.Helper()
		w.until(a, what, func(s *meta.Snapshot) bool {
			st := &s.Partitions.Get(id).State
			return len(st.Replicas) == replicas && len(st.ISR) == isr && st.MinISR == least &&
				slices.Contains(st.Replicas, st.Leader)
		})
	}
	shape("three replicas", 3, 3, 2)
	leader := a.row(id).Leader
	now, err := b.SetReplicas(ctx(t), topic.ID, 1)
	if err != nil || now.Replicas != 1 || now.MinISR != 1 || now.Settings.Version != 0 {
		t.Fatalf("%+v, %v", now, err)
	}
	shape("one replica", 1, 1, 1)
	if a.row(id).Leader != leader {
		t.Error("the leader is another one: it was to stay")
	}
	if now, err = a.SetReplicas(ctx(t), topic.ID, 2); err != nil || now.MinISR != 2 {
		t.Fatalf("%+v, %v", now, err)
	}
	shape("a second one that is to catch up", 2, 1, 1)
	w.addToISR(id, w.byID(a.row(id).Replicas[1]))
	shape("min_isr, now that it has", 2, 2, 2)
	if now, err = a.SetReplicas(ctx(t), topic.ID, 2); err != nil || now.Replicas != 2 {
		t.Errorf("the number that it has: %+v, %v", now, err)
	}

	for _, c := range []struct {
		replicas int
		want     error
		says     string
	}{
		{4, meta.ErrTooFewNodes, "only 3 nodes"},
		{0, meta.ErrReplicas, "1 to 16, not 0"},
		{17, meta.ErrReplicas, "1 to 16, not 17"},
	} {
		_, err := b.SetReplicas(ctx(t), topic.ID, c.replicas)
		if !errors.Is(err, c.want) || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%d replicas: %v", c.replicas, err)
		}
	}
	if _, err := a.SetReplicas(ctx(t), uuid.New(), 1); !errors.Is(err, meta.ErrNotFound) {
		t.Errorf("a topic that is not there: %v", err)
	}
	if _, err := a.ConfigureTopic(ctx(t), topic.ID, meta.TopicSettings{MinISR: 2}); err != nil {
		t.Fatal(err)
	}
	if _, err := b.SetReplicas(ctx(t), topic.ID, 1); !errors.Is(err, meta.ErrReplicas) ||
		!strings.Contains(err.Error(), "lower min_isr first") {
		t.Errorf("fewer replicas than the min_isr that was asked for: %v", err)
	}
	if err := a.Drain(ctx(t), 3, true); err != nil {
		t.Fatal(err)
	}
	w.until(b, "the drain", func(s *meta.Snapshot) bool { return s.Nodes[3].Draining })
	if _, err := b.SetReplicas(ctx(t), topic.ID, 3); !errors.Is(err, meta.ErrTooFewNodes) {
		t.Errorf("a draining node was counted: %v", err)
	}
}

func TestWithReplicas(t *testing.T) {
	for _, c := range []struct {
		topic    meta.Topic
		replicas int
		want     int // min_isr; 0: refused
	}{
		{meta.Topic{Replicas: 3, MinISR: 2}, 5, 3},
		{meta.Topic{Replicas: 3, MinISR: 2}, 1, 1},
		{meta.Topic{Replicas: 3, MinISR: 1}, 5, 1}, // it was made so
		{meta.Topic{Replicas: 3, MinISR: 3}, 2, 0},
		{meta.Topic{Replicas: 3, MinISR: 2, Settings: meta.TopicSettings{Version: 1}}, 5, 3},
		{meta.Topic{Replicas: 3, MinISR: 2, Settings: meta.TopicSettings{Version: 1, MinISR: 2}}, 5, 2},
		{meta.Topic{Replicas: 3, MinISR: 2, Settings: meta.TopicSettings{Version: 1, MinISR: 2}}, 1, 0},
	} {
		got, err := c.topic.WithReplicas(c.replicas)
		switch {
		case c.want == 0 && !errors.Is(err, meta.ErrReplicas):
			t.Errorf("%+v with %d: %+v, %v", c.topic, c.replicas, got, err)
		case c.want != 0 && (err != nil || got.MinISR != c.want || got.Replicas != c.replicas):
			t.Errorf("%+v with %d: %+v, %v, want min_isr %d", c.topic, c.replicas, got, err, c.want)
		}
	}
}
