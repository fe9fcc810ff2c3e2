package replicate

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "rewrite the transcripts in testdata")

// A transcript is a story: commands, and what the nodes say and do about them. Lines that begin with a word are
// commands; indented lines are results (rewritten by -update; ms after the start); lines with # are for the reader.
// Nothing happens by chance: a packet takes 0.05 ms, a sync 0.08 ms, a tick 10 ms.
//
//	cluster nodes=3 min=2 window=8    new empty nodes; elections are commands. stranded=80: ms after which
//	                                  a leader that is not heard gives up
//	elect 1                           the store makes node 1 the leader
//	put 1 count=3 wait=20             offer three values to node 1, for 20 ms at most
//	run 5                             let 5 ms pass
//	cut 1 3 / cut 1>3 / cut 1 store   no packets between them, or from the first to the second
//	heal                              all links are whole again
//	kill 1 keep=2 / start 1           power loss, two records that were not synced survive; the process comes back
//	kill 1 tear=1                     power loss, and the last stable batch does not read back: recovery cuts it
//	down 2 1                          node 1 hears that the process of node 2 is gone
//	wipe 1                            its disk is replaced by an empty one
//	stop 1 / continue 1               SIGSTOP, SIGCONT
//	rot 2 at=3 / trim 1 at=5          batch 3 does not read back any more; retention removes what is below 5
//	show                              the store, the marks, the logs
//
// They show these behaviours, and would fail without them:
//
//	normal.txt         B1, B14, B15
//	slow_follower.txt  B11, B75, P4, P6
//	leader_killed.txt  B17, B81, B82, P3
//	divergence.txt     B9, B12, B73, P2
//	full_sync.txt      B74, P10
//	min_isr.txt        B2, B5, B12, B19
//	lease.txt          B83
//	stale_epoch.txt    B3, B6, B7, B84, P7
//	repair.txt         B18, B37, P18
//	shortened.txt      P9, P18
//	stranded.txt       P11
func TestTranscripts(t *testing.T) {
	paths, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(paths) < 9 {
		t.Fatalf("%d transcripts: %v", len(paths), err)
	}
	for _, path := range paths {
		t.Run(strings.TrimSuffix(filepath.Base(path), ".txt"), func(t *testing.T) {
			text, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			got := playStory(t, string(text))
			if *update {
				if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
				return
			}
			want, have := strings.Split(string(text), "\n"), strings.Split(got, "\n")
			for i := range max(len(want), len(have)) {
				if i >= len(want) || i >= len(have) || want[i] != have[i] {
					t.Fatalf("%s differs from line %d on; all of it now:\n%s", path, i+1, got)
				}
			}
		})
	}
}

type story struct {
	t   *testing.T
	s   *sim
	out strings.Builder
}

func playStory(t *testing.T, text string) string {
	st := &story{t: t}
	for _, l := range strings.Split(strings.TrimSuffix(text, "\n"), "\n") {
		if strings.HasPrefix(l, " ") {
			continue // a result from before
		}
		fmt.Fprintln(&st.out, l)
		if l != "" && l[0] != '#' {
			st.play(strings.Fields(l))
		}
	}
	if st.s.violation != "" {
		t.Errorf("violation: %s", st.s.violation)
	}
	return st.out.String()
}

func (st *story) number(text string) int64 {
	st.t.Helper()
	v, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		st.t.Fatal(err)
	}
	return v
}

// arg returns the value of name=value, or def.
func (st *story) arg(words []string, name string, def int64) int64 {
	for _, w := range words {
		if v, ok := strings.CutPrefix(w, name+"="); ok {
			return st.number(v)
		}
	}
	return def
}

func (st *story) place(text string) int {
	if text == "store" {
		return 0
	}
	return int(st.number(text))
}

