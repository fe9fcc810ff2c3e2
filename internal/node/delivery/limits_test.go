package delivery

import (
	"slices"
	"testing"

	"penstock/batch"
	"penstock/internal/node/fold"
	"penstock/segment"
)

func (b *busy) configure(s fold.ChannelSettings) {
	s.Version = b.c.Settings().Version + 1
	b.step(Event{Kind: EvConfigure, Settings: &s})
	if b.res.Err != nil {
		panic(b.res.Err)
	}
}

// B62: over any time, a channel hands out as many messages as its rate says, and never more than 10 ms ahead of it. The
// test asks again when NextDue says so, at the slowest and the fastest rates alike.
func TestRateIsKept(t *testing.T) {
	const start = 1_700_000_000_000
	for _, rate := range []uint32{1, 3, 1000, 70_001, 3_000_000} {
		b := newBusy(1 << 30)
		b.configure(fold.ChannelSettings{RatePerSecond: rate})
		seconds := min(20, 1+200_000/int64(rate))
		b.step(Event{Kind: EvVisible, End: segment.MsgID(int64(rate)*seconds) + 100_000})
		delivered := int64(0)
		for nowMs := int64(start); nowMs < start+seconds*1000; {
			b.now = nowMs * nsPerMs
			b.step(Event{Kind: EvTick})
			for b.c.Hungry() {
				if b.step(Event{Kind: EvOffer, Msg: b.next}); b.res.Decision == Deliver {
					b.next++
					delivered++
					b.finish(b.res.ID)
				}
			}
			if b.res.Why != HoldRate {
				t.Fatalf("rate %d: held for reason %d", rate, b.res.Why)
			}
			if most := 1 + (nowMs-start+RateBurstMs)*int64(rate)/1000; delivered > most {
				t.Fatalf("rate %d: %d messages after %d ms, at most %d", rate, delivered, nowMs-start, most)
			}
			due, ok := b.c.NextDue()
			if !ok || due <= nowMs {
				t.Fatalf("rate %d: at %d due at %d, %v", rate, nowMs, due, ok)
			}
			nowMs = due
		}
		if least := seconds * int64(rate) * 999 / 1000; delivered < least {
			t.Errorf("rate %d: %d messages in %d s", rate, delivered, seconds)
		}
	}
}

// B57: if one TakeControls cannot return all confirmations, the lane waits for the take that returns the last of them.
func TestOrderWaitsForTheWholeTake(t *testing.T) {
	const count = 2 * (MaxTakenRanges + 10)
	b := newBusy(count + 10)
	b.step(Event{Kind: EvVisible, End: count + 10})
	for range count {
		b.deliver()
	}
	for i := segment.MsgID(0); i < count-2; i += 2 {
		b.finish(batch.MakeID(0, i+1))
	}
	b.configure(fold.ChannelSettings{Order: fold.OrderPartition})
	for i := segment.MsgID(0); i < count; i += 2 {
		b.step(Event{Kind: EvDrop, ID: batch.MakeID(0, i)})
	}
	b.finish(batch.MakeID(0, count-1))
	b.step(Event{Kind: EvOffer, Msg: b.next})
	if b.res.Why != HoldOrder {
		t.Fatalf("held for reason %d", b.res.Why)
	}
	for takes := 1; b.c.HasControls(0); takes++ {
		b.c.TakeControls(0, nil)
		more := b.c.HasControls(0)
		b.step(Event{Kind: EvConfirmsCommitted, Take: b.c.LastTake(0)})
		b.step(Event{Kind: EvOffer, Msg: b.next})
		if released := b.res.Decision == Deliver; released == more {
			t.Fatalf("take %d: released %v, more to take %v", takes, released, more)
		}
	}
}

