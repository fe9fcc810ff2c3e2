package cluster

import (
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"penstock/internal/cluster/kv"
	"penstock/internal/meta"
	"penstock/replicate"
)

// A state as text, one line for each row, so that the tables below are readable:
//
//	node 2 dead draining rack=a  also: lost (dead, and not waited for), apart (alive, and not reached by the controller),
//	                             down (reported), restarted (other boot), wiped
//	topic 3 min 2                replicas wanted
//	part 0 epoch 5 lead 1 of 1 2 3 isr 1 2 min 2 damaged 2 transfer 3
//	move 0 1 4 drain cancel
//	rebalance wanted paused gone 4
//
// Disks and processes are named after their node.

var theTopic = uuid.UUID{'t'}

func diskOf(n replicate.NodeID) uuid.UUID { return uuid.UUID{'d', byte(n)} }
func bootOf(n replicate.NodeID) uuid.UUID { return uuid.UUID{'b', byte(n)} }

type rows struct {
	t   *testing.T
	b   *builder
	rev int64
}

func (r *rows) put(key string, row any) {
	r.rev++
	r.b.apply(&kv.Event{Entry: kv.Entry{Key: "/" + key, Value: encode(row), ModRevision: r.rev}})
}

func stateFrom(t *testing.T, text string) *state {
	t.Helper()
	r := &rows{t: t, b: build(newState(), "/", slog.Default())}
	parts := uint32(0)
	for line := range strings.Lines(text) {
		words := strings.Fields(line)
		if len(words) == 0 {
			continue
		}
		switch words[0] {
		case "node":
			r.node(words[1:])
		case "part":
			id, p := partFrom(t, words[1:])
			parts = max(parts, id+1)
			r.put(partKey(partsDir, p.ID), partitionRow{
				Epoch: p.State.Epoch, Version: p.State.Version, Leader: p.State.Leader, Boot: p.State.Boot, MinISR: p.State.MinISR,
				Replicas: p.State.Replicas, ISR: memberRows(p.State.ISR), Damaged: memberRows(p.Damaged), Transfer: p.Transfer,
				Short: memberRows(p.State.Short),
			})
		case "move":
			n := numbers(t, words[1:4])
			m := moveRow{From: n[1], To: n[2], Cancel: slices.Contains(words, "cancel"), Drain: slices.Contains(words, "drain")}
			r.put(partKey(movesDir, meta.PartitionID{Topic: theTopic, Partition: uint32(n[0])}), m)
		case "rebalance":
			row := meta.Rebalance{Wanted: slices.Contains(words, "wanted"), Paused: slices.Contains(words, "paused")}
			if i := slices.Index(words, "gone"); i > 0 {
				row.Gone = numbers(t, words[i+1:])[0]
			}
			r.put(rebalanceKey, row)
		case "topic":
			n := numbers(t, []string{words[1], words[3]})
			r.put(topicKey(topicsDir, theTopic), meta.Topic{
				ID: theTopic, Name: "t", Partitions: int(max(1, parts)), Replicas: int(n[0]), MinISR: int(n[1]),
			})
		default:
			t.Fatalf("what is %q?", line)
		}
	}
	st, _ := r.b.finish(r.rev)
	return st
}

func (r *rows) node(words []string) {
	id := numbers(r.t, words[:1])[0]
	is := func(w string) bool { return slices.Contains(words, w) }
	n := meta.Node{ID: id, Name: "n" + words[0], Store: diskOf(id), Boot: bootOf(id), Draining: is("draining")}
	n.ClockDiffers = is("clock")
	for _, w := range words {
		if rack, ok := strings.CutPrefix(w, "rack="); ok {
			n.Rack = rack
		}
	}
	for _, disk := range []meta.DiskState{meta.DiskSlow, meta.DiskHung, meta.DiskFailed} {
		if is(string(disk)) {
			n.Disk = disk
		}
	}
	if is("restarted") || is("wiped") {
		n.Boot[2] = 1
	}
	if is("wiped") {
		n.Store[2] = 1
	}
	r.put(nodeKey(nodesDir, id), n)
	if !is("dead") && !is("lost") {
		r.put(nodeKey(liveDir, id), processRow{Node: id, Boot: n.Boot})
	}
	if is("down") {
		r.put(nodeKey(downDir, id), processRow{Node: id, Boot: bootOf(id)})
	}
}

