package fold

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"penstock/batch"
	"penstock/segment"
	"penstock/tests/support/seedtest"
)

// take opens a name in a fold as a leader does, for a tenure that begins or goes on.
func take(t *testing.T, c *Cursors, name string, tenure uint64, begins bool, nowNs int64) (ProducerOpening, error) {
	t.Helper()
	o := ProducerOpening{Name: name, Tenure: tenure, Begins: begins}
	if err := c.RefusesTenure(&o); err != nil {
		return o, err
	}
	c.FillOpening(&o, &segment.State{Next: segment.Position(c.End())}, nowNs, 0)
	apply(t, c, Control{Kind: ProducerTaken, Producer: o})
	return o, nil
}

func TestTenures(t *testing.T) {
	c := producerFold(t) // "a" has epoch 1 from before there were tenures
	if _, _, err := c.JudgeNamed([]byte("a"), 1, batchOf(0, 0, 3, 1)); err != nil {
		t.Errorf("an epoch that has no tenure: %v", err)
	}
	first, err := take(t, c, "a", batch.NewTenure(1e12, 5), true, 400)
	if err != nil || first.Epoch != 2 || first.Sequence != 3 || first.ID != 1 {
		t.Fatalf("opened as %+v, %v", first, err)
	}
	later, err := take(t, c, "a", batch.MinTenure, true, 400) // by a node whose clock is behind
	if err != nil || later.Tenure <= first.Tenure|0xff || later.Epoch != 3 {
		t.Fatalf("opened as %+v, %v, behind %d", later, err, first.Tenure)
	}
	for _, x := range []struct {
		name string
		h    *segment.Header
		as   uint64
		want string // of the error, or the id
	}{
		{"a", batchOf(0, 0, 3, 2), later.Tenure, "0"},
		{"a", batchOf(0, 0, 3, 2), later.Tenure, "10 again"},
		{"a", batchOf(0, 0, 3, 2), first.Tenure, ErrFenced.Error()},
		{"a", batchOf(0, 0, 5, 1), 1, ErrFenced.Error()},
		{"a", batchOf(0, 0, 5, 1), later.Tenure + 1, ErrUnknownProducer.Error()},
		{"b", batchOf(0, 0, 0, 1), later.Tenure, ErrUnknownProducer.Error()},
		{"", batchOf(0, 0, 0, 1), later.Tenure, ErrUnknownProducer.Error()},
		{"a", batchOf(0, 0, 9, 1), later.Tenure, "from 5 to 8 are not stored"},
		{"a", batchOf(0, 0, 2, 1), later.Tenure, "go on with number 5"},
	} {
		id, repeat, err := c.JudgeNamed([]byte(x.name), x.as, x.h)
		got := fmt.Sprint(id)
		if err != nil {
			got = err.Error()
		} else if repeat {
			got += " again"
		} else {
			x.h.FirstID, x.h.BodyCRC = c.End(), 77
			c.PublishBatch(x.h)
		}
		if !strings.Contains(got, x.want) {
			t.Errorf("%s, %d+%d of %d: %s, want %s", x.name, x.h.BaseSequence, x.h.Count, x.as, got, x.want)
		}
	}
	same, other := batchOf(1, 3, 3, 2), batchOf(1, 3, 3, 2)
	same.BodyCRC, other.BodyCRC = 77, 78
	if id, repeat, err := c.JudgeBatch(same); id != 10 || !repeat || err != nil {
		t.Errorf("the same content: %v %v %v", id, repeat, err)
	}
	var sequence *SequenceError
	if _, _, err := c.JudgeBatch(other); !errors.As(err, &sequence) || !errors.Is(err, ErrSequence) || !sequence.Other {
		t.Errorf("another content with the same numbers: %v", err)
	}
	var fenced *FencedError
	if _, err := take(t, c, "a", first.Tenure, false, 500); !errors.As(err, &fenced) || fenced.Tenure != later.Tenure {
		t.Errorf("the earlier program goes on: %v", err)
	}
	if o, err := take(t, c, "a", later.Tenure, false, 500); err != nil || o.Epoch != 4 || o.Sequence != 5 {
		t.Errorf("the later program goes on as %+v, %v", o, err)
	}
	if o, err := take(t, c, "new", first.Tenure, false, 500); err != nil || o.Epoch != 1 || o.Sequence != 0 {
		t.Errorf("a name that is not known here is %+v, %v", o, err)
	}
}

// program is one program of TestTenuresModel. It holds a name, and does not hear what becomes of topics.
type program struct {
	tenure uint64
	next   []uint32 // by the partition that it believes to publish to
	last   []put
}

// put is a put of a program: its content is in the log of a partition, or it is not.
type put struct {
	partition, sent int // that it believes in, and that it was sent to
	sequence        uint32
	content         uint32 // not 0
}

// nameWorld is a topic, with what its logs really hold.
type nameWorld struct {
	t    *testing.T
	rng  *rand.Rand
	now  int64
	c    []*Cursors
	logs []map[segment.MsgID]uint32 // contents, by id
	all  []*program
	sent uint32
}

