package fold

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"

	"penstock/segment"
)

// opened returns an entry that opens a producer.
func opened(id uint64, epoch uint32, atNs int64, name string) Control {
	return Control{Kind: ProducerOpened, Producer: ProducerOpening{ID: id, Epoch: epoch, TimeNs: atNs, Name: name}}
}

// taken returns an entry that opens a producer for a tenure.
func taken(id uint64, epoch uint32, atNs int64, name string, tenure uint64) Control {
	c := opened(id, epoch, atNs, name)
	c.Kind, c.Producer.Tenure = ProducerTaken, tenure
	return c
}

// batchOf returns the header of a batch that a producer sends.
func batchOf(id uint64, epoch, base, count uint32) *segment.Header {
	return &segment.Header{ProducerID: id, ProducerEpoch: epoch, BaseSequence: base, Count: count}
}

func apply(t *testing.T, c *Cursors, controls ...Control) {
	t.Helper()
	for i := range controls {
		if err := c.ApplyBodyAt(AppendControl(nil, &controls[i]), c.End(), 4096); err != nil {
			t.Fatal(err)
		}
	}
	checkFold(t, c)
}

// store does what a leader does with a batch: it asks, and appends the batch if it must.
func store(c *Cursors, h *segment.Header, atNs int64) (first segment.MsgID, repeat bool, err error) {
	if first, repeat, err = c.JudgeBatch(h); err != nil || repeat {
		return first, repeat, err
	}
	h.FirstID, h.Appended = c.End(), atNs
	c.PublishBatch(h)
	return h.FirstID, false, nil
}

// producerFold returns a fold of 10 messages with the producers 1 ("a") and 2 (without a name). The last batch of 1 has
// the ids 7 and 8.
func producerFold(t *testing.T) *Cursors {
	c := new(Cursors)
	apply(t, c, opened(1, 1, 100, "a"), opened(2, 1, 200, ""))
	c.Publish(0, 4)
	for _, h := range []*segment.Header{
		batchOf(1, 1, 0, 1), batchOf(2, 1, 0, 2), batchOf(1, 1, 1, 2), batchOf(2, 1, 2, 1),
	} {
		if _, repeat, err := store(c, h, 300); err != nil || repeat {
			t.Fatal(repeat, err)
		}
	}
	return c
}

// producerControls are entries that change producerFold.
func producerControls() []Control {
	return []Control{
		opened(1, 2, 400, "a"), opened(9, 1, 500, "b"), opened(1, 1, 600, "a"), opened(7, 1, 700, ""),
		taken(11, 1, 750, "t", 1<<40), taken(11, 2, 760, "t", 1<<41), taken(1, 3, 770, "a", 1<<42),
		opened(8, 1, 800+ProducerAgeNs, ""),
		{Kind: ProducerRemoved, Producer: ProducerOpening{ID: 9}},
		{Kind: ProducerRemoved, Producer: ProducerOpening{ID: 8}},
		{Kind: ProducerRemoved, Producer: ProducerOpening{ID: 12345}},
	}
}

