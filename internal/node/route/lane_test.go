package route

import (
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"penstock/replicate"
)

// Next depends on the puts that the lane has in flight, and on the leader.
func TestLaneNext(t *testing.T) {
	sent := func(l *Lane) { l.Sent(2) }
	for _, c := range []struct {
		name   string
		before func(*Lane)
		leader Leader
		want   Move
	}{
		{"nobody leads", func(*Lane) {}, Leader{}, Stay},
		{"another node leads", func(*Lane) {}, Leader{Node: 2, Connected: true}, Send},
		{"it is not connected", func(*Lane) {}, Leader{Node: 2}, Stay},
		{"this node leads", func(*Lane) {}, Leader{Here: true, Node: 1}, Keep},
		{"more for the same leader", sent, Leader{Node: 2, Connected: true}, Send},
		{"a new leader, and the old one has not answered", sent, Leader{Node: 3, Connected: true}, Stay},
		{"this node leads, and the old one has not answered", sent, Leader{Here: true, Node: 1}, Stay},
		{
			"the old one has answered", func(l *Lane) { l.Sent(2); l.Answered(false, 8) },
			Leader{Node: 3, Connected: true},
			Send,
		},
		{
			"one of two was refused", func(l *Lane) { l.Sent(2); l.Sent(2); l.Answered(true, 8) },
			Leader{Node: 2, Connected: true},
			Stay,
		},
		{
			"both were refused", func(l *Lane) { l.Sent(2); l.Sent(2); l.Answered(true, 8); l.Answered(true, 8) },
			Leader{Node: 2, Connected: true},
			Send,
		},
		{"what is in the inbox comes first", (*Lane).Freeze, Leader{Node: 2, Connected: true}, Stay},
		{"it came", func(l *Lane) { l.Freeze(); l.Thaw() }, Leader{Node: 2, Connected: true}, Send},
	} {
		l := NewLane(7)
		if c.before(&l); l.Next(c.leader) != c.want {
			t.Errorf("%s: %d, want %d", c.name, l.Next(c.leader), c.want)
		}
	}
}

// A run ends with its last answer, and only a refusal starts a new one.
func TestLaneRuns(t *testing.T) {
	l := NewLane(7)
	l.Sent(2)
	l.Sent(2)
	l.Answered(false, 8)
	if l.Answered(false, 8); l.Run() != 7 || !l.Idle() {
		t.Errorf("nothing was refused, and the run is %d, idle %v", l.Run(), l.Idle())
	}
	l.Sent(2)
	l.Sent(2)
	if l.Answered(true, 9); l.Run() != 7 || l.Idle() {
		t.Errorf("a put is in flight, and the run is %d, idle %v", l.Run(), l.Idle())
	}
	if l.Answered(false, 10); l.Run() != 10 {
		t.Errorf("after a refusal the run is %d, want 10", l.Run())
	}
	if first, last := l.First(3), l.Last(); first+2 >= last || l.First(1) >= first {
		t.Errorf("orders %d and %d", first, last)
	}
}

// laneWorld is one node with a lane and two other nodes that lead at times. The leader stores the puts in its inbox in
// order.
type laneWorld struct {
	rnd      *rand.Rand
	lane     Lane
	waiting  []lanePut // sorted by order
	runs     uint32
	leader   replicate.NodeID    // 0: nobody; 1: this node
	known    replicate.NodeID    // the leader, as far as this node knows
	sent     [4][]lanePut        // by node: puts on their way to it
	inbox    [4][]lanePut        // by node
	answers  [4][]laneAnswer     // by node: answers on their way back
	refusals [4]Refusals[string] // by node
	memory   [4]Answers[bool]    // by node: whether the put was refused
	numbers  map[uint64]uint64   // by request: the number in memory
	inFlight map[uint64]lanePut  // by request
	ask      bool                // the connection of what is in flight has ended
	request  uint64
	id       int
	stored   []int
	refused  int
	unknown  int
	learned  int // answers that were lost, and that an ask brought
}

type lanePut struct {
	id      int
	order   uint64
	run     uint32
	request uint64
}