func (w *nameWorld) grow() {
	w.c, w.logs = append(w.c, new(Cursors)), append(w.logs, map[segment.MsgID]uint32{})
	for _, p := range w.all {
		p.next = append(p.next, 0)
	}
}

func (w *nameWorld) begin() {
	p := &program{next: make([]uint32, len(w.c))}
	at := w.rng.IntN(len(w.c))
	o, err := take(w.t, w.c[at], "n", batch.NewTenure((w.now-w.rng.Int64N(1e10))/1e6, w.rng.Uint64()), true, w.now)
	if err != nil {
		w.t.Fatal(err)
	}
	for _, q := range w.all {
		if q.tenure == o.Tenure {
			w.t.Fatalf("tenure %d has begun twice", o.Tenure)
		}
	}
	p.tenure, p.next[at] = o.Tenure, o.Sequence
	w.all = append(w.all, p)
}

// send sends a put, or an earlier one once more. It judges the answer by what the log of the partition holds.
func (w *nameWorld) send(p *program) {
	believes := w.rng.IntN(len(w.c))
	m := put{partition: believes, sent: believes, sequence: p.next[believes]}
	if w.rng.IntN(4) == 0 { // it does not know that the key has moved
		m.sent = w.rng.IntN(len(w.c))
	}
	w.sent++
	m.content = w.sent
	if n := len(p.last); n > 0 && w.rng.IntN(3) == 0 {
		m = p.last[w.rng.IntN(n)]
	}
	c := w.c[m.sent]
	h := batchOf(0, 0, m.sequence, 1)
	id, repeat, err := c.JudgeNamed([]byte("n"), p.tenure, h)
	if repeat {
		h.BodyCRC = m.content
		id, _, err = c.JudgeBatch(h)
	}
	switch {
	case errors.Is(err, ErrUnknownProducer):
		if o, err := take(w.t, c, "n", p.tenure, false, w.now); err == nil {
			p.next[m.sent] = o.Sequence
		}
		return
	case err != nil:
		w.hear(p, c, m.sent, err)
		return
	case !repeat:
		h.FirstID, h.Appended, h.BodyCRC = c.End(), w.now, m.content
		id = h.FirstID
		c.PublishBatch(h)
		w.logs[m.sent][id] = m.content
		p.next[m.partition] = max(p.next[m.partition], m.sequence+1)
		if p.last = append(p.last, m); len(p.last) > 6 {
			p.last = p.last[1:]
		}
	}
	if holder := c.producerHolder("n"); holder > p.tenure {
		w.t.Fatalf("message %d of tenure %d was answered OK by partition %d, which tenure %d holds",
			m.content, p.tenure, m.sent, holder)
	}
	if got := w.logs[m.sent][id]; got != m.content {
		w.t.Fatalf("message %d was answered OK as %d of partition %d, which holds %d", m.content, id, m.sent, got)
	}
}

// hear is what a program does that is refused because of its numbers: it goes on where the partition expects it.
func (w *nameWorld) hear(p *program, c *Cursors, at int, err error) {
	var refused *SequenceError
	if !errors.As(err, &refused) || refused.Other {
		return
	}
	p.next[at] = refused.Want
	if _, _, err := c.JudgeNamed([]byte("n"), p.tenure, batchOf(0, 0, refused.Want, 1)); err != nil {
		w.t.Fatalf("a program was told to go on with %d, and is refused: %v", refused.Want, err)
	}
}

// Programs with one name open it and publish, without hearing that the topic is made anew or gets partitions, that a
// partition forgets them, or that a log loses its end. Whatever is answered OK is in the log that answers.
func TestTenuresModel(t *testing.T) {
	for seed := range seedtest.Each(t, 2000, 200) {
		w := &nameWorld{t: t, rng: rand.New(rand.NewPCG(seed, 23)), now: 1e18}
		w.grow()
		w.begin()
		var kept *Cursors
		var end segment.MsgID
		for range 150 {
			w.now += w.rng.Int64N(2e6)
			switch w.rng.IntN(40) {
			case 0:
				w.begin()
			case 1:
				if len(w.c) < 4 {
					w.grow()
				}
			case 2: // deleted and created
				for i := range w.c {
					w.c[i], w.logs[i] = new(Cursors), map[segment.MsgID]uint32{}
				}
				kept = nil
			case 3:
				w.now += ProducerAgeNs
			case 4:
				kept, _, _ = DecodeCursors(w.c[0].Append(nil))
				end = kept.End()
			case 5: // a replica that lacks the end is forced to lead, or a backup is restored
				if kept != nil {
					w.c[0], kept = kept, nil
					for id := range w.logs[0] {
						if id >= end {
							delete(w.logs[0], id)
						}
					}
				}
			default:
				w.send(w.all[w.rng.IntN(len(w.all))])
			}
		}
	}
}
