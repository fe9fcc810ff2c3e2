package delivery

import (
	"slices"
	"strings"
	"testing"

	"penstock/batch"
	"penstock/internal/node/fold"
	"penstock/segment"
)

// takeAll folds everything that the channel has for the partition's log and returns the number of takes.
func takeAll(t *testing.T, c *Channel, log *fold.Cursors, end segment.MsgID) (takes int) {
	t.Helper()
	for c.HasControls(0) {
		var body []byte
		for _, ct := range c.TakeControls(0, nil) {
			if len(ct.Ranges) > MaxTakenRanges || len(ct.Deferrals) > MaxTakenDeferrals {
				t.Fatalf("one take returns %d ranges, %d deferrals", len(ct.Ranges), len(ct.Deferrals))
			}
			body = fold.AppendControl(body, &ct)
		}
		if err := log.ApplyBodyAt(body, end, 0); err != nil {
			t.Fatal(err)
		}
		takes++
	}
	return takes
}

// However much has collected while the log took nothing, one take is bounded, and the takes together return all of it.
func TestTakeControlsIsBounded(t *testing.T) {
	const count = 4 * (MaxTakenRanges + 10)
	b := newBusy(count)
	b.step(Event{Kind: EvVisible, End: count})
	for range count {
		b.deliver()
	}
	for i := segment.MsgID(0); i < count; i += 4 {
		b.step(Event{Kind: EvRequeue, Client: 1, ID: batch.MakeID(0, count-4-i), DelayMs: int64(i) + 1})
		b.finish(batch.MakeID(0, i+1))
	}
	log := &fold.Cursors{}
	ct := created("c", 0)
	if err := log.ApplyAt(&ct, count, 0); err != nil {
		t.Fatal(err)
	}
	if takes := takeAll(t, b.c, log, count); takes != 2 {
		t.Errorf("%d takes", takes)
	}
	cur := log.Channel("c")
	if cur.Ranges.Len() != count/4 || len(cur.Requeued) != count/4 {
		t.Errorf("the log has %d ranges, %d delays; want %d", cur.Ranges.Len(), len(cur.Requeued), count/4)
	}
	checkFold(t, log)
}

// A message that is requeued and finished again and again, while the log takes nothing, must not make the list of
// unlogged delays grow.
func TestUnloggedDeferralsAreBounded(t *testing.T) {
	b := newBusy(10)
	for range 10_000 {
		b.step(Event{Kind: EvVisible, End: b.next + 1})
		id := b.deliver()
		b.step(Event{Kind: EvRequeue, Client: 1, ID: id, DelayMs: 1})
		b.now += 5 * nsPerMs
		b.step(Event{Kind: EvTick})
		b.redeliver()
		b.finish(id)
	}
	b.step(Event{Kind: EvVisible, End: b.next + 1})
	id := b.deliver()
	for range 10_000 {
		b.step(Event{Kind: EvRequeue, Client: 1, ID: id, DelayMs: 1})
		b.now += 5 * nsPerMs
		b.step(Event{Kind: EvTick})
		b.redeliver()
	}
	b.finish(id)
	if n := cap(b.c.part(0).log.deferrals); n > 64 {
		t.Errorf("%d unlogged delays are kept, no message waits", n)
	}
	if out := b.c.TakeControls(0, nil); len(out) != 1 || out[0].Kind != fold.Confirmed {
		t.Errorf("controls %+v", out)
	}
}

// An ephemeral channel collects nothing for a log that never takes it.
func TestEphemeralGathersNothing(t *testing.T) {
	c := NewChannel(ChannelConfig{Ephemeral: true})
	var res Result
	for _, ev := range []Event{
		{Kind: EvAddPartition, Cursor: &fold.Cursor{}, End: 9},
		{Kind: EvSubscribe, Client: 1},
		{Kind: EvReady, Client: 1, Count: 9},
		{Kind: EvOffer, Msg: 0},
		{Kind: EvOffer, Msg: 1},
		{Kind: EvOffer, Msg: 2},
		{Kind: EvFinish, Client: 1, ID: 0},
		{Kind: EvFinish, Client: 1, ID: 2},
		{Kind: EvRequeue, Client: 1, ID: 1, DelayMs: 5},
		{Kind: EvPause, Flag: true},
		{Kind: EvReset, Msg: 1},
	} {
		if c.Step(0, &ev, &res); c.part(0).log.unlogged.Len() != 0 {
			t.Fatalf("after %+v: gathered %v", ev, c.part(0).log.unlogged.Ranges())
		}
	}
	p := c.part(0)
	if len(p.log.deferrals) != 0 || p.log.resetUnlogged || c.HasControls(0) || c.TakeControls(0, nil) != nil {
		t.Errorf("gathered delays %v, reset %v", p.log.deferrals, p.log.resetUnlogged)
	}
}