func TestJudgeBatch(t *testing.T) {
	for _, tc := range []struct {
		name   string
		h      *segment.Header
		first  segment.MsgID
		repeat bool
		err    error
	}{
		{"next", batchOf(1, 1, 3, 5), 10, false, nil},
		{"next of the other", batchOf(2, 1, 3, 1), 10, false, nil},
		{"the last again", batchOf(1, 1, 1, 2), 7, true, nil},
		{"the one before again", batchOf(1, 1, 0, 1), 4, true, nil},
		{"the last again, longer", batchOf(1, 1, 1, 3), 0, false, ErrSequence},
		{"the last again, shorter", batchOf(1, 1, 1, 1), 0, false, ErrSequence},
		{"both in one", batchOf(1, 1, 0, 3), 0, false, ErrSequence},
		{"old and new in one", batchOf(1, 1, 2, 2), 0, false, ErrSequence},
		{"gap", batchOf(1, 1, 4, 1), 0, false, ErrSequence},
		{"before the first", batchOf(1, 1, 1<<32-1, 1), 0, false, ErrSequence},
		{"earlier epoch", batchOf(1, 0, 3, 1), 0, false, ErrFenced},
		{"earlier epoch, the last again", batchOf(1, 0, 1, 2), 0, false, ErrFenced},
		{"later epoch", batchOf(1, 2, 3, 1), 0, false, ErrUnknownProducer},
		{"unknown", batchOf(3, 1, 0, 1), 0, false, ErrUnknownProducer},
	} {
		c := producerFold(t)
		before := c.Append(nil)
		first, repeat, err := store(c, tc.h, 300)
		if first != tc.first || repeat != tc.repeat || !errors.Is(err, tc.err) {
			t.Errorf("%s: id %d, repeat %v, %v", tc.name, first, repeat, err)
		}
		if stored := !bytes.Equal(before, c.Append(nil)); stored != (!tc.repeat && tc.err == nil) {
			t.Errorf("%s: stored %v", tc.name, stored)
		}
		checkFold(t, c)
	}
}

// Opening a named producer again keeps its number and fences the earlier epoch, also batches that it had sent.
func TestOpenAgain(t *testing.T) {
	c := producerFold(t)
	o := ProducerOpening{Name: "a"}
	c.FillOpening(&o, &segment.State{Next: 5}, 400, 0)
	if want := (ProducerOpening{ID: 1, Epoch: 2, TimeNs: 400, Name: "a", Sequence: 3}); o != want {
		t.Fatalf("it gets %+v, want %+v", o, want)
	}
	apply(t, c, Control{Kind: ProducerOpened, Producer: o})
	for _, x := range []struct {
		h    *segment.Header
		want error
	}{
		{batchOf(1, 1, 3, 1), ErrFenced},
		{batchOf(1, 1, 1, 2), ErrFenced},
		{batchOf(1, 2, 1, 2), ErrSequence},
		{batchOf(1, 2, 3, 1), nil},
		{batchOf(2, 1, 3, 1), nil},
	} {
		if _, repeat, err := store(c, x.h, 500); !errors.Is(err, x.want) || repeat {
			t.Errorf("%+v: repeat %v, %v", x.h, repeat, err)
		}
	}
	if first, repeat, err := store(c, batchOf(1, 2, 3, 1), 500); first != 10 || !repeat || err != nil {
		t.Errorf("id %d, repeat %v, %v", first, repeat, err)
	}
	apply(t, c, opened(1, 2, 600, "a")) // the same epoch again: no leader writes this
	if _, repeat, _ := store(c, batchOf(1, 2, 3, 1), 700); !repeat {
		t.Error("an entry without a new epoch has made a producer forget its batches")
	}
}

// A producer without a name, or with a new one, gets an id that nobody else has or had.
func TestOpenNew(t *testing.T) {
	c, ids := new(Cursors), map[uint64]bool{}
	for i := range 500 {
		o := ProducerOpening{Name: []string{"", fmt.Sprint(i)}[i%2]}
		c.FillOpening(&o, &segment.State{Next: segment.Position(i / 4), Epoch: segment.Epoch(i % 2)}, int64(i/100), 0)
		if o.ID == 0 || ids[o.ID] || o.Epoch != 1 || o.Sequence != 0 {
			t.Fatalf("%d: %+v", i, o)
		}
		ids[o.ID] = true
		apply(t, c, Control{Kind: ProducerOpened, Producer: o})
	}
	// The same place in a log whose end was lost, at another time or in another epoch.
	var a, b, d ProducerOpening
	new(Cursors).FillOpening(&a, &segment.State{Next: 5, Epoch: 1}, 10, 0)
	new(Cursors).FillOpening(&b, &segment.State{Next: 5, Epoch: 1}, 11, 0)
	new(Cursors).FillOpening(&d, &segment.State{Next: 5, Epoch: 2}, 10, 0)
	if a.ID == b.ID || a.ID == d.ID {
		t.Error("an id is given away twice")
	}
	// Nothing that another client knows tells the id.
	var secret ProducerOpening
	new(Cursors).FillOpening(&secret, &segment.State{Next: 5, Epoch: 1}, 10, 1<<40)
	if secret.ID == a.ID {
		t.Error("the id of a producer can be guessed")
	}
}

