package cluster

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"penstock/replicate"
)

const cancels = "cancel a move that cannot end put /moves/t/000000 "

var movePlans = []planCase{
	{"the target of an operator died: it is waited for", `
		node 1
		node 2
		node 3 dead
		part 0 lead 2 of 3 2 1 isr 1 2 min 2
		topic 2 min 2
		move 0 1 3`, ``, 0},
	{"that of a drain, too, although another node could take the replica", `
		node 1 draining
		node 2
		node 3 dead
		node 4
		part 0 lead 2 of 3 2 1 isr 1 2 min 2
		topic 2 min 2
		move 0 1 3 drain`, ``, 0},
	{"but not for ever", `
		node 1
		node 2
		node 3 lost
		part 0 lead 2 of 3 2 1 isr 1 2 min 2
		topic 2 min 2
		move 0 1 3`, cancels + `{"from":1,"to":3,"cancel":true}`, 0},
	{"whoever began it, and although no other node can take the replica", `
		node 1 draining
		node 2
		node 3 lost
		part 0 lead 2 of 3 2 1 isr 1 2 3 min 2
		topic 2 min 2
		move 0 1 3 drain`, cancels + `{"from":1,"to":3,"drain":true,"cancel":true}`, 0},
	{"without its target it is undone, also if the row still calls that in sync", `
		node 1
		node 2
		node 3 lost
		part 0 lead 2 of 3 2 1 isr 1 2 3 min 2
		topic 2 min 2
		move 0 1 3 cancel`, `undo a move: part 0 epoch 5 lead 2 of 1 2 isr 1 2 min 2 drop /moves/t/000000`, 0},
	{"a target that died before the move began is waited for", `
		node 1
		node 2
		node 3 dead
		part 0 lead 2 of 1 2 isr 1 2 min 2
		topic 2 min 2
		move 0 1 3`, ``, 0},
	{"and forgotten when it is lost", `
		node 1
		node 2
		node 3 lost
		part 0 lead 2 of 1 2 isr 1 2 min 2
		topic 2 min 2
		move 0 1 3`, `a move is over drop /moves/t/000000`, 0},
	{"a target that is to be emptied gets nothing more", `
		node 1
		node 2
		node 3 draining
		part 0 lead 2 of 3 2 1 isr 1 2 min 2
		topic 2 min 2
		move 0 1 3`, cancels + `{"from":1,"to":3,"cancel":true}`, 0},
	{"whether it lives or not", `
		node 1
		node 2
		node 3 dead draining
		part 0 lead 2 of 3 2 1 isr 1 2 min 2
		topic 2 min 2
		move 0 1 3`, cancels + `{"from":1,"to":3,"cancel":true}`, 0},
	{"what it has already is not thrown away", `
		node 1 dead
		node 2
		node 3 draining
		part 0 lead 2 of 3 2 1 isr 2 3 min 2
		topic 2 min 2
		move 0 1 3`, `remove the replica that goes: part 0 epoch 5 lead 2 of 3 2 isr 2 3 min 2 drop /moves/t/000000`, 0},
	{"unless the leader would have to hand over to it", `
		node 1
		node 3 draining
		part 0 lead 1 of 3 1 isr 1 3 min 1
		topic 1 min 1
		move 0 1 3`, cancels + `{"from":1,"to":3,"cancel":true}`, 0},
	{"a replica that is needed stays, and one that is dead is waited for", `
		node 1
		node 2
		node 3
		node 4 dead
		part 0 lead 3 of 3 4 1 isr 1 3 min 2
		topic 2 min 2
		move 0 1 3`, ``, 0},
	{"when that is lost, it goes instead", `
		node 1
		node 2
		node 3
		node 4 lost
		part 0 lead 3 of 3 4 1 isr 1 3 min 2
		topic 2 min 2
		move 0 1 3`, `remove a lost replica instead of the one that was to go: part 0 epoch 5 lead 3 of 3 1 isr 1 3 min 2 ` +
		`drop /moves/t/000000`, 0},
	{"so does the old one, if the move cannot be undone without it", `
		node 1 lost
		node 2
		node 3
		part 0 lead 2 of 3 2 1 isr 2 3 min 2
		topic 2 min 2
		move 0 1 3 cancel`, `remove a lost replica instead of the one that was to go: part 0 epoch 5 lead 2 of 3 2 ` +
		`isr 2 3 min 2 drop /moves/t/000000`, 0},
	{"what cannot be undone yet is cancelled once", `
		node 1 dead
		node 2
		node 3 lost
		part 0 lead 2 of 3 2 1 isr 2 3 min 2
		topic 2 min 2
		move 0 1 3 cancel`, ``, 0},
}