// viewIn returns the nodes that a state's text calls lost, and apart.
func viewIn(t *testing.T, text string) view {
	t.Helper()
	sees := view{lost: map[replicate.NodeID]bool{}, apart: map[replicate.NodeID]bool{}}
	for line := range strings.Lines(text) {
		words := strings.Fields(line)
		for word, nodes := range map[string]map[replicate.NodeID]bool{"lost": sees.lost, "apart": sees.apart} {
			if len(words) > 2 && words[0] == "node" && slices.Contains(words, word) {
				nodes[numbers(t, words[1:2])[0]] = true
			}
		}
	}
	return sees
}

func numbers(t *testing.T, words []string) []replicate.NodeID {
	t.Helper()
	var ns []replicate.NodeID
	for _, w := range words {
		n, err := strconv.Atoi(w)
		if err != nil {
			t.Fatal(err)
		}
		ns = append(ns, replicate.NodeID(n))
	}
	return ns
}

func partFrom(t *testing.T, words []string) (uint32, *meta.Partition) {
	t.Helper()
	id := uint32(numbers(t, words[:1])[0])
	fields := map[string][]replicate.NodeID{}
	name := ""
	for _, w := range words[1:] {
		if w[0] >= 'a' {
			name = w
			continue
		}
		fields[name] = append(fields[name], numbers(t, []string{w})...)
	}
	one := func(name string) replicate.NodeID { return append(fields[name], 0)[0] }
	p := &meta.Partition{ID: meta.PartitionID{Topic: theTopic, Partition: id}}
	p.State = replicate.State{
		Epoch: 5, Version: 9, Leader: one("lead"), Boot: bootOf(one("lead")), MinISR: int(one("min")), Replicas: fields["of"],
	}
	for _, n := range fields["isr"] {
		p.State.ISR = append(p.State.ISR, replicate.Member{Node: n, Store: diskOf(n)})
	}
	for _, n := range fields["damaged"] {
		p.Damaged = append(p.Damaged, replicate.Member{Node: n, Store: diskOf(n)})
	}
	for _, n := range fields["short"] {
		p.State.Short = append(p.State.Short, replicate.Member{Node: n, Store: diskOf(n)})
	}
	if to := one("transfer"); to != 0 {
		p.Transfer = meta.Transfer{To: to, Epoch: p.State.Epoch}
	}
	return id, p
}

func commandText(c *command) string {
	var b strings.Builder
	b.WriteString(c.why)
	if p := c.next; p != nil {
		fmt.Fprintf(&b, ": part %d epoch %d lead %d of", p.ID.Partition, p.State.Epoch, p.State.Leader)
		for _, n := range p.State.Replicas {
			fmt.Fprintf(&b, " %d", n)
		}
		b.WriteString(" isr")
		for _, m := range p.State.ISR {
			fmt.Fprintf(&b, " %d", m.Node)
		}
		fmt.Fprintf(&b, " min %d", p.State.MinISR)
		if len(p.Damaged) > 0 {
			fmt.Fprintf(&b, " damaged %d", p.Damaged[0].Node)
		}
		if p.Transfer.To != 0 {
			fmt.Fprintf(&b, " transfer %d in %d", p.Transfer.To, p.Transfer.Epoch)
		}
	}
	for _, op := range c.puts {
		fmt.Fprintf(&b, " put %s %s", strings.ReplaceAll(op.Key, theTopic.String(), "t"), op.Value)
	}
	for _, d := range c.drops {
		fmt.Fprintf(&b, " drop %s", strings.ReplaceAll(d.Key, theTopic.String(), "t"))
	}
	return b.String()
}

// lines trims a table's text.
func lines(text string) string {
	var out []string
	for l := range strings.Lines(text) {
		if l = strings.TrimSpace(l); l != "" {
			out = append(out, l)
		}
	}
	return strings.Join(out, "\n")
}

type planCase struct {
	name  string
	state string
	want  string
	stuck int
}