// Numbers go on behind the largest.
func TestSequenceWraps(t *testing.T) {
	c := new(Cursors)
	apply(t, c, opened(1, 1, 1, ""))
	c.producers.all[0].next = 1<<32 - 2
	for i, want := range []struct {
		base   uint32
		repeat bool
	}{{1<<32 - 2, false}, {2, false}, {1<<32 - 2, true}, {2, true}} {
		if _, repeat, err := store(c, batchOf(1, 1, want.base, 4), 1); err != nil || repeat != want.repeat {
			t.Errorf("batch %d: repeat %v, %v", i, repeat, err)
		}
		checkFold(t, c)
	}
}

// passTime lets as much time pass as d, in steps that count, in which producer id publishes.
func passTime(t *testing.T, c *Cursors, id uint64, epoch uint32, fromNs, d int64) {
	t.Helper()
	for at := min(d, ProducerStepNs); ; at = min(d, at+ProducerStepNs) {
		i, _ := c.producers.find(id)
		if _, _, err := store(c, batchOf(id, epoch, c.producers.all[i].next, 1), fromNs+at); err != nil {
			t.Fatal(err)
		}
		if at == d {
			return
		}
	}
}

// A producer is found by its name for as long as it is known, also in a copy of the fold, without an allocation.
func TestNamedProducer(t *testing.T) {
	c := new(Cursors)
	expect := func(c *Cursors, name string, want uint64) {
		t.Helper()
		if id, known := c.namedProducer([]byte(name)); id != want || known != (want != 0) {
			t.Errorf("%q is producer %d (%v), want %d", name, id, known, want)
		}
	}
	expect(c, "a", 0)
	apply(t, c, opened(1, 1, 1000, "a"), opened(2, 1, 1000, ""), opened(3, 1, 1000, "b"))
	expect(c, "a", 1)
	expect(c, "b", 3)
	expect(c, "", 0)
	old := c.Clone()
	passTime(t, c, 1, 1, 1000, ProducerAgeNs+2)
	apply(t, c, opened(4, 1, 1002+ProducerAgeNs, "c"))
	expect(c, "a", 1)
	expect(c, "b", 0)
	expect(c, "c", 4)
	expect(old, "b", 3)
	expect(old, "c", 0)
	name := []byte("c")
	if n := testing.AllocsPerRun(100, func() { c.namedProducer(name) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// What was unused for a week of the log's time is forgotten when a producer is opened, and only then.
func TestProducersAge(t *testing.T) {
	c := new(Cursors)
	apply(t, c, opened(1, 1, 1000, "idle"), opened(2, 1, 1000, "busy"), opened(3, 1, 1001, ""))
	passTime(t, c, 2, 1, 1001, ProducerAgeNs)
	if _, _, err := c.JudgeBatch(batchOf(1, 1, 0, 1)); err != nil {
		t.Fatalf("a batch after any time is refused: %v", err)
	}
	apply(t, c, opened(4, 1, 1001+ProducerAgeNs, ""))
	if _, _, err := c.JudgeBatch(batchOf(1, 1, 0, 1)); !errors.Is(err, ErrUnknownProducer) {
		t.Errorf("after its time: %v", err)
	}
	for id := uint64(2); id <= 4; id++ {
		if _, known := c.producers.find(id); !known {
			t.Errorf("producer %d was forgotten early", id)
		}
	}
	next := c.producers.named("busy").next
	passTime(t, c, 4, 1, 1001+ProducerAgeNs, ProducerAgeNs+1)
	apply(t, c, opened(2, 2, 1002+2*ProducerAgeNs, "busy")) // known until now: it keeps its number
	if p := c.producers.named("busy"); p == nil || p.next != next || c.ProducerCount() != 2 {
		t.Errorf("%d producers are known, of them %+v", c.ProducerCount(), p)
	}
}

// A clock that is wrong by days, once or again and again, makes no producer older than an hour for each time, and
// neither do days without a producer: a leader with such a clock looks the same.
func TestProducersOutliveWrongClocks(t *testing.T) {
	const day, hour = 24 * ProducerStepNs, ProducerStepNs
	for _, tc := range []struct {
		name  string
		jumps []int64 // each of them once; after each, "busy" publishes and another producer is opened
		known bool    // is "idle" after all of them
	}{
		{"one of 8 days", []int64{8 * day}, true},
		{"one of years", []int64{4000 * day}, true},
		{"one of 8 days, then half a week in time", append([]int64{8 * day}, repeated(hour, 80)...), true},
		{"one of 8 days, then a week in time", append([]int64{8 * day}, repeated(hour, 168)...), false},
		{"100 of 8 days", repeated(8*day, 100), true},
		{"168 of 8 days, and one more", repeated(8*day, 169), false},
		{"a week in time", repeated(hour, 168), true},
		{"a week in time, and more", append(repeated(hour, 168), 1), false},
		{"back and forth: the log's times stand still", []int64{8 * day, 0, -8 * day, 8 * day, -day, day}, true},
	} {
		c, now := new(Cursors), int64(1)
		apply(t, c, opened(1, 1, now, "idle"), opened(2, 1, now, "busy"))
		for i, d := range tc.jumps {
			now += d
			if _, _, err := store(c, batchOf(2, 1, uint32(i), 1), now); err != nil {
				t.Fatalf("%s: the producer that is in use: %v", tc.name, err)
			}
			apply(t, c, opened(uint64(10+i%2), uint32(i+1), now, "other"+fmt.Sprint(i%2)))
		}
		if _, _, err := c.JudgeBatch(batchOf(1, 1, 0, 1)); (err == nil) != tc.known {
			t.Errorf("%s: the producer that is not in use: %v", tc.name, err)
		}
	}
}

func repeated(d int64, n int) (all []int64) {
	for range n {
		all = append(all, d)
	}
	return all
}

// The number of producers is bounded: the anonymous one that was unused for the longest time goes first. If all have
// names, none goes, and no other can be opened.
func TestProducersAreBounded(t *testing.T) {
	c := new(Cursors)
	for id := uint64(1); id <= MaxProducerCount; id++ {
		name := ""
		if id%2 == 0 {
			name = fmt.Sprint("p", id)
		}
		c.producers.open(&ProducerOpening{ID: id, Epoch: 1, TimeNs: int64(id), Name: name})
	}
	if _, _, err := store(c, batchOf(1, 1, 0, 1), 20_000); err != nil { // used last, among the anonymous
		t.Fatal(err)
	}
	for i := range MaxProducerCount / 2 {
		if !c.HasRoomForProducer("new", 20_000) {
			t.Fatalf("no room although %d have no names", MaxProducerCount/2-i)
		}
		last := i == MaxProducerCount/2-1
		if _, known := c.producers.find(1); !known {
			t.Fatal("the producer that was used last is forgotten first")
		}
		c.producers.open(&ProducerOpening{ID: uint64(10_000 + i), Epoch: 1, TimeNs: 20_000, Name: fmt.Sprint("n", i)})
		if n := c.ProducerCount(); n != MaxProducerCount {
			t.Fatalf("%d are known", n)
		}
		if _, known := c.producers.find(1); known == last {
			t.Fatal("the producer that was used last is not forgotten last")
		}
	}
	if c.HasRoomForProducer("new", 20_000) || c.HasRoomForProducer("", 20_000) || !c.HasRoomForProducer("p2", 20_000) ||
		c.HasRoomForProducer("new", 20_000+2*ProducerAgeNs) {
		t.Error("there is room for others than those who are known, or not for these")
	}
	passTime(t, c, 2, 1, 20_000, ProducerAgeNs+1)
	if !c.HasRoomForProducer("new", 20_001+ProducerAgeNs) {
		t.Error("there is no room although most are old")
	}
	checkFold(t, c)
	if got, most := int64(len(c.Append(nil))), c.MaxBytes(0); got > most || most > MaxProducerCount*MaxProducerBytes {
		t.Errorf("%d bytes, at most %d were foretold", got, most)
	}
}

// sentBatch is what a producer of the model has sent, and where it was stored.
type sentBatch struct {
	base, count uint32
	first       segment.MsgID
}

// modelProducer is a producer that remembers everything.
type modelProducer struct {
	id    uint64
	epoch uint32
	next  uint32
	sent  []sentBatch // of the epoch
}

// Producers send, send again and are opened again at random, and the fold is written and read in between. It judges as
// a model does that remembers everything: each message is stored once and in order. Now and then a leader's clock is
// days ahead.
func TestProducersModel(t *testing.T) {
	for seed := range uint64(200) {
		rng := rand.New(rand.NewPCG(seed, 17))
		c, now := new(Cursors), int64(1)
		var all []*modelProducer
		for step := range 300 {
			if now += rng.Int64N(1000); rng.IntN(20) == 0 {
				now += rng.Int64N(3 * ProducerAgeNs)
			}
			switch k := rng.IntN(20); {
			case k == 0 || len(all) == 0:
				o := ProducerOpening{Name: fmt.Sprint(rng.IntN(4))}
				c.FillOpening(&o, &segment.State{Next: segment.Position(step)}, now, 0)
				var p *modelProducer
				for _, q := range all {
					if q.id == o.ID {
						p = q
					}
				}
				if p == nil {
					p = &modelProducer{id: o.ID}
					all = append(all, p)
				}
				if o.Epoch != p.epoch+1 || o.Sequence != p.next {
					t.Fatalf("seed %d: opened as %+v, want %+v", seed, o, p)
				}
				p.epoch, p.sent = o.Epoch, nil
				apply(t, c, Control{Kind: ProducerOpened, Producer: o})
			case k == 1:
				back, rest, err := DecodeCursors(c.Append(nil))
				if err != nil || len(rest) != 0 {
					t.Fatal(err)
				}
				c = back
			default:
				p := all[rng.IntN(len(all))]
				base := p.next + rng.Uint32N(5)/3 - rng.Uint32N(9)
				h := batchOf(p.id, p.epoch-rng.Uint32N(20)/19, base, 1+rng.Uint32N(3))
				if n := len(p.sent); n > 0 && rng.IntN(2) == 0 {
					s := p.sent[n-1-min(n-1, rng.IntN(12))]
					h.BaseSequence, h.Count = s.base, s.count
				}
				wantFirst, wantRepeat, want := p.judge(c.End(), h)
				first, repeat, err := store(c, h, now)
				if first != wantFirst || repeat != wantRepeat || !errors.Is(err, want) {
					t.Fatalf("seed %d, step %d: id %d, repeat %v, %v; want %d, %v, %v",
						seed, step, first, repeat, err, wantFirst, wantRepeat, want)
				}
			}
		}
		checkFold(t, c)
	}
}

// judge says what must become of a batch, and remembers it if it is stored.
func (p *modelProducer) judge(end segment.MsgID, h *segment.Header) (segment.MsgID, bool, error) {
	switch {
	case h.ProducerEpoch != p.epoch:
		return 0, false, ErrFenced
	case h.BaseSequence == p.next:
		p.sent = append(p.sent, sentBatch{p.next, h.Count, end})
		p.next += h.Count
		return end, false, nil
	}
	for _, s := range p.sent[max(0, len(p.sent)-ProducerWindow):] {
		if s.base == h.BaseSequence && s.count == h.Count {
			return s.first, true, nil
		}
	}
	return 0, false, ErrSequence
}

// A batch of a producer costs no allocation.
func TestPublishBatchAllocs(t *testing.T) {
	c := producerFold(t)
	next := uint32(3)
	if n := testing.AllocsPerRun(100, func() {
		if _, _, err := store(c, batchOf(1, 1, next, 2), 300); err != nil {
			t.Fatal(err)
		}
		next += 2
	}); n > 0 {
		t.Errorf("%v allocations", n)
	}
}
