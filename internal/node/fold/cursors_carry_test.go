package fold

import (
	"bytes"
	"errors"
	"slices"
	"testing"

	"penstock/batch"
	"penstock/segment"
)

func carriedControl(ids ...segment.MsgID) Control {
	ct := Control{Kind: DeferredCarried}
	for _, id := range ids {
		ct.Carried = append(ct.Carried, CarriedMessage{
			ID: id, CreatedNs: 1, Record: batch.AppendRecord(nil, &segment.Record{Body: []byte{byte(id)}}),
		})
	}
	return ct
}

// carryCase is a case with ten messages at offset 0, of which 4 was published with a delay and is at 40.
type carryCase struct {
	name     string
	controls []Control // the n-th is at offset n*1000
	below    segment.MsgID
	belowAt  segment.Offset
	max      int
	want     []CarrySource
	ok       bool
	needed   segment.MsgID
	from     segment.Offset
}

func carryCases() []carryCase {
	order := func(version uint64, o Order) Control {
		return Control{Kind: ChannelConfigured, Channel: "a", Settings: &ChannelSettings{Version: version, Order: o}}
	}
	wait := deferred("a", Deferral{ID: 2, DueMs: 9, Attempts: 1}, Deferral{ID: 7, DueMs: 9, Attempts: 1})
	done := confirmed("a", 0, 2, 3, 4, 5, 7)
	return []carryCase{
		{
			"requeued and published",
			[]Control{created("a", 0), wait, done},
			7, 99999, 9,
			[]CarrySource{{2, 0}, {4, 40}},
			true,
			2, 0,
		},
		{"a limit", []Control{created("a", 0), wait, done}, 7, 99999, 1, []CarrySource{{2, 0}}, true, 2, 0},
		{"unread", []Control{created("a", 0), wait, done}, 9, 99999, 9, nil, false, 2, 0},
		{"nothing below", []Control{created("a", 0), wait, done}, 2, 99999, 9, nil, true, 2, 0},
		{"carried", []Control{created("a", 0), wait, done, carriedControl(2, 4)}, 7, 4000, 9, nil, true, 7, 4000},
		{
			"carried further up",
			[]Control{created("a", 0), wait, done, carriedControl(2, 4)},
			7, 99999, 9,
			[]CarrySource{{2, 4000}, {4, 4000}},
			true, 7, 4000,
		},
		{
			"carried again",
			[]Control{created("a", 0), wait, done, carriedControl(2, 4), carriedControl(4)},
			7, 4500, 9,
			[]CarrySource{{2, 4000}},
			true, 7, 4000,
		},
		{
			"one left behind",
			[]Control{created("a", 0), wait, done, carriedControl(4)},
			7, 4000, 9,
			[]CarrySource{{2, 0}},
			true, 2, 4000,
		},
		{
			"carried and confirmed",
			[]Control{created("a", 0), wait, done, carriedControl(2, 4), confirmed("a", 2, 3)},
			7,
			99999, 9,
			[]CarrySource{{4, 4000}},
			true, 7, 4000,
		},
		{
			"confirmed before it was carried",
			[]Control{created("a", 0), wait, done, confirmed("a", 2, 3, 4, 5), carriedControl(2, 4)},
			7, 99999, 9, nil, true, 7,
			0,
		},
		{
			"requeued again",
			[]Control{created("a", 0), wait, done, carriedControl(2, 4), deferred("a", Deferral{ID: 2, DueMs: 99, Attempts: 2})},
			7, 99999, 9,
			[]CarrySource{{2, 4000}, {4, 4000}},
			true, 7, 4000,
		},
		{
			"published, carried, requeued",
			[]Control{created("a", 0), wait, done, carriedControl(4), deferred("a", Deferral{ID: 4, DueMs: 99, Attempts: 1})},
			7,
			99999, 9,
			[]CarrySource{{2, 0}, {4, 4000}},
			true, 2, 4000,
		},
		{"another channel reads", []Control{created("a", 0), created("b", 0), wait, done}, 7, 99999, 9, nil, false, 0, 0},
		{
			"another channel has it requeued",
			[]Control{
				created("a", 0), created("b", 0), wait, done, deferred("b", Deferral{ID: 2, DueMs: 5, Attempts: 1}),
				confirmed("b", 0, 2, 3, 10),
			},
			7, 99999, 9,
			[]CarrySource{{2, 0}, {4, 40}},
			true, 2, 0,
		},
		{
			"another channel would read what is carried",
			[]Control{created("a", 0), created("b", 0), wait, done, carriedControl(2, 4), confirmed("b", 0, 2)},
			3, 99999, 9,
			nil, false, 2, 5000,
		},
		{"in order", []Control{created("a", 0), order(1, OrderPartition), wait, done}, 7, 99999, 9, nil, false, 2, 0},
		{
			"in order since it is carried",
			[]Control{created("a", 0), wait, done, carriedControl(2, 4), order(1, OrderKey)},
			7,
			99999, 9,
			[]CarrySource{{2, 4000}, {4, 4000}},
			true, 7, 4000,
		},
		{
			"outbox",
			[]Control{
				created("a", 0), wait, done, {Kind: DeadLettered, Channel: "a", Dead: []DeadMessage{{ID: 1, Attempts: 2}}},
			},
			7, 99999, 9,
			[]CarrySource{{1, 0}, {2, 0}, {4, 40}},
			true, 1, 0,
		},
		{
			"outbox of one channel, waits in another",
			[]Control{
				created("a", 0), created("b", 0), done,
				{Kind: Confirmed, Channel: "b", Ranges: ranges(0, 4, 5, 7)},
				{Kind: Confirmed, Channel: "a", Ranges: ranges(0, 7)},
				{Kind: DeadLettered, Channel: "a", Dead: []DeadMessage{{ID: 4, Attempts: 2}}},
			},
			7, 99999, 9,
			[]CarrySource{{4, 40}},
			true, 4, 0,
		},
		{
			"outbox, carried before",
			[]Control{
				created("a", 0), wait, done, carriedControl(2, 4),
				{Kind: DeadLettered, Channel: "a", Dead: []DeadMessage{{ID: 2, Attempts: 2}}},
			},
			7, 99999, 9,
			[]CarrySource{{2, 4000}, {4, 4000}},
			true, 7, 4000,
		},
		{"moved", []Control{
			created("a", 0), wait, done, carriedControl(2, 4),
			{Kind: DeadLettered, Channel: "a", Dead: []DeadMessage{{ID: 2, Attempts: 2}}},
			{Kind: DeadLetterMoved, Channel: "a", Ranges: ranges(2, 3)},
		}, 7, 99999, 9, []CarrySource{{4, 4000}}, true, 7, 4000},
		{
			"a reset before it",
			[]Control{created("a", 0), wait, done, carriedControl(2, 4), {Kind: ChannelReset, Channel: "a", ID: 1}},
			7, 99999, 9,
			nil, false, 1, 4000,
		},
		{"no channel", nil, 7, 99999, 9, nil, false, 0, 0},
		{"no channel, emptied", []Control{{Kind: TopicEmptied, ID: 4}}, 5, 99999, 9, []CarrySource{{4, 40}}, true, 4, 0},
		{"no channel, carried", []Control{{Kind: TopicEmptied, ID: 4}, carriedControl(4)}, 5, 2000, 9, nil, true, 5, 2000},
		{
			"deleted",
			[]Control{created("a", 0), wait, done, carriedControl(2, 4), {Kind: ChannelDeleted, Channel: "a"}},
			7,
			99999, 9, nil, true, 10, 0,
		},
	}
}