func runPlans(t *testing.T, cases []planCase) {
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			commands, stuck := plan(stateFrom(t, c.state), "/", time.Unix(0, 0), DefaultRebalanceMoves,
				viewIn(t, c.state))
			var got []string
			for i := range commands {
				got = append(got, commandText(&commands[i]))
			}
			if text := strings.Join(got, "\n"); text != lines(c.want) || len(stuck) != c.stuck {
				t.Errorf("%d stuck, want %d; planned\n%s\nwant\n%s", len(stuck), c.stuck, text, lines(c.want))
			}
			for i := range commands {
				if p := commands[i].next; p != nil && p.State.Version != 10 {
					t.Errorf("version %d follows 9", p.State.Version)
				}
			}
		})
	}
}

var electionPlans = []planCase{
	{"nothing to do", `
		node 1
		node 2
		part 0 lead 1 of 1 2 isr 1 2 min 2
		topic 2 min 2`, ``, 0},
	{"the leader's lease ran out", `
		node 1 dead
		node 2
		node 3
		part 0 lead 1 of 1 2 3 isr 1 2 3 min 2
		topic 3 min 2`, `elect: part 0 epoch 6 lead 2 of 1 2 3 isr 1 2 3 min 2`, 0},
	{"only who is in the ISR", `
		node 1 dead
		node 2
		node 3
		part 0 lead 1 of 1 2 3 isr 1 3 min 2
		topic 3 min 2`, `elect: part 0 epoch 6 lead 3 of 1 2 3 isr 1 3 min 2`, 0},
	{"nobody of the ISR lives: never unclean", `
		node 1 dead
		node 2
		part 0 lead 1 of 1 2 isr 1 min 1
		topic 2 min 1`, ``, 1},
	{"the only other one is damaged", `
		node 1 dead
		node 2
		part 0 lead 1 of 1 2 isr 1 2 min 2 damaged 2
		topic 2 min 2`, ``, 1},
	{"the only other one forgot what it had acknowledged", `
		node 1 dead
		node 2
		node 3
		part 0 lead 1 of 1 2 isr 1 2 min 2 short 2
		part 1 lead 1 of 1 2 3 isr 1 2 3 min 3 short 2
		topic 2 min 2`, `elect: part 1 epoch 6 lead 3 of 1 2 3 isr 1 2 3 min 3`, 1},
	{"the only other one has another disk", `
		node 1 dead
		node 2 wiped
		part 0 lead 1 of 1 2 isr 1 2 min 2
		topic 2 min 2`, ``, 1},
	{"reported down: its lease is not waited for", `
		node 1 down
		node 2
		part 0 lead 1 of 1 2 isr 1 2 min 2
		topic 2 min 2`, `elect: part 0 epoch 6 lead 2 of 1 2 isr 1 2 min 2`, 0},
	{"a report about a former process", `
		node 1 down restarted
		node 2
		topic 2 min 2`, `end the report of a lost process drop /down/0000000001`, 0},
	{"the leader restarted: another epoch (P3), another leader", `
		node 1 restarted
		node 2
		part 0 lead 1 of 1 2 isr 1 2 min 2
		part 1 lead 2 of 1 2 isr 1 2 min 2
		topic 2 min 2`, `elect: part 0 epoch 6 lead 1 of 1 2 isr 1 2 min 2`, 0},
	{"the only replica restarted: the same node, another epoch", `
		node 1 restarted
		part 0 lead 1 of 1 isr 1 min 1
		topic 1 min 1`, `elect: part 0 epoch 6 lead 1 of 1 isr 1 min 1`, 0},
	{"the only replica was wiped", `
		node 1 wiped
		part 0 lead 1 of 1 isr 1 min 1
		topic 1 min 1`, ``, 1},
	{"a damaged leader gives way", `
		node 1
		node 2
		part 0 lead 1 of 1 2 isr 1 2 min 2 damaged 1
		topic 2 min 2`, `elect: part 0 epoch 6 lead 2 of 1 2 isr 1 2 min 2 damaged 1`, 0},
	{"whose disk is good first, then slow ones", `
		node 1 dead
		node 2 hung
		node 3 slow
		node 4
		part 0 lead 1 of 1 2 3 4 isr 1 2 3 4 min 2
		part 1 lead 1 of 1 2 3 isr 1 2 3 min 2
		part 2 lead 1 of 1 2 isr 1 2 min 2
		topic 3 min 2`, `
		elect: part 0 epoch 6 lead 4 of 1 2 3 4 isr 1 2 3 4 min 2
		elect: part 1 epoch 6 lead 3 of 1 2 3 isr 1 2 3 min 2
		elect: part 2 epoch 6 lead 2 of 1 2 isr 1 2 min 2`, 0},
	{"rather a slow disk than a node that drains and would hand over at once, rather both than one that hangs", `
		node 1 dead
		node 2 draining
		node 3 slow
		node 4 hung
		part 0 lead 1 of 1 2 3 4 isr 1 2 3 4 min 2
		part 1 lead 1 of 1 2 4 isr 1 2 4 min 2
		topic 4 min 2`, `
		elect: part 0 epoch 6 lead 3 of 1 2 3 4 isr 1 2 3 4 min 2
		elect: part 1 epoch 6 lead 2 of 1 2 4 isr 1 2 4 min 2`, 0},
	{"a clock that differs counts like a slow disk", `
		node 1 dead
		node 2 clock
		node 3
		node 4 hung
		part 0 lead 1 of 1 2 3 4 isr 1 2 3 4 min 2
		part 1 lead 1 of 1 2 4 isr 1 2 4 min 2
		topic 4 min 2`, `
		elect: part 0 epoch 6 lead 3 of 1 2 3 4 isr 1 2 3 4 min 2
		elect: part 1 epoch 6 lead 2 of 1 2 4 isr 1 2 4 min 2`, 0},
	{"who leads least, then the order of replicas", `
		node 1 dead
		node 2
		node 3
		part 0 lead 1 of 1 2 3 isr 1 2 3 min 2
		part 1 lead 1 of 1 2 3 isr 1 2 3 min 2
		part 2 lead 1 of 1 3 2 isr 1 2 3 min 2
		part 3 lead 2 of 1 2 3 isr 1 2 3 min 2
		topic 3 min 2`, `
		elect: part 0 epoch 6 lead 3 of 1 2 3 isr 1 2 3 min 2
		elect: part 1 epoch 6 lead 2 of 1 2 3 isr 1 2 3 min 2
		elect: part 2 epoch 6 lead 3 of 1 3 2 isr 1 2 3 min 2`, 0},
	{"rather one that is not draining", `
		node 1 dead
		node 2 draining
		node 3
		part 0 lead 1 of 1 2 3 isr 1 2 3 min 2
		part 1 lead 3 of 1 2 3 isr 1 2 3 min 2
		topic 3 min 2`, `elect: part 0 epoch 6 lead 3 of 1 2 3 isr 1 2 3 min 2`, 0},
	{"the lost process's row goes when its partitions have leaders", `
		node 1 down
		node 2
		part 0 lead 2 of 1 2 isr 1 2 min 2
		part 1 lead 1 of 1 isr 1 min 1
		topic 2 min 2`, `end the report of a lost process drop /down/0000000001 drop /live/0000000001`, 1},
}