// B64: attempts saturate, however often a message comes back.
func TestAttemptsSaturate(t *testing.T) {
	b := newBusy(1)
	b.step(Event{Kind: EvVisible, End: 1})
	id := b.deliver()
	for i := 2; i < fold.MaxAttempts+100; i++ {
		b.step(Event{Kind: EvRequeue, Client: 1, ID: id})
		b.redeliver()
		if want := min(i, fold.MaxAttempts); int(b.res.Attempts) != want {
			t.Fatalf("delivery %d has attempts %d", i, b.res.Attempts)
		}
	}
}

// B64: a delivery that is taken back is no attempt. It lowers the number only if it has raised it, so at the highest
// number it changes nothing.
func TestAttemptsTakenBack(t *testing.T) {
	b := newBusy(1)
	b.configure(fold.ChannelSettings{Order: fold.OrderPartition}) // only such deliveries are held, and may be given back
	b.c.TakeControls(0, nil)
	b.step(Event{Kind: EvConfirmsCommitted, Take: b.c.LastTake(0)})
	b.step(Event{Kind: EvHold, Client: 1, HoldMs: 1})
	b.step(Event{Kind: EvVisible, End: 1})
	id := b.deliver()
	attempts := func() int { return int(b.c.entries.get(id).attempts) }
	for _, c := range []struct{ before, after uint16 }{
		{1, 0},
		{2, 1},
		{fold.MaxAttempts - 1, fold.MaxAttempts - 2},
		{fold.MaxAttempts, fold.MaxAttempts - 1},
		{fold.MaxAttempts + 1, fold.MaxAttempts},
	} {
		b.step(Event{Kind: EvRequeue, Client: 1, ID: id, Seen: 1 << 60})
		b.c.entries.get(id).attempts = min(c.before-1, fold.MaxAttempts)
		if b.redeliver(); attempts() != int(min(c.before, fold.MaxAttempts)) {
			t.Fatalf("delivery %d counts as attempt %d", c.before, attempts())
		}
		b.step(Event{Kind: EvReturn, Client: 1, ID: id, Seen: b.res.Serial})
		if b.res.Err != nil || attempts() != int(c.after) {
			t.Errorf("delivery %d is taken back: %d attempts, want %d; %v", c.before, attempts(), c.after, b.res.Err)
		}
		b.now += 2 * returnPauseMs * nsPerMs
		b.step(Event{Kind: EvTick})
		b.redeliver()
	}
}

// The counts of deliveries and of finished messages include those of clients that have gone: they never go down.
func TestCountsOfGoneClients(t *testing.T) {
	b := newBusy(4)
	b.step(Event{Kind: EvVisible, End: 4})
	for range 3 {
		b.deliver()
	}
	b.finish(batch.MakeID(0, 0))
	want := func(delivered, finished uint64) {
		t.Helper()
		if s := b.c.Stats(); s.DeliverCount != delivered || s.FinishCount != finished {
			t.Fatalf("%d delivered, %d finished; want %d, %d", s.DeliverCount, s.FinishCount, delivered, finished)
		}
	}
	want(3, 1)
	b.step(Event{Kind: EvUnsubscribe, Client: 1})
	want(3, 1)
	b.step(Event{Kind: EvSubscribe, Client: 2})
	b.step(Event{Kind: EvReady, Client: 2, Count: 1})
	b.redeliver()
	want(4, 1)
}

// B62: the sample has the configured size and is the same at every replay. Another channel has another sample.
func TestSampling(t *testing.T) {
	const count = 10_000
	run := func(seed uint64, rate int) (taken []batch.ID) {
		c := NewChannel(ChannelConfig{SampleSeed: seed})
		var res Result
		for _, ev := range []Event{
			{Kind: EvAddPartition, Cursor: &fold.Cursor{}, End: count},
			{Kind: EvSubscribe, Client: 1, SampleRate: rate},
			{Kind: EvReady, Client: 1, Count: count},
		} {
			c.Step(0, &ev, &res)
		}
		for m := segment.MsgID(0); m < count; m++ {
			if c.Step(0, &Event{Kind: EvOffer, Msg: m}, &res); res.Decision == Deliver {
				taken = append(taken, res.ID)
			}
		}
		if c.ReadFrom(0) != count || c.Depth() != 0 {
			t.Fatalf("rate %d: read up to %d, depth %d", rate, c.ReadFrom(0), c.Depth())
		}
		return taken
	}
	for _, rate := range []int{1, 10, 50, 99} {
		n := len(run(1, rate))
		if want := count * rate / 100; n < want-300 || n > want+300 {
			t.Errorf("rate %d: %d of %d messages", rate, n, count)
		}
	}
	if len(run(1, 0)) != count || len(run(1, 100)) != count {
		t.Error("rates 0 and 100 take all")
	}
	if !slices.Equal(run(7, 30), run(7, 30)) || slices.Equal(run(7, 30), run(8, 30)) {
		t.Error("the sample is not a function of the seed")
	}
}