type laneAnswer struct {
	put     lanePut
	refused bool
}

func (w *laneWorld) flush() {
	for len(w.waiting) > 0 {
		leader := Leader{Here: w.leader == 1 && w.known == 1, Node: w.known, Connected: w.known > 1}
		p := w.waiting[0]
		switch w.lane.Next(leader) {
		case Stay:
			return
		case Send:
			w.request++
			p.run, p.request = w.lane.Run(), w.request
			w.inFlight[p.request] = p
			w.sent[w.known] = append(w.sent[w.known], p)
			w.lane.Sent(w.known)
		case Keep:
			w.inbox[1] = append(w.inbox[1], p)
		}
		w.waiting = w.waiting[1:]
	}
}

func (w *laneWorld) wait(p lanePut) {
	w.waiting = append(w.waiting, p)
	slices.SortFunc(w.waiting, func(a, b lanePut) int { return int(int64(a.order - b.order)) })
}

// answer delivers the next answer of a node.
func (w *laneWorld) answer(node replicate.NodeID) {
	a := w.answers[node][0]
	w.answers[node] = w.answers[node][1:]
	if _, ok := w.inFlight[a.put.request]; !ok {
		return // it was answered before
	}
	if a.refused {
		w.wait(a.put)
	}
	w.answered(a.put, a.refused)
}

func (w *laneWorld) answered(p lanePut, refused bool) {
	delete(w.inFlight, p.request)
	w.runs++
	w.lane.Answered(refused, w.runs)
}

// lead changes the leader. Forwarded puts in the old leader's inbox go back to the nodes that sent them. Its own puts
// go to its lane, in front of the puts that wait there.
func (w *laneWorld) lead(node replicate.NodeID) {
	old := w.leader
	w.leader = node
	inbox := w.inbox[old]
	w.inbox[old] = nil
	if old == 1 {
		w.lane.Freeze()
		order := w.lane.First(len(inbox))
		for i, p := range inbox {
			p.order = order + uint64(i)
			w.wait(p)
		}
		w.lane.Thaw()
		return
	}
	for _, p := range inbox {
		w.refuse(old, p)
	}
}

func (w *laneWorld) refuse(node replicate.NodeID, p lanePut) {
	w.refusals[node].Note("1", p.run)
	w.reply(node, p, true)
	w.refused++
}

// reply answers a put at the node to which it was sent.
func (w *laneWorld) reply(node replicate.NodeID, p lanePut, refused bool) {
	w.memory[node].Answered(w.numbers[p.request], refused)
	w.answers[node] = append(w.answers[node], laneAnswer{p, refused})
}

// arrive delivers the next put that was sent to a node.
func (w *laneWorld) arrive(node replicate.NodeID) {
	p := w.sent[node][0]
	w.sent[node] = w.sent[node][1:]
	w.numbers[p.request] = w.memory[node].Arrived(p.request)
	if w.leader != node || w.refusals[node].Refuses("1", p.run) || len(w.inbox[node]) >= 3 {
		w.refuse(node, p)
		return
	}
	w.inbox[node] = append(w.inbox[node], p)
}

func (w *laneWorld) store() {
	for _, p := range w.inbox[w.leader] {
		w.stored = append(w.stored, p.id)
		if w.leader != 1 {
			w.reply(w.leader, p, false)
		}
	}
	w.inbox[w.leader] = nil
}

// disconnect ends a connection. What is on its way in it is lost. ended: the node's process has ended, too, so that
// puts which were sent but not answered may or may not be stored, and are not sent again.
func (w *laneWorld) disconnect(node replicate.NodeID, ended bool) {
	w.sent[node], w.answers[node] = nil, nil
	w.refusals[node].Forget(func(s string) bool { return s == "1" })
	if ended {
		if w.leader == node && w.rnd.IntN(2) == 0 {
			w.store() // and nobody hears of it
			w.answers[node] = nil
		}
		if w.leader == node {
			w.inbox[node] = nil
		}
		w.memory[node] = Answers[bool]{}
	}
	if w.lane.To() != node {
		return
	}
	w.lane.Break()
	if w.ask = !ended; ended {
		w.giveUp()
	}
}

