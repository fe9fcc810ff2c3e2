package world

import (
	"context"
	"errors"
	"math/rand/v2"

	"penstock/batch"
	"penstock/internal/node"
	"penstock/internal/node/errs"
)

// A ghost is a program that holds a publisher's name no more, and does not know it: its successor has opened the name,
// or the topic was deleted and made anew, or has got partitions. It goes on with the tenure and the numbers that it
// has, in whatever partition it takes for its own, and opens the name again for its own tenure when a partition does
// not know it. Nothing may be answered OK that is not stored, and nobody is fenced by a program that began before.

// ghost is what a publisher leaves behind when its session ends.
type ghost struct {
	of     *producer
	tenure uint64
	next   uint32
	waits  bool
}

const (
	// firstGhostSeed is the first seed that may draw ghosts: those below are histories that were written down before
	// there were any.
	firstGhostSeed = 9_000_000
	maxGhosts      = 6
)

// ghosts is the state of them.
type ghosts struct {
	r   *rand.Rand // nil: there are none
	all []*ghost
}

// drawGhosts lets ghosts haunt worlds with publishers that number their puts.
func (w *World) drawGhosts() {
	r := rand.New(rand.NewPCG(w.Seed, 0x589965cc75374cc3))
	if w.Seed >= firstGhostSeed && w.has(FeatureNumbered) && !w.has(FeatureForget) && r.IntN(3) > 0 {
		w.features |= FeatureGhosts
	}
}

func (w *World) startGhosts() {
	if w.has(FeatureGhosts) {
		w.ghosts.r = rand.New(rand.NewPCG(w.Seed, 0x8ebc6af09c88c6e3))
		w.every(30*ms, w.haunt)
	}
}

// leave makes a ghost of the publisher, whose session ends.
func (p *producer) leave() {
	w := p.w
	if w.ghosts.r == nil || !p.puts || !p.open || p.p.Tenure < batch.MinTenure {
		return
	}
	w.ghosts.all = append(w.ghosts.all, &ghost{of: p, tenure: p.p.Tenure, next: p.next})
	if len(w.ghosts.all) > maxGhosts {
		w.ghosts.all = w.ghosts.all[1:]
	}
}

// haunt lets one ghost do something.
func (w *World) haunt() {
	r := w.ghosts.r
	n := w.anyNode()
	if len(w.ghosts.all) == 0 || n == nil || !w.busy() {
		return
	}
	g := w.ghosts.all[r.IntN(len(w.ghosts.all))]
	t := w.topics[g.of.index]
	if g.waits || !t.ready || t.doomed {
		return
	}
	topic, ok := n.topic(t)
	if !ok || n.e.Level() < node.NewestLevel {
		return
	}
	at := uint32(r.IntN(max(1, topic.Partitions())))
	if r.IntN(3) == 0 {
		w.holdAgain(g, n, topic, t, at)
		return
	}
	w.haunts(g, n, topic, t, at)
}

// haunts sends a put of the ghost's.
func (w *World) haunts(g *ghost, n *host, topic *node.Topic, t *topicModel, at uint32) {
	v := len(w.book.values)
	w.book.values = append(w.book.values, value{topic: t, by: n, life: n.life, submitted: w.now, numbered: true})
	body := w.book.body(v)
	back := min(g.next, w.ghosts.r.Uint32N(4))
	number := &node.Numbered{Name: []byte(g.of.name), Tenure: g.tenure, Sequence: g.next - back}
	held := w.holder(g.of, t, at)
	put := &node.Put{Messages: [][]byte{body}}
	life := n.life
	answer := func(first node.ID, err error) {
		w.tracef("ghost %q of %s/%d: %v %v", g.of.name, t.name, at, first, err)
		b := &w.book.values[v]
		switch {
		case n.life != life: // nobody hears it
			b.fate = unknown
		case err == nil:
			if w.Stats.Haunted++; held > g.tenure {
				w.fail("ghost %q of tenure %d published to %s/%d, which tenure %d holds",
					g.of.name, g.tenure, t.name, at, held)
			}
			b.fate, b.answered, g.next = acked, w.now, number.Sequence+1
			w.Stats.Acked++
			w.book.place(v, first)
		case errors.Is(err, errs.ErrFenced), errors.Is(err, errs.ErrUnknownProducer),
			errors.Is(err, errs.ErrSequence):
			b.fate = refused
		default:
			b.fate = unknown
		}
	}
	put.Done = func(p *node.Put) { answer(p.First, p.Err) }
	if err := topic.SubmitNumbered(int(at), put, number); err != nil {
		answer(0, err)
	}
	n.poke()
}

// holder returns the tenure for which the publisher holds its name in a partition, as it was told; 0: it does not.
func (w *World) holder(p *producer, t *topicModel, at uint32) uint64 {
	if p.open && p.t == t && p.partition == at {
		return p.p.Tenure
	}
	return 0
}

// holdAgain opens the name for the ghost's own tenure.
func (w *World) holdAgain(g *ghost, n *host, topic *node.Topic, t *topicModel, at uint32) {
	g.waits = true
	held, life := w.holder(g.of, t, at), n.life
	var got node.Producer
	n.task(func(*node.Engine) (err error) {
		got, err = topic.HoldNamed(context.Background(), int(at), g.of.name, g.tenure)
		return err
	}, func(err error) {
		w.tracef("ghost %q of %s/%d opens its name: %+v %v", g.of.name, t.name, at, got, err)
		g.waits = false
		switch {
		case err != nil:
		case held > g.tenure:
			w.fail("ghost %q of tenure %d took %s/%d back, which tenure %d holds", g.of.name, g.tenure, t.name, at, held)
		default:
			g.next = got.Sequence
		}
	})
	w.after(3000*ms, func() { // its process may end before it answers
		if n.life != life {
			g.waits = false
		}
	})
}