// After a restart, or at a new leader, the log of an ordered channel begins behind messages that wait for their time,
// all of which are carried: there is nothing to confirm, and the messages behind them do not wait for a commit. They
// would, until the first of those that wait, perhaps in a week, is finished.
func TestOrderGoesOnBehindCarriedMessages(t *testing.T) {
	const start, end = 3, 5
	var waiting []fold.DeferredMessage
	for m := range segment.MsgID(start) {
		waiting = append(waiting, fold.DeferredMessage{ID: m, DueMs: 1 << 40, At: 100})
	}
	b := &busy{c: NewChannel(ChannelConfig{Name: "c"})}
	b.step(Event{
		Kind: EvAddPartition, Start: start, End: end, Deferred: waiting,
		Cursor: &fold.Cursor{Name: "c", Settings: fold.ChannelSettings{Version: 1, Order: fold.OrderPartition}},
	})
	b.step(Event{Kind: EvSubscribe, Client: 1})
	b.step(Event{Kind: EvReady, Client: 1, Count: 1})
	b.step(Event{Kind: EvOffer, Msg: start})
	if b.res.Decision != Deliver || b.c.HasControls(0) {
		t.Errorf("decision %v, why %v, to take: %v", b.res.Decision, b.res.Why, b.c.HasControls(0))
	}
}

// One take has a bounded number of dead letters. The outbox shows them when their take is committed, one take after the
// other.
func TestDeadLettersOverManyTakes(t *testing.T) {
	const count = MaxTakenDead + 100
	b := newBusy(count)
	b.configure(fold.ChannelSettings{MaxAttempts: 1})
	b.step(Event{Kind: EvVisible, End: count})
	for range count {
		b.step(Event{Kind: EvRequeue, Client: 1, ID: b.deliver()})
	}
	log := &fold.Cursors{}
	ct := created("c", 0)
	if err := log.ApplyAt(&ct, count, 0); err != nil {
		t.Fatal(err)
	}
	for _, want := range []int{MaxTakenDead, count} {
		var body []byte
		for _, ct := range b.c.TakeControls(0, nil) {
			body = fold.AppendControl(body, &ct)
		}
		if err := log.ApplyBodyAt(body, count, 0); err != nil {
			t.Fatal(err)
		}
		b.step(Event{Kind: EvConfirmsCommitted, Take: b.c.LastTake(0)})
		if out := b.c.Outbox(0, nil); len(out) != want || !slices.Equal(out, log.Channel("c").Dead) {
			t.Fatalf("%d dead letters are committed, %d in the log; want %d", len(out), len(log.Channel("c").Dead), want)
		}
	}
	if b.c.HasControls(0) || log.Needed(0, count) != 0 || log.Channel("c").Confirmed != count {
		t.Errorf("more to take %v; needed %d, confirmed %d",
			b.c.HasControls(0), log.Needed(0, count), log.Channel("c").Confirmed)
	}
}

// B62: the channel's own sample has the configured size, and differs from a client's sample of the same percentage.
func TestChannelSample(t *testing.T) {
	const count = 10_000
	b := newBusy(count)
	b.step(Event{Kind: EvUnsubscribe, Client: 1})
	b.step(Event{Kind: EvSubscribe, Client: 2, SampleRate: 50})
	b.step(Event{Kind: EvReady, Client: 2, Count: count})
	b.configure(fold.ChannelSettings{SampleRate: 50})
	b.step(Event{Kind: EvVisible, End: count})
	delivered := 0
	for m := segment.MsgID(0); m < count; m++ {
		if b.step(Event{Kind: EvOffer, Msg: m}); b.res.Decision == Deliver {
			delivered++
		}
	}
	if delivered < count/4-300 || delivered > count/4+300 {
		t.Errorf("%d of %d messages pass two samples of a half", delivered, count)
	}
}

// keyed delivers, finishes, takes and commits messages of many keys, a run at a time.
func (b *busy) keyed(run, keys int) {
	b.step(Event{Kind: EvVisible, End: b.next + segment.MsgID(run)})
	for range run {
		b.step(Event{Kind: EvOffer, Msg: b.next, Key: 1 + uint64(b.next)%uint64(keys)})
		if b.res.Decision == Deliver {
			b.finish(b.res.ID)
		}
		b.next++
	}
	for b.c.lanes.parked > 0 || b.c.turns.queued > 0 || b.c.HasControls(0) {
		b.ctls = b.c.TakeControls(0, b.ctls[:0])
		b.step(Event{Kind: EvConfirmsCommitted, Take: b.c.LastTake(0)})
		for b.redeliver(); b.res.Decision == Deliver; b.redeliver() {
			b.finish(b.res.ID)
		}
	}
	b.now += nsPerMs
	b.step(Event{Kind: EvTick})
}