// carryFold returns the fold of a case's controls.
func carryFold(t *testing.T, controls []Control) *Cursors {
	t.Helper()
	c := new(Cursors)
	c.Publish(0, 10)
	c.PublishDeferred([]DeferredMessage{{ID: 4, DueMs: 60, At: 40}})
	for i, ct := range controls {
		if err := c.ApplyBodyAt(AppendControl(nil, &ct), 10, segment.Offset(i+1)*1000); err != nil {
			t.Fatal(err)
		}
		c.Needed(0, 10) // its cache must not spoil later results
	}
	return c
}

func TestToCarry(t *testing.T) {
	for _, tc := range carryCases() {
		t.Run(tc.name, func(t *testing.T) {
			c := carryFold(t, tc.controls)
			got, ok := c.ToCarry(nil, Border{}, Border{tc.belowAt, tc.below}, tc.max)
			if !slices.Equal(got, tc.want) || ok != tc.ok {
				t.Errorf("to carry %v, %v; want %v, %v", got, ok, tc.want, tc.ok)
			}
			if n := c.Needed(0, 10); n != tc.needed {
				t.Errorf("needed %d, want %d", n, tc.needed)
			}
			if at, _ := c.CarriedFrom(0); at != tc.from {
				t.Errorf("carried from %d, want %d", at, tc.from)
			}
			checkFold(t, c)
			// B51: a backup is the same, whatever was carried.
			back, _, err := DecodeCursors(c.Append(nil))
			if err != nil || back.Needed(0, 10) != tc.needed {
				t.Errorf("read back: %v, needed %d", err, back.Needed(0, 10))
			}
		})
	}
}