func TestPlanMoves(t *testing.T) { runPlans(t, movePlans) }

// No partition with the most replicas that there can be begins a move: it could not get another one before one goes.
func TestNoMoveOfFullPartition(t *testing.T) {
	var text, all strings.Builder
	for i := 1; i <= replicate.MaxReplicaCount+1; i++ {
		fmt.Fprintf(&text, "node %d\n", i)
		if i <= replicate.MaxReplicaCount {
			fmt.Fprintf(&all, " %d", i)
		}
	}
	state := strings.Replace(text.String(), "node 1\n", "node 1 draining\n", 1) +
		fmt.Sprintf("part 0 lead 2 of%s isr%s min 2\ntopic 16 min 2\n", all.String(), all.String())
	for _, move := range []string{"", "move 0 1 17 drain"} {
		commands, _ := plan(stateFrom(t, state+move), "/", time.Unix(0, 0), 1, view{})
		var got []string
		for i := range commands {
			got = append(got, commandText(&commands[i]))
		}
		want := []string{"a move is over drop /moves/t/000000"}[:len(move)/len("move 0 1 17 drain")]
		if !slices.Equal(got, want) {
			t.Errorf("with %q planned are %q, want %q", move, got, want)
		}
	}
}

// Partitions at which nothing is copied take no place from those that a drain or a rebalance could copy.
func TestOnlyWhatIsCopiedCounts(t *testing.T) {
	const nodes = "node 1 draining\nnode 2\nnode 3 dead\nnode 4\n"
	for _, c := range []struct {
		name, part, move string
		copied           bool
	}{
		{"the target is dead", "lead 2 of 3 2 4 isr 2 4 min 2", "4 3", false},
		{"the target is dead, and the move has not begun", "lead 2 of 2 4 isr 2 4 min 2", "4 3", false},
		{"the old replica has to hand over, and nobody can take over", "lead 4 of 1 4 isr 1 4 min 1", "4 1", false},
		{"the old replica hands over", "lead 2 of 4 2 isr 2 4 min 1", "2 4", true},
		{"it goes on in a moment, because another one is elected", "lead 3 of 2 3 4 isr 3 4 min 1", "", true},
		{"nobody leads", "lead 3 of 3 2 isr 3 min 1", "", false},
		{"the new replica catches up", "lead 2 of 4 2 isr 2 min 1", "2 4", true},
		{"it is about to be added", "lead 2 of 2 isr 2 min 1", "2 4", true},
		{"a replica comes back", "lead 2 of 2 4 isr 2 min 1", "", true},
	} {
		text := nodes
		for i := range MaxDrainMoveCount {
			text += fmt.Sprintf("part %d %s\n", i, c.part)
			if c.move != "" {
				text += fmt.Sprintf("move %d %s drain\n", i, c.move)
			}
		}
		text += fmt.Sprintf("part %d lead 2 of 1 2 isr 1 2 min 2\ntopic 2 min 1", MaxDrainMoveCount)
		commands, _ := plan(stateFrom(t, text), "/", time.Unix(0, 0), 1, view{})
		begun := slices.ContainsFunc(commands, func(c command) bool { return c.why == "move away from a draining node" })
		if begun == c.copied {
			t.Errorf("%s: the drain begins its move %v", c.name, begun)
		}
	}
}

// A node is lost when it has been away for long enough, for as long as this node is the controller.
func TestLostNodes(t *testing.T) {
	start := time.Unix(1000, 0)
	seen := presence{}
	look := func(text string, age time.Duration) string {
		s := stateFrom(t, text).snap
		seen.observe(s, start.Add(age))
		return fmt.Sprint(seen.lost(start.Add(age), time.Minute))
	}
	for _, c := range []struct {
		text string
		age  time.Duration
		want string
	}{
		{"node 1\nnode 2 dead", 0, "map[]"},
		{"node 1\nnode 2 dead", 59 * time.Second, "map[]"},
		{"node 1\nnode 2 dead", 60 * time.Second, "map[2:true]"},
		{"node 1\nnode 2", 61 * time.Second, "map[]"},
		{"node 1\nnode 2 dead", 62 * time.Second, "map[]"},
		{"node 1", 200 * time.Second, "map[]"},
	} {
		if got := look(c.text, c.age); got != c.want {
			t.Errorf("after %v: %s, want %s", c.age, got, c.want)
		}
	}
}
