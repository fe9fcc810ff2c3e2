package delivery

import (
	"errors"
	"testing"

	"penstock/batch"
	"penstock/internal/node/fold"
	"penstock/segment"
)

// turnWorld is a channel whose partitions have many messages each.
type turnWorld struct {
	*busy
	t *testing.T
}

const turnsEnd = 1 << 20

func newTurns(t *testing.T, size, parts int) *turnWorld {
	b := &busy{c: NewChannel(ChannelConfig{TurnSize: size}), now: 1_700_000_000_000 * nsPerMs}
	for p := range parts {
		b.step(Event{Kind: EvAddPartition, Part: uint32(p), Cursor: &fold.Cursor{}, End: turnsEnd})
	}
	return &turnWorld{b, t}
}

func (w *turnWorld) subscribe(client ClientID, ready int, tag uint64, only uint32) {
	w.step(Event{Kind: EvSubscribe, Client: client, Tag: tag, Only: only})
	w.step(Event{Kind: EvReady, Client: client, Count: ready})
}

// pump delivers as package channel does, at most count messages, and calls got with each.
func (w *turnWorld) pump(count int, tag uint64, got func(*Result)) {
	for stay := false; count > 0; stay = true {
		if w.step(Event{Kind: EvNext, Flag: stay}); w.res.Decision != Read {
			return
		}
		next := w.res
		for n := next.Count; n > 0 && count > 0; n-- {
			ev := Event{Kind: EvOffer, Flag: next.Queued, Part: next.Part, Msg: next.ID.MsgID(), Tag: tag}
			if !next.Queued {
				ev.Msg = w.c.ReadFrom(next.Part)
			}
			if w.step(ev); w.res.Decision == Hold {
				break
			}
			if count--; w.res.Decision == Deliver {
				got(&w.res)
			}
			if next.Queued {
				break
			}
		}
	}
}

func (w *turnWorld) finishAll(ids []batch.ID) {
	for _, id := range ids {
		w.finish(id)
	}
}

// A backlog of messages that nobody takes, of a partition or with a tag whose consumers have gone, hides no message
// that somebody takes.
func TestBacklogOfNobodyHidesOthers(t *testing.T) {
	const backlog = 6000
	for name, c := range map[string]struct {
		tag         uint64 // of the backlog, and of its client
		only, other uint32
		otherTag    uint64
	}{
		"of a partition": {only: 1, other: 2},
		"of a tag":       {tag: 5, otherTag: 6, only: 1, other: 1},
		"without a tag":  {otherTag: 6, only: 1, other: 1},
	} {
		t.Run(name, func(t *testing.T) {
			w := newTurns(t, 0, 2)
			w.subscribe(1, backlog, c.tag, c.only)
			w.pump(backlog, c.tag, func(*Result) {})
			w.subscribe(2, 3, c.otherTag, c.other)
			count := 0
			if w.pump(3, c.otherTag, func(*Result) { count++ }); count != 3 {
				t.Fatalf("%d of 3 are delivered", count)
			}
			w.step(Event{Kind: EvUnsubscribe, Client: 2})
			w.step(Event{Kind: EvUnsubscribe, Client: 1}) // what it has comes first
			w.subscribe(3, 3, c.otherTag, c.other)
			again := 0
			w.pump(100, c.otherTag, func(r *Result) {
				if r.Attempts == 2 {
					again++
				}
			})
			if again == 0 {
				t.Errorf("%d messages that nobody takes hide 3 that come again", backlog)
			}
		})
	}
}

// The turns are fair whatever their lengths: here the clients take many messages and few in turn, so that one partition
// always begins where there is much room, and the other where there is little.
func TestTurnsOfDifferentLengths(t *testing.T) {
	for _, size := range []int{4, 64, 256} {
		w := newTurns(t, size, 2)
		w.subscribe(1, size+1, 0, 0)
		var of [2]int
		for range 50 {
			var ids []batch.ID
			w.pump(turnsEnd, 0, func(r *Result) {
				of[r.ID.Partition()]++
				ids = append(ids, r.ID)
			})
			w.finishAll(ids)
		}
		if d := of[0] - of[1]; d > 2*size || d < -2*size {
			t.Errorf("turns of %d: the partitions got %v", size, of)
		}
	}
}

// A message that comes again, one that is due and the new ones of each partition take turns with one another, for a
// client that takes one at a time.
func TestTurnsOfOneAtATime(t *testing.T) {
	w := newTurns(t, 0, 3)
	const due = 1000
	for p := range uint32(3) {
		var ds []fold.DeferredMessage
		for m := range segment.MsgID(due) {
			ds = append(ds, fold.DeferredMessage{ID: turnsEnd + m, DueMs: 1})
		}
		w.step(Event{Kind: EvDeferredPublished, Part: p, Deferred: ds})
		w.step(Event{Kind: EvVisible, Part: p, End: turnsEnd + due})
	}
	w.step(Event{Kind: EvTick})
	w.subscribe(1, 1, 0, 0)
	poison := batch.MakeID(1, 0)
	var fresh, late [3]int
	again := 0
	for range 700 {
		w.pump(1, 0, func(r *Result) {
			switch p := r.ID.Partition(); {
			case r.ID == poison:
				again++
				w.step(Event{Kind: EvRequeue, Client: 1, ID: r.ID})
				return
			case r.ID.MsgID() >= turnsEnd:
				late[p]++
			default:
				fresh[p]++
			}
			w.finish(r.ID)
		})
	}
	for p := range 3 {
		if fresh[p] < 95 || late[p] < 95 {
			t.Errorf("700 deliveries: new %v, due %v, again %d", fresh, late, again)
		}
	}
	if again < 95 {
		t.Errorf("700 deliveries: one message that fails had %d", again)
	}
}