// B79, B81, B82, P11.
func TestPlanElections(t *testing.T) { runPlans(t, electionPlans) }

var replicaPlans = []planCase{
	{"a wiped member leaves the ISR", `
		node 1
		node 2
		node 3 wiped
		part 0 lead 1 of 1 2 3 isr 1 2 3 min 2 damaged 3
		topic 3 min 2`, `remove a disk that is gone: part 0 epoch 5 lead 1 of 1 2 3 isr 1 2 min 2`, 0},
	{"but not below min_isr: nothing would be won", `
		node 1
		node 2 wiped
		part 0 lead 1 of 1 2 isr 1 2 min 2
		topic 2 min 2`, ``, 0},
	{"a move begins: the new replica in the old one's place, the old one at the end", `
		node 1
		node 2
		node 3
		part 0 lead 2 of 1 2 isr 1 2 min 2
		topic 2 min 2
		move 0 1 3`, `add the replica that comes: part 0 epoch 5 lead 2 of 3 2 1 isr 1 2 min 2`, 0},
	{"it waits until the new one is in sync", `
		node 1
		node 2
		node 3
		part 0 lead 2 of 3 2 1 isr 1 2 min 2
		topic 2 min 2
		move 0 1 3`, ``, 0},
	{"and until the leader that goes has handed over", `
		node 1
		node 2
		node 3
		part 0 lead 1 of 3 2 1 isr 1 2 3 min 2
		topic 2 min 2
		move 0 1 3`, ``, 0},
	{"then the old one goes", `
		node 1
		node 2
		node 3
		part 0 lead 2 of 3 2 1 isr 1 2 3 min 2
		topic 2 min 2
		move 0 1 3`, `remove the replica that goes: part 0 epoch 5 lead 2 of 3 2 isr 2 3 min 2 drop /moves/t/000000`, 0},
	{"a dead replica goes too", `
		node 1 dead
		node 2
		node 3
		part 0 lead 2 of 3 2 1 isr 2 3 min 2
		topic 2 min 2
		move 0 1 3`, `remove the replica that goes: part 0 epoch 5 lead 2 of 3 2 isr 2 3 min 2 drop /moves/t/000000`, 0},
	{"the new one died while it caught up: it is waited for", `
		node 1
		node 2
		node 3 dead
		part 0 lead 2 of 3 2 1 isr 1 2 min 2
		topic 2 min 2
		move 0 1 3`, ``, 0},
	{"the new one died in the ISR: the old one stays", `
		node 1
		node 2
		node 3 dead
		part 0 lead 2 of 3 2 1 isr 1 2 3 min 2
		topic 2 min 2
		move 0 1 3`, ``, 0},
	{"a cancelled move is undone, in the old order", `
		node 1
		node 2
		node 3
		part 0 lead 2 of 3 2 1 isr 1 2 3 min 2
		topic 2 min 2
		move 0 1 3 cancel`, `undo a move: part 0 epoch 5 lead 2 of 1 2 isr 1 2 min 2 drop /moves/t/000000`, 0},
	{"the old one stays while too few others are whole: the damaged one is repaired from it, too", `
		node 1
		node 2
		node 3
		part 0 lead 3 of 3 2 1 isr 1 2 3 min 2 damaged 2
		topic 2 min 2
		move 0 1 3`, ``, 0},
	{
		"enough others are whole", `
		node 1
		node 2
		node 3
		node 4
		part 0 lead 3 of 3 2 4 1 isr 1 2 3 4 min 2 damaged 2
		topic 3 min 2
		move 0 1 3`,
		`remove the replica that goes: part 0 epoch 5 lead 3 of 3 2 4 isr 2 3 4 min 2 damaged 2 drop /moves/t/000000`, 0,
	},
	{"the damaged one itself goes", `
		node 1
		node 2
		node 3
		part 0 lead 2 of 3 2 1 isr 1 2 3 min 2 damaged 1
		topic 2 min 2
		move 0 1 3`, `remove the replica that goes: part 0 epoch 5 lead 2 of 3 2 isr 2 3 min 2 drop /moves/t/000000`, 0},
	{"a move that would leave too few whole ones is not undone yet", `
		node 1
		node 2
		node 3
		part 0 lead 2 of 3 2 1 isr 1 2 3 min 2 damaged 1
		topic 2 min 2
		move 0 1 3 cancel`, ``, 0},
	{"one that has not begun is forgotten", `
		node 1
		node 2
		node 3
		part 0 lead 2 of 1 2 isr 1 2 min 2
		topic 2 min 2
		move 0 1 3 cancel`, `a move is over drop /moves/t/000000`, 0},
	{
		"one whose new replica leads is completed", `
		node 1
		node 2
		node 3
		part 0 lead 3 of 3 2 1 isr 1 2 3 min 2
		topic 2 min 2
		move 0 1 3 cancel`, `remove the replica that goes: part 0 epoch 5 lead 3 of 3 2 isr 2 3 min 2 drop /moves/t/000000`,
		0,
	},
	{"one that cannot be undone waits", `
		node 1
		node 2
		node 3
		part 0 lead 2 of 3 2 1 isr 2 3 min 2
		topic 2 min 2
		move 0 1 3 cancel`, ``, 0},
	{"of a drained node each replica moves, to who holds fewest", `
		node 1 draining
		node 2
		node 3
		node 4
		part 0 lead 2 of 1 2 isr 1 2 min 2
		part 1 lead 2 of 2 1 isr 1 2 min 2
		part 2 lead 3 of 3 2 isr 2 3 min 2
		topic 2 min 2`, `
		move away from a draining node put /moves/t/000000 {"from":1,"to":4,"drain":true}
		move away from a draining node put /moves/t/000001 {"from":1,"to":3,"drain":true}`, 0},
	{"where nobody can take it, it stays", `
		node 1 draining
		node 2
		node 3 dead
		part 0 lead 2 of 1 2 isr 1 2 min 2
		topic 2 min 2`, ``, 0},
	{"a move to a node that drains by now is forgotten before it begins", `
		node 1
		node 2
		node 3 draining
		part 0 lead 2 of 1 2 isr 1 2 min 2
		topic 2 min 2
		move 0 1 3`, `a move is over drop /moves/t/000000`, 0},
	{"an imported topic grows by one replica at a time", `
		node 1
		node 2
		node 3
		part 0 lead 1 of 1 isr 1 min 1
		topic 3 min 2`, `towards the replicas that the topic wants: part 0 epoch 5 lead 1 of 1 2 isr 1 min 1`, 0},
	{"a dead one is not waited for", `
		node 1
		node 2 dead
		node 3
		part 0 lead 1 of 1 2 isr 1 min 1
		topic 3 min 2`, `towards the replicas that the topic wants: part 0 epoch 5 lead 1 of 1 2 3 isr 1 min 1`, 0},
	{"not before the last one has caught up", `
		node 1
		node 2
		node 3
		part 0 lead 1 of 1 2 isr 1 min 1
		topic 3 min 2`, ``, 0},
	{"and demands min_isr when so many are in sync", `
		node 1
		node 2
		node 3
		part 0 lead 1 of 1 2 isr 1 2 min 1
		topic 3 min 2`, `towards the replicas that the topic wants: part 0 epoch 5 lead 1 of 1 2 3 isr 1 2 min 2`, 0},
}