// Messages that retention removed although a channel waits for them need no segment. Gone returns them, so that the
// channels drop them. Otherwise a round of carrying that is full of them would find nothing to carry, for ever.
func TestGone(t *testing.T) {
	// There are ten messages. 4 was published with a delay and is at 40, 2 and 7 were requeued, and the others below 8
	// are confirmed. The n-th control is at n*1000.
	wait := deferred("a", Deferral{ID: 2, DueMs: 9, Attempts: 1}, Deferral{ID: 7, DueMs: 9, Attempts: 1})
	done := confirmed("a", 0, 2, 3, 4, 5, 7)
	base := []Control{created("a", 0), wait, done}
	with := func(more ...Control) []Control { return append(slices.Clone(base), more...) }
	for _, tc := range []struct {
		name     string
		controls []Control
		start    Border
		max      int
		gone     []segment.MsgID
		carry    []CarrySource // result of ToCarry for the segments below message 8
		ok       bool
		carried  []CarrySource // result of CarriedBelow
	}{
		{"nothing", base, Border{0, 0}, 9, nil, []CarrySource{{2, 0}, {4, 40}, {7, 0}}, true, nil},
		{"some", base, Border{50, 5}, 9, []segment.MsgID{2, 4}, []CarrySource{{7, 0}}, true, nil},
		{"a limit", base, Border{50, 5}, 1, []segment.MsgID{2}, []CarrySource{{7, 0}}, true, nil},
		{"all", base, Border{90, 9}, 9, []segment.MsgID{2, 4, 7}, nil, true, nil},
		{
			"carried", with(carriedControl(2, 4)),
			Border{50, 5},
			9, nil,
			[]CarrySource{{7, 0}},
			true,
			[]CarrySource{{2, 4000}, {4, 4000}},
		},
		{
			"carried and published further up", with(carriedControl(2, 7)),
			Border{50, 5},
			9,
			[]segment.MsgID{4},
			nil, true,
			[]CarrySource{{2, 4000}},
		},
		{
			"the carried copy, too", with(carriedControl(2, 4), carriedControl(4)),
			Border{4500, 9},
			9,
			[]segment.MsgID{2, 7},
			nil, true,
			[]CarrySource{{4, 5000}},
		},
		{
			"in flight",
			[]Control{created("a", 0), wait, confirmed("a", 0, 2, 5, 7)},
			Border{50, 5},
			9,
			[]segment.MsgID{2, 4},
			[]CarrySource{{7, 0}},
			true, nil,
		},
		{
			"in flight further up",
			[]Control{created("a", 0), wait, confirmed("a", 0, 2, 6, 7)},
			Border{50, 5},
			9,
			[]segment.MsgID{2, 4},
			nil, false, nil,
		},
		{
			"another channel",
			with(created("b", 3), deferred("b", Deferral{ID: 3, DueMs: 5, Attempts: 1}), confirmed("b", 4, 9)),
			Border{50, 5},
			9,
			[]segment.MsgID{2, 3, 4},
			[]CarrySource{{7, 0}},
			true, nil,
		},
		{"no channel", []Control{{Kind: TopicEmptied, ID: 4}}, Border{50, 5}, 9, []segment.MsgID{4}, nil, false, nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := carryFold(t, tc.controls)
			if got := c.Gone(nil, tc.start, tc.max); !slices.Equal(got, tc.gone) {
				t.Errorf("gone %v, want %v", got, tc.gone)
			}
			if got, ok := c.ToCarry(nil, tc.start, Border{max(100, tc.start.At), 8}, 9); !slices.Equal(got, tc.carry) ||
				ok != tc.ok {
				t.Errorf("to carry %v, %v; want %v, %v", got, ok, tc.carry, tc.ok)
			}
			if got := c.CarriedBelow(nil, 0, tc.start, 9); !slices.Equal(got, tc.carried) {
				t.Errorf("only carried: %v, want %v", got, tc.carried)
			}
			if got := c.CarriedBelow(nil, 3, tc.start, 1); len(tc.carried) == 2 && !slices.Equal(got, tc.carried[1:]) {
				t.Errorf("only carried, the first from message 3 on: %v", got)
			}
		})
	}
}