// A skipped channel with a hole far ahead, and one that retention overtakes by far, must not visit every message.
func TestDiscardFarIsCheap(t *testing.T) {
	const far = 1 << 40
	c := NewChannel(ChannelConfig{Name: "c"})
	var res Result
	for _, ev := range []Event{
		{Kind: EvAddPartition, Cursor: &fold.Cursor{}},
		{Kind: EvDeferredPublished, Deferred: []fold.DeferredMessage{{ID: 5, DueMs: 1 << 40}, {ID: far / 2, DueMs: 1 << 40}}},
		{Kind: EvVisible, End: far},
		{Kind: EvTrimmed, Start: far - 3},
		{Kind: EvSkip, Flag: true},
	} {
		c.Step(0, &ev, &res)
	}
	if want := ranges(0, 5, 6, far/2, far/2+1, far); c.OldestUnconfirmed(0) != 5 ||
		!slices.Equal(c.part(0).ranges.Ranges(), want[1:]) {
		t.Errorf("confirmed %d, %v", c.OldestUnconfirmed(0), c.part(0).ranges.Ranges())
	}
	if c.Depth() != 0 || c.Stats().DeferredCount != 2 || c.part(0).holes != 0 {
		t.Errorf("stats %+v, %d holes", c.Stats(), c.part(0).holes)
	}
}

// What retention has removed is in no count but in that of dropped messages: neither what was not read yet, nor what
// waits to come again, nor what a client gives back later. What was carried elsewhere stays.
//
// B67.
func TestTrimmedIsNotCounted(t *testing.T) {
	c := NewChannel(ChannelConfig{Name: "c"})
	var res Result
	steps := func(evs ...Event) {
		for _, ev := range evs {
			if c.Step(0, &ev, &res); res.Err != nil {
				t.Fatalf("%+v: %v", ev, res.Err)
			}
		}
	}
	expect := func(depth, dropped uint64, inFlight, deferred int) {
		t.Helper()
		s := c.Stats()
		if s.Depth != depth || s.DroppedCount != dropped || s.InFlightCount != inFlight || s.DeferredCount != deferred {
			t.Errorf("depth %d, dropped %d, in flight %d, deferred %d; want %d, %d, %d, %d",
				s.Depth, s.DroppedCount, s.InFlightCount, s.DeferredCount, depth, dropped, inFlight, deferred)
		}
	}
	steps(
		Event{Kind: EvAddPartition, Cursor: &fold.Cursor{}},
		Event{Kind: EvDeferredPublished, Deferred: []fold.DeferredMessage{{ID: 2, DueMs: 1 << 40, At: 20}}},
		Event{Kind: EvVisible, End: 10},
		Event{Kind: EvSubscribe, Client: 1}, Event{Kind: EvReady, Client: 1, Count: 3},
		Event{Kind: EvOffer, Msg: 0}, Event{Kind: EvOffer, Msg: 1, At: 10}, Event{Kind: EvOffer, Msg: 3, At: 30},
		Event{Kind: EvRequeue, Client: 1, ID: 0},
		Event{Kind: EvCarried, Deferred: []fold.DeferredMessage{{ID: 2, DueMs: 1 << 40, At: 900}}},
	)
	expect(7, 0, 2, 1)
	trim := Event{Kind: EvTrimmed, Start: 6, At: 60}
	steps(trim)
	expect(4, 3, 2, 1)
	steps(trim)
	expect(4, 3, 2, 1)
	steps(Event{Kind: EvRequeue, Client: 1, ID: 1, DelayMs: 1000})
	expect(4, 4, 1, 1)
	steps(Event{Kind: EvFinish, Client: 1, ID: 3})
	expect(4, 4, 0, 1)
	steps(Event{Kind: EvTrimmed, Start: 7, At: 1000})
	expect(3, 6, 0, 0)
	steps(
		Event{Kind: EvDeferredPublished, Deferred: []fold.DeferredMessage{{ID: 11, DueMs: 1 << 40, At: 1090}}},
		Event{Kind: EvTrimmed, Start: 12, At: 1100},
	)
	expect(0, 11, 0, 0)
	steps(Event{Kind: EvSkip, Flag: true}, Event{Kind: EvVisible, End: 15}, Event{Kind: EvTrimmed, Start: 14, At: 1400})
	expect(0, 11, 0, 0)
	steps(Event{Kind: EvTrimmed, Start: 17, At: 1700})
	if expect(0, 11, 0, 0); c.Stats().SkippedCount != 3 {
		t.Errorf("%d messages were skipped, want 3", c.Stats().SkippedCount)
	}
}