func (w *laneWorld) giveUp() {
	w.unknown += len(w.inFlight)
	for _, p := range w.inFlight {
		w.answered(p, false)
	}
	w.ask = false
}

// askAgain asks for the answers to everything that is in flight, or gives it up because another node leads.
func (w *laneWorld) askAgain() {
	if w.ask = false; w.known != 0 && w.known != w.lane.To() && w.rnd.IntN(2) == 0 {
		w.giveUp()
		return
	}
	node := w.lane.To()
	for _, request := range slices.Sorted(maps.Keys(w.inFlight)) {
		p := w.inFlight[request]
		switch fate, refused := w.memory[node].Ask(request); fate {
		case FateUnknown:
			w.unknown++
			w.answered(p, false)
		case FateAbsent:
			w.refusals[node].Note("1", p.run)
			w.answers[node] = append(w.answers[node], laneAnswer{p, true})
		case FateOpen:
		case FateAnswered:
			w.learned++
			w.answers[node] = append(w.answers[node], laneAnswer{p, refused})
		}
	}
}

func (w *laneWorld) step() {
	node := replicate.NodeID(2 + w.rnd.IntN(2))
	switch w.rnd.IntN(12) {
	case 0:
		w.lead(replicate.NodeID(w.rnd.IntN(4)))
	case 1:
		w.known = w.leader
	case 2, 3, 4:
		w.id++
		p := lanePut{id: w.id}
		if w.leader == 1 && w.known == 1 && len(w.waiting) == 0 && w.lane.Idle() {
			w.inbox[1] = append(w.inbox[1], p)
			return
		}
		p.order = w.lane.Last()
		w.wait(p)
	case 5, 6, 7:
		if len(w.sent[node]) > 0 {
			w.arrive(node)
		}
	case 8, 9:
		w.store()
	case 10:
		if len(w.answers[node]) > 0 {
			w.answer(node)
		}
	case 11:
		if w.rnd.IntN(10) == 0 {
			w.disconnect(node, w.rnd.IntN(3) == 0)
		}
	}
	if w.ask && w.rnd.IntN(4) == 0 {
		w.askAgain()
	}
	w.flush()
}

// settle lets node 2 lead until every put has arrived there.
func (w *laneWorld) settle() {
	w.lead(2)
	w.known = 2
	for range 200 {
		if w.ask {
			w.askAgain()
		}
		for node := replicate.NodeID(2); node <= 3; node++ {
			for len(w.sent[node]) > 0 {
				w.arrive(node)
				w.store()
			}
			for len(w.answers[node]) > 0 {
				w.answer(node)
			}
		}
		w.flush()
	}
}

// Whichever node leads, whatever is refused and whichever connection ends, the puts of a partition are stored in the
// order in which they arrived, each at most once. Once a leader lasts, no put waits any more.
func TestLaneKeepsTheOrder(t *testing.T) {
	stored, refused, learned, unknown := 0, 0, 0, 0
	for seed := range uint64(2000) {
		w := &laneWorld{
			rnd: rand.New(rand.NewPCG(seed, 1)), lane: NewLane(1), runs: 1, leader: 2, known: 2,
			inFlight: map[uint64]lanePut{}, numbers: map[uint64]uint64{},
		}
		for range 400 {
			w.step()
			for i := 1; i < len(w.stored); i++ {
				if w.stored[i] <= w.stored[i-1] {
					t.Fatalf("seed %d: stored %v", seed, w.stored)
				}
			}
		}
		if w.settle(); len(w.waiting) != 0 || !w.lane.Idle() {
			t.Fatalf("seed %d: a node leads and answers, and %d puts wait", seed, len(w.waiting))
		}
		stored += len(w.stored)
		refused += w.refused
		learned += w.learned
		unknown += w.unknown
	}
	t.Logf("%d puts stored, %d refused, %d lost answers learned, %d fates unknown", stored, refused, learned, unknown)
	if stored < 10_000 || refused < 10_000 || learned < 1000 || unknown < 1000 {
		t.Error("this shows nothing")
	}
}