func TestCarriedRecord(t *testing.T) {
	created := Control{Kind: ChannelCreated, Channel: "some", ID: 3}
	first, second := carriedControl(2, 4), carriedControl(9)
	body := AppendControl(AppendControl(AppendControl(nil, &created), &first), &second)
	for _, id := range []segment.MsgID{2, 4, 9} {
		m, err := CarriedRecord(body, id)
		if err != nil || m.ID != id {
			t.Fatalf("message %d: %+v, %v", id, m, err)
		}
		var it segment.RecordIter
		it.Reset(&segment.Header{Count: 1}, m.Record)
		if r, ok := it.Next(); !ok || !bytes.Equal(r.Body, []byte{byte(id)}) {
			t.Errorf("message %d: body %q, %v", id, r.Body, it.Err())
		}
	}
	if _, err := CarriedRecord(body, 3); !errors.Is(err, ErrBadControl) {
		t.Errorf("a message that is not there: %v", err)
	}
	if _, err := CarriedRecord(body[:len(body)-1], 2); !errors.Is(err, ErrBadControl) {
		t.Errorf("a damaged body: %v", err)
	}
}

// A batch that carries messages is folded with its offset, or not at all.
func TestCarriedWithoutPlace(t *testing.T) {
	ct := carriedControl(2)
	c := Cursors{}
	if err := c.ApplyBody(AppendControl(nil, &ct), 10); !errors.Is(err, ErrBadControl) {
		t.Errorf("without a place: %v", err)
	}
	if err := c.ApplyBodyAt(AppendControl(nil, &ct), 2, 5); !errors.Is(err, ErrBeyondEnd) {
		t.Errorf("beyond the end: %v", err)
	}
}

// A message keeps the place of its carried copy when the batch that holds the message is folded again.
func TestPublishDeferredOfCarried(t *testing.T) {
	c := Cursors{}
	c.Publish(0, 10)
	c.PublishDeferred([]DeferredMessage{{ID: 4, DueMs: 60, At: 40}})
	ct := carriedControl(4)
	if err := c.ApplyAt(&ct, 10, 5000); err != nil {
		t.Fatal(err)
	}
	c.PublishDeferred([]DeferredMessage{{ID: 4, DueMs: 70, At: 40}})
	if want := []DeferredMessage{{4, 70, 5000}}; !slices.Equal(c.Deferred, want) {
		t.Errorf("delayed %v, want %v", c.Deferred, want)
	}
	checkFold(t, &c)
}