// Events that only a faulty program can send panic.
func TestChannelPanics(t *testing.T) {
	for name, events := range map[string][]Event{
		"no kind":               {{}},
		"unknown partition":     {{Kind: EvVisible, Part: 7}},
		"partition added twice": {{Kind: EvAddPartition, Cursor: &fold.Cursor{}}},
		"partition too large":   {{Kind: EvAddPartition, Part: batch.MaxPartition + 1, Cursor: &fold.Cursor{}}},
		"visible end goes back": {{Kind: EvVisible, End: 5}, {Kind: EvVisible, End: 4}},
		"subscribed twice":      {{Kind: EvSubscribe, Client: 1}, {Kind: EvSubscribe, Client: 1}},
	} {
		t.Run(name, func(t *testing.T) {
			defer func() {
				if text, _ := recover().(string); !strings.HasPrefix(text, "BUG: ") {
					t.Errorf("panic %q", text)
				}
			}()
			c := NewChannel(ChannelConfig{})
			var res Result
			c.Step(0, &Event{Kind: EvAddPartition, Cursor: &fold.Cursor{}}, &res)
			for _, ev := range events {
				c.Step(0, &ev, &res)
			}
		})
	}
}

// Compares the table with a map. The deletions make later slots move back.
func TestEntryTable(t *testing.T) {
	var table entryTable
	var pool entryPool
	model := map[batch.ID]*entry{}
	for i := range uint64(200_000) {
		id := batch.ID(mix(i) % 3000)
		if i%3 == 0 {
			id = batch.MakeID(uint32(i%5), segment.MsgID(mix(i)%800))
		}
		if got := table.get(id); got != model[id] {
			t.Fatalf("step %d: get(%v) = %p, want %p", i, id, got, model[id])
		}
		if e := model[id]; e != nil {
			table.remove(id)
			delete(model, id)
			pool.put(e)
		} else {
			model[id] = pool.get(id)
			table.put(model[id])
		}
		if table.count != len(model) {
			t.Fatalf("step %d: %d entries, want %d", i, table.count, len(model))
		}
	}
	table.each(func(e *entry) {
		if mix(uint64(e.id))%2 == 0 {
			table.remove(e.id)
			delete(model, e.id)
		}
	})
	seen := map[batch.ID]bool{}
	table.each(func(e *entry) { seen[e.id] = true })
	if len(seen) != len(model) || table.count != len(model) {
		t.Fatalf("%d entries after removing half, want %d", len(seen), len(model))
	}
	for id := range seen {
		if model[id] == nil || table.get(id) != model[id] {
			t.Fatalf("entry %v was removed", id)
		}
	}
}

// A message that has its turn and cannot be read waits for the delay. Its client keeps its credit, no attempt is
// counted, nothing is confirmed, and the message comes again.
func TestUnread(t *testing.T) {
	b := newBusy(1)
	b.step(Event{Kind: EvVisible, End: 2})
	id := b.deliver()
	b.step(Event{Kind: EvRequeue, Client: 1, ID: id})
	for range 3 {
		b.step(Event{Kind: EvStall})
		if b.step(Event{Kind: EvNext}); b.res.Decision != Read || !b.res.Queued || b.res.ID != id {
			t.Fatalf("got %+v, want to read %v", b.res, id)
		}
		b.step(Event{Kind: EvUnread, ID: id, DelayMs: 1000})
		if b.redeliver(); b.res.Decision != Hold {
			t.Fatalf("it comes again at once: %+v", b.res)
		}
		if !b.c.Hungry() || b.c.OldestUnconfirmed(0) != 0 {
			t.Fatal("its client has lost its credit, or it counts as confirmed")
		}
		b.now += 1001 * nsPerMs
		b.step(Event{Kind: EvTick})
	}
	b.step(Event{Kind: EvUnread, ID: id + 1}) // this message is not in flight
	if b.redeliver(); b.res.ID != id || b.res.Attempts != 2 {
		t.Fatalf("got %+v, want attempt 2 of %v", b.res, id)
	}
	b.finish(id)
	if b.c.OldestUnconfirmed(0) != 1 {
		t.Fatal("it was finished, and is not confirmed")
	}
}
