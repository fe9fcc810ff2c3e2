package delivery

import (
	"strconv"
	"testing"

	"penstock/batch"
	"penstock/internal/node/fold"
	"penstock/segment"
)

// busy is a channel with one client, which takes as many messages as it is given.
type busy struct {
	c    *Channel
	ev   Event
	res  Result
	next segment.MsgID
	now  int64
	ctls []fold.Control
}

func newBusy(ready int) *busy {
	b := &busy{c: NewChannel(ChannelConfig{Name: "c"}), now: 1_700_000_000_000 * nsPerMs}
	b.step(Event{Kind: EvAddPartition, Cursor: &fold.Cursor{}})
	b.step(Event{Kind: EvSubscribe, Client: 1})
	b.step(Event{Kind: EvReady, Client: 1, Count: ready})
	return b
}

func (b *busy) step(ev Event) {
	b.ev = ev
	b.c.Step(b.now, &b.ev, &b.res)
}

// redeliver offers the next queued message.
func (b *busy) redeliver() { b.res = redeliver(b.c, b.now, func(batch.ID) uint64 { return 0 }) }

// redeliver offers a queued message, of the source whose turn it is, as if nothing could be read at the reading
// cursors. tag says what a message's tag is.
func redeliver(c *Channel, now int64, tag func(batch.ID) uint64) (res Result) {
	defer func() { c.turns.changes++ }() // the cursors go on
	for {
		for _, p := range c.parts {
			if p != nil {
				c.Step(now, &Event{Kind: EvStall, Part: p.number}, &res)
			}
		}
		if c.Step(now, &Event{Kind: EvNext}, &res); res.Decision != Read {
			return res
		}
		ev := Event{
			Kind: EvOffer, Flag: true, Part: res.Part, Msg: res.ID.MsgID(), At: res.At, Index: res.Index, Tag: tag(res.ID),
		}
		if c.Step(now, &ev, &res); res.Decision != Hold || res.Why != HoldNoCredit {
			return res
		}
	}
}

// deliver offers the next message and returns its id.
func (b *busy) deliver() batch.ID {
	b.step(Event{Kind: EvOffer, Msg: b.next, At: segment.Offset(b.next)})
	if b.res.Decision != Deliver {
		panic("BUG: the busy client did not get its message")
	}
	b.next++
	return b.res.ID
}

func (b *busy) finish(id batch.ID) {
	b.step(Event{Kind: EvFinish, Client: 1, ID: id})
	if b.res.Err != nil {
		panic(b.res.Err)
	}
}

// round delivers and finishes count messages with window of them in flight.
func (b *busy) round(count, window int) {
	b.step(Event{Kind: EvVisible, End: b.next + segment.MsgID(count)})
	oldest := batch.MakeID(0, b.next)
	for i := range count {
		b.deliver()
		if i >= window {
			b.finish(oldest)
			oldest++
		}
	}
	for ; oldest.MsgID() < b.next; oldest++ {
		b.finish(oldest)
	}
	b.now += nsPerMs
	b.step(Event{Kind: EvTick})
	b.ctls = b.c.TakeControls(0, b.ctls[:0])
}

// runRound is throughRound with runs.
func (b *busy) runRound(count int) {
	b.step(Event{Kind: EvVisible, End: b.next + segment.MsgID(count)})
	var number uint64
	for left := count; left > 0; {
		r := b.c.NextRun(0)
		if r.Count == 0 {
			panic("BUG: the busy client may not get a run")
		}
		b.step(Event{Kind: EvOfferRun, Msg: b.next, At: segment.Offset(b.next), Count: r.Count})
		left, b.next, number = left-r.Count, b.next+segment.MsgID(r.Count), r.Number+uint64(r.Count)-1
	}
	b.step(Event{Kind: EvFinishThrough, Client: 1, Seen: number})
	if b.res.Err != nil || b.res.Count != count {
		panic("BUG: not all were finished")
	}
	b.now += nsPerMs
	b.step(Event{Kind: EvTick})
	b.ctls = b.c.TakeControls(0, b.ctls[:0])
}