func newKeyed() *busy {
	b := newBusy(10_000)
	b.configure(fold.ChannelSettings{Order: fold.OrderKey})
	b.ctls = b.c.TakeControls(0, nil)
	b.step(Event{Kind: EvConfirmsCommitted, Take: b.c.LastTake(0)})
	return b
}

// An ordered channel of steady size allocates nothing either, except for its map of keys now and then.
func TestOrderedAllocs(t *testing.T) {
	b := newKeyed()
	for range 200 {
		b.keyed(2000, 700)
	}
	if n := testing.AllocsPerRun(100, func() { b.keyed(2000, 700) }); n > 1 {
		t.Errorf("%v allocations for 2000 messages", n)
	}
	if len(b.c.lanes.byKey) != 0 || b.c.entries.count != 0 {
		t.Errorf("%d lanes, %d entries are left", len(b.c.lanes.byKey), b.c.entries.count)
	}
}

// One operation is one message of 1000 keys: it is offered, perhaps parked, delivered, finished and committed.
func BenchmarkKeyOrdered(b *testing.B) {
	ch := newKeyed()
	b.ReportAllocs()
	for done := 0; done < b.N; done += 10_000 {
		ch.keyed(10_000, 1000)
	}
}

// One take has a bounded number of moved ranges. A new dead letter waits until all are taken, because one of them may
// be for the same id, from before a reset.
func TestDeadLettersWaitForWhatWasMoved(t *testing.T) {
	b := newBusy(1)
	b.configure(fold.ChannelSettings{MaxAttempts: 1})
	b.step(Event{Kind: EvVisible, End: 4 * MaxTakenRanges})
	p := b.c.part(0)
	for id := range segment.MsgID(MaxTakenRanges + 1) {
		p.outbox.moved.Add(2 * id)
	}
	b.step(Event{Kind: EvRequeue, Client: 1, ID: b.deliver()})
	kinds := func() (kinds []fold.ControlKind) {
		for _, c := range b.c.TakeControls(0, nil) {
			kinds = append(kinds, c.Kind)
		}
		return kinds
	}
	if got := kinds(); slices.Contains(got, fold.DeadLettered) || !slices.Contains(got, fold.DeadLetterMoved) {
		t.Errorf("the first take has %v", got)
	}
	if got := kinds(); !slices.Equal(got, []fold.ControlKind{fold.DeadLetterMoved, fold.DeadLettered}) {
		t.Errorf("the second take has %v", got)
	}
	if b.c.HasControls(0) {
		t.Errorf("there is more: %v", kinds())
	}
}

// A machine that learns from a partition's log that the channel skips says so: it cannot know since when. It is over
// once the channel does not skip.
func TestSkippedBefore(t *testing.T) {
	skipping, plain := fold.Cursor{Name: "c", Skipped: true}, fold.Cursor{Name: "c"}
	add := func(part uint32, cur *fold.Cursor) Event {
		return Event{Kind: EvAddPartition, Part: part, Cursor: cur}
	}
	skip := func(on bool) Event { return Event{Kind: EvSkip, Flag: on} }
	for name, tc := range map[string]struct {
		events []Event // at 5 ns and each a nanosecond later
		since  int64
		before bool
	}{
		"it does not skip":                  {[]Event{add(0, &plain)}, 0, false},
		"it is made to skip":                {[]Event{add(0, &plain), skip(true)}, 6, false},
		"it skips":                          {[]Event{add(0, &skipping)}, 5, true},
		"it skips, and is asked to":         {[]Event{add(0, &skipping), skip(true)}, 5, true},
		"it stops":                          {[]Event{add(0, &skipping), skip(false)}, 0, false},
		"it skips again":                    {[]Event{add(0, &skipping), skip(false), skip(true)}, 7, false},
		"a partition comes that skips, too": {[]Event{add(0, &plain), skip(true), add(1, &skipping)}, 6, true},
		"a partition comes that does not":   {[]Event{add(0, &plain), skip(true), add(1, &plain)}, 6, false},
	} {
		c := NewChannel(ChannelConfig{Name: "c"})
		var res Result
		for i := range tc.events {
			c.Step(int64(5+i), &tc.events[i], &res)
		}
		if s := c.Stats(); s.SkippedSinceNs != tc.since || s.SkippedBefore != tc.before {
			t.Errorf("%s: since %d, before: %v; want %d, %v", name, s.SkippedSinceNs, s.SkippedBefore, tc.since, tc.before)
		}
	}
}