// Requeues with a delay are refused, by name, before the gaps that they leave stop the delivery of new messages.
func TestDelaysLeaveRoomForNewMessages(t *testing.T) {
	const most = 40
	c := NewChannel(ChannelConfig{MaxRanges: most})
	b := &busy{c: c, now: 1_700_000_000_000 * nsPerMs}
	b.step(Event{Kind: EvAddPartition, Cursor: &fold.Cursor{}, End: 10 * most})
	b.step(Event{Kind: EvSubscribe, Client: 1})
	b.step(Event{Kind: EvReady, Client: 1, Count: 2})
	refused := 0
	for m := range segment.MsgID(10 * most) {
		if b.deliver(); m%2 == 1 {
			b.finish(b.res.ID)
			continue
		}
		id := b.res.ID
		if b.step(Event{Kind: EvRequeue, Client: 1, ID: id, DelayMs: 1000}); b.res.Err != nil {
			if !errors.Is(b.res.Err, ErrTooManyGaps) {
				t.Fatal(b.res.Err)
			}
			refused++
			b.finish(id)
		}
	}
	if refused == 0 {
		t.Error("no delay was refused")
	}
}

// The judgement is the same for all sources: what a message is, and how it came, decide; not where it was read.
func TestJudgement(t *testing.T) {
	const (
		atOnce = iota // from the reading cursor
		delayed
		again
		sources
	)
	settings := fold.ChannelSettings{SampleRate: 1, RatePerSecond: 1}
	for name, c := range map[string]struct {
		unwanted, own, sample, clientSample bool
		want                                [sources]Decision
	}{
		"nothing is against it": {want: [sources]Decision{Deliver, Deliver, Deliver}},
		"the filter":            {unwanted: true, want: [sources]Decision{Skip, Skip, Skip}},
		"the sample":            {sample: true, want: [sources]Decision{Skip, Skip, Skip}},
		"a client's sample":     {clientSample: true, want: [sources]Decision{Skip, Skip, Deliver}},
		"a client's sample, but it is own": {
			clientSample: true, own: true, want: [sources]Decision{Deliver, Deliver, Deliver},
		},
		"the filter, but it is own": {unwanted: true, own: true, want: [sources]Decision{Deliver, Deliver, Deliver}},
		"the sample, but it is own": {sample: true, own: true, want: [sources]Decision{Deliver, Deliver, Deliver}},
		"both, but it is own": {
			unwanted: true, sample: true, own: true, want: [sources]Decision{Deliver, Deliver, Deliver},
		},
		"the filter and the sample":   {unwanted: true, sample: true, want: [sources]Decision{Skip, Skip, Skip}},
		"own, and nothing against it": {own: true, want: [sources]Decision{Deliver, Deliver, Deliver}},
	} {
		for source, want := range c.want {
			w := newTurns(t, 0, 1)
			var id segment.MsgID // of a message that the sample leaves out
			w.c.settings.SampleRate = settings.SampleRate
			out := &client{sampleRate: 1}
			seed := w.c.cfg.SampleSeed
			for !w.c.outOfSample(batch.MakeID(0, id)) || !w.c.clients.sampledOut(out, batch.MakeID(0, id), seed) {
				id++
			}
			w.c.settings.SampleRate = 0
			reset := Event{Kind: EvReset, Msg: id}
			if source == delayed {
				reset.Deferred = []fold.DeferredMessage{{ID: id, DueMs: 1}}
			}
			w.step(reset)
			w.step(Event{Kind: EvTick})
			w.subscribe(1, 1, 0, 0)
			ev := Event{Kind: EvOffer, Msg: id}
			if source == again {
				w.step(ev)
				w.step(Event{Kind: EvRequeue, Client: 1, ID: batch.MakeID(0, id)})
			}
			s := fold.ChannelSettings{RatePerSecond: 1}
			if c.sample {
				s = settings
			}
			w.configure(s)
			if c.clientSample {
				w.c.clients.byID[1].sampleRate = 1
			}
			ev.Flag, ev.Unwanted, ev.Own = source != atOnce, c.unwanted, c.own
			if w.step(ev); w.res.Decision != want {
				t.Errorf("%s, source %d: decision %d, want %d", name, source, w.res.Decision, want)
			}
			spent := w.c.pace.messages.nextNs > w.now || w.c.clients.inFlight > 0
			if spent != (want == Deliver) {
				t.Errorf("%s, source %d: decision %d, and the rate or a place is used up: %v", name, source, want, spent)
			}
		}
	}
}

// B64: what failed before attempts were limited counts, too, at the next leader.
func TestAttemptsBeforeTheLimit(t *testing.T) {
	b := newBusy(1)
	b.step(Event{Kind: EvVisible, End: 1})
	b.step(Event{Kind: EvRequeue, Client: 1, ID: b.deliver()})
	log := &fold.Cursors{}
	ct := created("c", 0)
	if err := log.ApplyAt(&ct, 1, 0); err != nil {
		t.Fatal(err)
	}
	b.configure(fold.ChannelSettings{MaxAttempts: 5})
	takeAll(t, b.c, log, 1)
	if rs := log.Channel("c").Requeued; len(rs) != 1 || rs[0].Attempts != 1 {
		t.Errorf("the log knows %+v", rs)
	}
}