// throughRound delivers count messages and finishes them through the last one.
func (b *busy) throughRound(count int) {
	b.step(Event{Kind: EvVisible, End: b.next + segment.MsgID(count)})
	for range count {
		b.deliver()
	}
	b.step(Event{Kind: EvFinishThrough, Client: 1, Seen: b.res.Number})
	if b.res.Err != nil || b.res.Count != count {
		panic("BUG: not all were finished")
	}
	b.now += nsPerMs
	b.step(Event{Kind: EvTick})
	b.ctls = b.c.TakeControls(0, b.ctls[:0])
}

func TestChannelAllocs(t *testing.T) {
	b := newBusy(1000)
	mixed := func() {
		b.round(1000, 200)
		b.step(Event{Kind: EvVisible, End: b.next + 2})
		first, second := b.deliver(), b.deliver()
		b.finish(second)
		b.step(Event{Kind: EvRequeue, Client: 1, ID: first, DelayMs: 1})
		b.now += 5 * nsPerMs
		b.step(Event{Kind: EvTick})
		b.redeliver()
		b.step(Event{Kind: EvTouch, Client: 1, ID: first})
		b.finish(first)
		b.throughRound(100)
		b.runRound(1000)
	}
	for range 300 { // the pools grow, and the wheel uses all its levels
		mixed()
	}
	if n := testing.AllocsPerRun(200, mixed); n != 0 {
		t.Errorf("%v allocations for 2102 messages", n)
	}
}

// One operation is one message: it is offered, delivered and finished.
func BenchmarkOfferFinish(b *testing.B) {
	for _, bench := range []struct {
		name   string
		window int
	}{{"window=1", 1}, {"window=200", 200}, {"window=2500", 2500}} {
		b.Run(bench.name, func(b *testing.B) {
			ch := newBusy(bench.window + 1)
			b.ReportAllocs()
			b.ResetTimer()
			for done := 0; done < b.N; {
				n := min(b.N-done, 10_000)
				ch.round(n, bench.window)
				done += n
			}
		})
	}
}

// One operation is one message: it is offered, delivered and finished together with the others of its round.
func BenchmarkOfferFinishThrough(b *testing.B) {
	for _, count := range []int{1, 200, 2500} {
		b.Run("count="+strconv.Itoa(count), func(b *testing.B) {
			ch := newBusy(count)
			b.ReportAllocs()
			for done := 0; done < b.N; done += count {
				ch.throughRound(count)
			}
		})
	}
}

// One operation is one message of a run that is finished with the others of its round.
func BenchmarkRun(b *testing.B) {
	for _, count := range []int{8, 200, 2500} {
		b.Run("count="+strconv.Itoa(count), func(b *testing.B) {
			ch := newBusy(count)
			b.ReportAllocs()
			for done := 0; done < b.N; done += count {
				ch.runRound(count)
			}
		})
	}
}

// The worst order for the confirmed ranges: every second message is finished first.
func BenchmarkOfferFinishScattered(b *testing.B) {
	const window = 2000
	ch := newBusy(window)
	b.ReportAllocs()
	for done := 0; done < b.N; done += window {
		ch.step(Event{Kind: EvVisible, End: ch.next + window})
		first := batch.MakeID(0, ch.next)
		for range window {
			ch.deliver()
		}
		for i := batch.ID(0); i < window; i += 2 {
			ch.finish(first + i)
		}
		for i := batch.ID(1); i < window; i += 2 {
			ch.finish(first + i)
		}
		ch.ctls = ch.c.TakeControls(0, ch.ctls[:0])
	}
}

func BenchmarkDecodeApply(b *testing.B) {
	c := fold.Cursors{}
	ct := created("a", 0)
	if err := c.ApplyAt(&ct, 0, 0); err != nil {
		b.Fatal(err)
	}
	var body []byte
	b.ReportAllocs()
	for i := range b.N {
		at := segment.MsgID(i) * 4
		ct := fold.Control{Kind: fold.Confirmed, Channel: "a", Ranges: []fold.IDRange{{From: at, To: at + 4}}}
		body = fold.AppendControl(body[:0], &ct)
		if err := c.ApplyBodyAt(body, at+4, 0); err != nil {
			b.Fatal(err)
		}
	}
}