// P10, B89, B90, P23.
func TestPlanReplicas(t *testing.T) { runPlans(t, replicaPlans) }

// B85: rows that belong to no topic and to no creation are removed.
func TestPlanGarbage(t *testing.T) {
	now := time.Unix(1000, 0)
	other := uuid.UUID{'o'}
	r := &rows{t: t, b: build(newState(), "/", slog.Default())}
	r.put(partKey(partsDir, meta.PartitionID{Topic: other}), partitionRow{})
	r.put(partKey(partsDir, meta.PartitionID{Topic: theTopic, Partition: 1}), partitionRow{})
	r.put(topicKey(creatingDir, theTopic), "t")
	r.put(partKey(forcedDir, meta.PartitionID{Topic: other}), forcedRow{})
	r.put(partKey(movesDir, meta.PartitionID{Topic: other}), moveRow{From: 1, To: 2})
	r.put(tombstoneKey(meta.TombstoneKey{Topic: "a", Node: 1}), tombstoneRow{
		UntilNs: now.Add(-tombstoneKeepAfter - 1).UnixNano(),
	})
	r.put(tombstoneKey(meta.TombstoneKey{Topic: "a", Node: 2}), tombstoneRow{UntilNs: now.UnixNano()})
	oldest := uuid.New()
	r.put(topicKey(deletedDir, oldest), deletedRow{})
	for range MaxDeletedCount {
		r.put(topicKey(deletedDir, uuid.New()), deletedRow{})
	}
	st, _ := r.b.finish(r.rev)
	commands, _ := plan(st, "/", now, DefaultRebalanceMoves, view{})
	var got []string
	for i := range commands {
		got = append(got, commandText(&commands[i]))
	}
	want := []string{
		"forget the move of a deleted partition drop /moves/" + other.String() + "/000000",
		"remove a partition that no topic has drop /parts/" + other.String() + "/000000",
		"forget a forced leader of a deleted topic drop /forced/" + other.String() + "/000000",
		"end a tombstone drop /tombstones/a/0000000001",
		"forget an old deletion drop /deleted/" + oldest.String(),
	}
	if !slices.Equal(got, want) {
		t.Errorf("planned\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}