func (st *story) play(words []string) {
	if words[0] == "cluster" {
		st.cluster(words)
		return
	}
	s := st.s
	var n *simNode
	if len(words) > 1 && words[1][0] >= '1' && words[1][0] <= '9' && !strings.Contains(words[1], ">") &&
		words[0] != "run" {
		n = s.nodes[st.number(words[1])-1]
	}
	switch words[0] {
	case "elect":
		s.store.makeLeader(n.id)
	case "put":
		st.put(n, int(st.arg(words, "count", 1)), st.arg(words, "wait", 0))
	case "run":
		s.runUntil(s.now + st.number(words[1])*1_000_000)
	case "cut":
		st.cut(words[1:])
	case "heal":
		s.cutOff = [8][8]bool{}
	case "kill":
		s.kill(n, int(st.arg(words, "keep", 0)))
		if lost := int(st.arg(words, "tear", 0)); lost > 0 {
			n.disk.tear(lost)
			s.tracef("n%d lost the end of its log; [%d,%d) is left", n.id, n.disk.stable.start.Next, n.disk.stable.next())
		}
	case "start":
		s.restart(n)
	case "down":
		to := s.nodes[st.number(words[2])-1]
		to.do(to.process, func() { to.push(Event{Kind: EvPeerDown, Node: n.id}) })
	case "wipe":
		n.disk.wipe(s.newStore(n.id))
	case "stop":
		n.paused = true
	case "continue":
		s.resume(n)
	case "rot":
		n.disk.mark(segmentPosition(int(st.arg(words, "at", 0))), true)
		p := segmentPosition(int(st.arg(words, "at", 0)))
		n.do(n.process, func() { n.push(Event{Kind: EvCorrupt, Position: p, Until: p + 1}) })
	case "trim":
		n.do(n.process, func() { n.trim(segmentPosition(int(st.arg(words, "at", 0)))) })
	case "show":
		st.show()
	default:
		st.t.Fatalf("%v: unknown word", words)
	}
}

func (st *story) cluster(words []string) {
	window := int(st.arg(words, "window", 8))
	st.s = newSim(1, simOptions{
		scripted: true, nodes: int(st.arg(words, "nodes", 3)), min: int(st.arg(words, "min", 2)), delayUs: 50, syncUs: 80,
		cfg: Config{
			MaxWindowCount: window, MaxRangeBytes: st.arg(words, "range", 400), MaxRangesInFlight: 2, LagMaxNs: 60_000_000,
			HeartbeatNs: 20_000_000, RetryNs: 50_000_000, JoinNs: 20_000_000,
			StrandedNs: st.arg(words, "stranded", 0) * 1_000_000,
		},
	})
	st.s.tracing = func(l string) { fmt.Fprintln(&st.out, "  "+l) }
	st.s.begin()
}

func (st *story) put(n *simNode, count int, waitMs int64) {
	for range count {
		value := uint64(len(st.s.fate))
		st.s.fate = append(st.s.fate, offered)
		n.do(n.process, func() {
			if n.leader == nil {
				st.s.refused(value, ErrNotLeader)
				return
			}
			n.waiting = append(n.waiting, simPut{value, n.now() + waitMs*1_000_000})
		})
	}
}

func (st *story) cut(words []string) {
	if a, b, oneWay := strings.Cut(words[0], ">"); oneWay {
		st.s.cutOff[st.place(a)][st.place(b)] = true
		return
	}
	a, b := st.place(words[0]), st.place(words[1])
	st.s.cutOff[a][b], st.s.cutOff[b][a] = true, true
}

func (st *story) show() {
	c := &st.s.store.state
	fmt.Fprintf(&st.out, "  store: epoch %d version %d leader %d isr %s\n",
		c.Epoch, c.Version, c.Leader, membersText(c.ISR))
	for _, n := range st.s.nodes {
		role := "follows"
		switch {
		case !n.up:
			role = "is down"
		case n.leader != nil:
			role = "leads"
		case !n.follower.Following():
			role = "waits"
		}
		fmt.Fprintf(&st.out, "  n%d %s, committed %d, log [%d,%d):",
			n.id, role, n.committed, n.disk.log.start.Next, n.disk.log.next())
		for i := range n.disk.log.batches {
			b := &n.disk.log.batches[i]
			fmt.Fprintf(&st.out, " e%d%s", b.Epoch, strings.ReplaceAll(fmt.Sprint(b.values), " ", ","))
		}
		fmt.Fprintln(&st.out)
		if n.up && n.leader != nil {
			for _, p := range n.leader.Progress() {
				fmt.Fprintf(&st.out, "    to n%d: %v, match %d, next %d\n", p.Node, p.State, p.Match, p.Next)
			}
		}
	}
}
