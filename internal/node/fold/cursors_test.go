package fold

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"penstock/segment"
)

// text formats a fold in one line, for tables.
func (c *Cursors) text() string {
	var b strings.Builder
	for _, ch := range c.channels {
		fmt.Fprintf(&b, "%s:%d-%d[%s]", ch.Name, ch.Start, ch.Confirmed, rangesText(ch.Ranges.Ranges()))
		for _, d := range ch.Requeued {
			fmt.Fprintf(&b, "+%d@%d/%d", d.ID, d.DueMs, d.Attempts)
		}
		if ch.Paused {
			b.WriteString(" paused")
		}
		if ch.Skipped {
			b.WriteString(" skipped")
		}
		if ch.Settings.Version != 0 {
			fmt.Fprintf(&b, " v%d", ch.Settings.Version)
		}
		for _, d := range ch.Dead {
			fmt.Fprintf(&b, " dead %d/%d", d.ID, d.Attempts)
		}
		b.WriteString("; ")
	}
	if len(c.channels) == 0 {
		fmt.Fprintf(&b, "unclaimed %d; ", c.Unclaimed)
	}
	if c.TopicPaused {
		fmt.Fprintf(&b, "held from %d; ", c.HeldFrom)
	}
	for _, d := range c.Deferred {
		fmt.Fprintf(&b, "%d@%d ", d.ID, d.DueMs)
	}
	for _, p := range c.producers.all {
		fmt.Fprintf(&b, "; producer %d %q epoch %d tenure %d next %d used %d %v", p.id, p.name, p.epoch,
			p.tenure, p.next, p.usedNs, p.last[:p.n])
	}
	return strings.TrimRight(b.String(), "; ")
}

func rangesText(rs []IDRange) string {
	var words []string
	for _, r := range rs {
		words = append(words, fmt.Sprintf("%d-%d", r.From, r.To))
	}
	return strings.Join(words, ",")
}

func created(name string, at segment.MsgID) Control {
	return Control{Kind: ChannelCreated, Channel: name, ID: at}
}

func confirmed(name string, bounds ...segment.MsgID) Control {
	return Control{Kind: Confirmed, Channel: name, Ranges: ranges(bounds...)}
}

func deferred(name string, ds ...Deferral) Control {
	return Control{Kind: Deferred, Channel: name, Deferrals: ds}
}

func configured(name string, version uint64) Control {
	return Control{Kind: ChannelConfigured, Channel: name, Settings: &ChannelSettings{Version: version}}
}

func dead(name string, ds ...DeadMessage) Control {
	return Control{Kind: DeadLettered, Channel: name, Dead: ds}
}

func moved(name string, bounds ...segment.MsgID) Control {
	return Control{Kind: DeadLetterMoved, Channel: name, Ranges: ranges(bounds...)}
}

// Every fold starts with 10 messages; 6 and 8 are delayed until 60 and 80.
var applyCases = []struct {
	name     string
	controls []Control
	want     string
	needed   segment.MsgID
	startFor segment.MsgID
}{
	{"nothing", nil, "unclaimed 0; 6@60 8@80", 0, 0},
	{"first channel", []Control{created("a", 0)}, "a:0-0[]; 6@60 8@80", 0, 10},
	{"second channel at the end", []Control{created("b", 0), created("a", 10)}, "a:10-10[]; b:0-0[]; 6@60 8@80", 0, 10},
	{"created twice", []Control{created("a", 3), created("a", 9)}, "a:3-3[]; 6@60 8@80", 3, 10},
	{"a first channel behind delayed messages", []Control{created("a", 7)}, "a:7-7[]; 8@80", 7, 10},
	// B45: only contiguous ranges raise Confirmed.
	{"confirmed out of order", []Control{created("a", 0), confirmed("a", 2, 4, 5, 6)}, "a:0-0[2-4,5-6]; 6@60 8@80", 0, 10},
	{
		"confirmed merges",
		[]Control{created("a", 0), confirmed("a", 2, 4, 5, 6), confirmed("a", 0, 2, 4, 5)},
		"a:0-6[]; 6@60 8@80", 6, 10,
	},
	{
		"confirmed twice",
		[]Control{created("a", 0), confirmed("a", 0, 2), confirmed("a", 0, 2)},
		"a:0-2[]; 6@60 8@80", 2,
		10,
	},
	// B50, B51: delays are updated, not doubled, and end with the confirmation.
	{
		"deferred",
		[]Control{
			created("a", 0), deferred("a", Deferral{ID: 3, DueMs: 30, Attempts: 1}, Deferral{ID: 5, DueMs: 50, Attempts: 2}),
		},
		"a:0-0[]+3@30/1+5@50/2; 6@60 8@80", 0, 10,
	},
	{
		"deferred again",
		[]Control{
			created("a", 0), deferred("a", Deferral{ID: 5, DueMs: 50, Attempts: 2}),
			deferred("a", Deferral{ID: 3, DueMs: 30, Attempts: 1}, Deferral{ID: 5, DueMs: 99, Attempts: 3}),
		},
		"a:0-0[]+3@30/1+5@99/3; 6@60 8@80", 0, 10,
	},
	{
		"deferred and confirmed",
		[]Control{
			created("a", 0), deferred("a", Deferral{ID: 3, DueMs: 30, Attempts: 1}, Deferral{ID: 5, DueMs: 50, Attempts: 2}),
			confirmed("a", 3, 4),
		},
		"a:0-0[3-4]+5@50/2; 6@60 8@80", 0, 10,
	},
	{
		"confirmed before deferred",
		[]Control{created("a", 0), confirmed("a", 0, 4), deferred("a", Deferral{ID: 3, DueMs: 30, Attempts: 1})},
		"a:0-4[]; 6@60 8@80", 4, 10,
	},
	{
		"delayed message confirmed by one of two",
		[]Control{created("a", 0), created("b", 0), confirmed("a", 0, 10)},
		"a:0-10[]; b:0-0[]; 6@60 8@80", 0, 10,
	},
	{
		"delayed message confirmed by both",
		[]Control{created("a", 0), created("b", 0), confirmed("a", 0, 10), confirmed("b", 6, 7)},
		"a:0-10[]; b:0-0[6-7]; 8@80", 0, 10,
	},
	{
		"delayed message of a deleted channel",
		[]Control{created("a", 0), created("b", 10), {Kind: ChannelDeleted, Channel: "a"}},
		"b:10-10[]", 10, 10,
	},
	// B52, B56
	{
		"reset forward",
		[]Control{
			created("a", 0), confirmed("a", 9, 10), deferred("a", Deferral{ID: 3, DueMs: 30, Attempts: 1}),
			{Kind: ChannelReset, Channel: "a", ID: 7},
		},
		"a:0-7[]; 8@80", 7, 10,
	},
	{
		"reset backward",
		[]Control{created("a", 5), confirmed("a", 5, 8), {Kind: ChannelReset, Channel: "a", ID: 2}},
		"a:2-2[]; 8@80", 2, 10,
	},
	// B53, B54
	{
		"flags",
		[]Control{
			created("a", 0), {Kind: ChannelPaused, Channel: "a", Flag: true}, {Kind: ChannelSkipped, Channel: "a", Flag: true},
		},
		"a:0-0[] paused skipped; 6@60 8@80", 0, 10,
	},
	{
		"flags off",
		[]Control{created("a", 0), {Kind: ChannelPaused, Channel: "a", Flag: true}, {Kind: ChannelPaused, Channel: "a"}},
		"a:0-0[]; 6@60 8@80", 0, 10,
	},
	// B72
	{"deleted", []Control{created("a", 0), {Kind: ChannelDeleted, Channel: "a"}}, "unclaimed 10", 10, 10},
	{
		"deleted, late controls",
		[]Control{
			created("a", 0), created("b", 0),
			{Kind: ChannelDeleted, Channel: "a"},
			confirmed("a", 0, 3),
			deferred("a", Deferral{ID: 4, DueMs: 1, Attempts: 1}),
			{Kind: ChannelPaused, Channel: "a"},
			{Kind: ChannelReset, Channel: "a", ID: 9},
		},
		"b:0-0[]; 6@60 8@80", 0, 10,
	},
	{"delete what never was", []Control{{Kind: ChannelDeleted, Channel: "a"}}, "unclaimed 0; 6@60 8@80", 0, 0},
	{
		"created anew",
		[]Control{created("a", 0), {Kind: ChannelDeleted, Channel: "a"}, created("a", 10)},
		"a:10-10[]", 10,
		10,
	},
	{
		"topic paused",
		[]Control{created("a", 0), {Kind: TopicPaused, Flag: true, ID: 7}},
		"a:0-0[]; held from 7; 6@60 8@80",
		0, 7,
	},
	{
		"topic unpaused",
		[]Control{created("a", 0), {Kind: TopicPaused, Flag: true, ID: 7}, {Kind: TopicPaused}},
		"a:0-0[]; 6@60 8@80", 0, 10,
	},
	{
		"last channel deleted while paused",
		[]Control{created("a", 0), {Kind: TopicPaused, Flag: true, ID: 7}, {Kind: ChannelDeleted, Channel: "a"}},
		"unclaimed 7; held from 7; 8@80", 7, 7,
	},
	{"topic emptied without channels", []Control{{Kind: TopicEmptied, ID: 8}}, "unclaimed 8; 8@80", 8, 8},
	{
		"topic emptied while paused, without channels",
		[]Control{{Kind: TopicPaused, Flag: true, ID: 7}, {Kind: TopicEmptied, ID: 8}},
		"unclaimed 8; held from 8; 8@80", 8, 8,
	},
	{"topic emptied, nothing held", []Control{created("a", 0), {Kind: TopicEmptied, ID: 8}}, "a:0-0[]; 6@60 8@80", 0, 10},
	{
		"topic emptied while paused",
		[]Control{created("a", 0), created("b", 9), {Kind: TopicPaused, Flag: true, ID: 7}, {Kind: TopicEmptied, ID: 9}},
		"a:0-0[7-9]; b:9-9[]; held from 9; 6@60", 0, 9,
	},
	{"configured", []Control{created("a", 0), configured("a", 3)}, "a:0-0[] v3; 6@60 8@80", 0, 10},
	{
		"configured by a latecomer",
		[]Control{created("a", 0), configured("a", 3), configured("a", 2)},
		"a:0-0[] v3; 6@60 8@80", 0, 10,
	},
	{
		"settings of a channel that was deleted",
		[]Control{
			created("a", 0), configured("a", 3), {Kind: ChannelDeleted, Channel: "a"}, configured("a", 4), created("a", 10),
		},
		"a:10-10[]", 10, 10,
	},
	// B64: one entry confirms a message and puts it into the outbox. The outbox keeps it needed, and its delay is
	// forgotten.
	{
		"dead",
		[]Control{created("a", 0), dead("a", DeadMessage{ID: 0, Attempts: 3}, DeadMessage{ID: 1, Attempts: 4})},
		"a:0-2[] dead 0/3 dead 1/4; 6@60 8@80", 0, 10,
	},
	{
		"dead, delayed",
		[]Control{created("a", 0), confirmed("a", 0, 6, 7, 10), dead("a", DeadMessage{ID: 6, Attempts: 3})},
		"a:0-10[] dead 6/3; 6@60", 6, 10,
	},
	{
		"dead twice",
		[]Control{
			created("a", 0), dead("a", DeadMessage{ID: 1, Attempts: 3}),
			{Kind: ChannelReset, Channel: "a", ID: 0},
			dead("a", DeadMessage{ID: 1, Attempts: 5}),
		},
		"a:0-0[1-2] dead 1/5; 6@60 8@80", 0, 10,
	},
	{
		"dead and moved",
		[]Control{created("a", 0), confirmed("a", 0, 6, 7, 10), dead("a", DeadMessage{ID: 6, Attempts: 3}), moved("a", 6, 7)},
		"a:0-10[]", 10, 10,
	},
	{
		"moved in part, and what is not there",
		[]Control{
			created("a", 0), dead("a", DeadMessage{ID: 0, Attempts: 3}, DeadMessage{ID: 2, Attempts: 3}), moved("a", 0, 1, 4, 9),
		},
		"a:0-1[2-3] dead 2/3; 6@60 8@80", 1, 10,
	},
	{
		"dead of a deleted channel",
		[]Control{
			created("a", 0), {Kind: ChannelDeleted, Channel: "a"}, dead("a", DeadMessage{ID: 0, Attempts: 3}), moved("a", 0, 1),
		},
		"unclaimed 10", 10, 10,
	},
	{
		"a reset leaves the outbox",
		[]Control{created("a", 0), dead("a", DeadMessage{ID: 2, Attempts: 3}), {Kind: ChannelReset, Channel: "a", ID: 10}},
		"a:0-10[] dead 2/3", 2, 10,
	},
	{"epoch start", []Control{{Kind: EpochStart, Epoch: 4}}, "unclaimed 0; 6@60 8@80", 0, 0},
	{"checkpoint", []Control{created("z", 0), {Kind: Checkpoint, Cursors: &Cursors{Unclaimed: 4}}}, "unclaimed 4", 4, 4},
}

func TestCursorsApply(t *testing.T) {
	for _, tc := range applyCases {
		t.Run(tc.name, func(t *testing.T) {
			c := Cursors{}
			c.Publish(0, 10)
			c.PublishDeferred([]DeferredMessage{{ID: 6, DueMs: 60}, {ID: 8, DueMs: 80}})
			var body []byte
			for _, ct := range tc.controls {
				body = AppendControl(body, &ct)
			}
			if err := c.ApplyBody(body, 10); err != nil {
				t.Fatal(err)
			}
			if got := c.text(); got != tc.want {
				t.Errorf("fold is\n %s, want\n %s", got, tc.want)
			}
			if got := c.Needed(0, 10); got != tc.needed {
				t.Errorf("Needed %d, want %d", got, tc.needed)
			}
			if got := c.StartFor(10); got != tc.startFor {
				t.Errorf("StartFor %d, want %d", got, tc.startFor)
			}
			checkFold(t, &c)
		})
	}
}

// B69: an entry that names messages beyond the end of the log is never folded.
func TestCursorsBeyondEnd(t *testing.T) {
	for _, ct := range []Control{
		created("b", 11), confirmed("a", 9, 11), deferred("a", Deferral{ID: 10, DueMs: 1, Attempts: 1}),
		{Kind: ChannelReset, Channel: "a", ID: 11},
		dead("a", DeadMessage{ID: 10, Attempts: 1}),
		{Kind: TopicPaused, Flag: true, ID: 11},
		{Kind: TopicEmptied, ID: 11},
	} {
		c := Cursors{}
		if err := c.Apply(&Control{Kind: ChannelCreated, Channel: "a"}, 10); err != nil {
			t.Fatal(err)
		}
		if err := c.Apply(&ct, 10); !errors.Is(err, ErrBeyondEnd) {
			t.Errorf("%+v: error %v", ct, err)
		}
		if c.text() != "a:0-0[]" {
			t.Errorf("%+v: folded to %s", ct, c.text())
		}
	}
	if err := (&Cursors{}).Apply(&Control{Kind: lastControlKind + 1}, 0); !errors.Is(err, ErrNewerControl) {
		t.Errorf("a newer kind: %v", err)
	}
}

func TestCursorsPublishDeferred(t *testing.T) {
	c := Cursors{}
	c.Publish(0, 10)
	c.PublishDeferred([]DeferredMessage{{ID: 4, DueMs: 40, At: 4}, {ID: 2, DueMs: 20, At: 2}})
	c.PublishDeferred([]DeferredMessage{{ID: 4, DueMs: 45, At: 400}}) // B51: carried to the tail
	if want := []DeferredMessage{{2, 20, 2}, {4, 45, 400}}; !slices.Equal(c.Deferred, want) {
		t.Fatalf("delayed messages %v, want %v", c.Deferred, want)
	}
	for _, ct := range []Control{created("a", 0), confirmed("a", 0, 5)} {
		if err := c.Apply(&ct, 10); err != nil {
			t.Fatal(err)
		}
	}
	c.PublishDeferred([]DeferredMessage{{ID: 4, DueMs: 50, At: 500}}) // no channel waits for it any more
	if len(c.Deferred) != 0 || c.End() != 10 {
		t.Fatalf("delayed messages %v, end %d", c.Deferred, c.End())
	}
	c.Publish(10, 3)
	if c.End() != 13 {
		t.Fatalf("end %d", c.End())
	}
}

func TestCursorsAccess(t *testing.T) {
	c := sampleCursors()
	var names []string
	c.Each(func(ch *Cursor) { names = append(names, ch.Name) })
	if !slices.Equal(names, []string{"audit", "mail"}) || c.Len() != 2 {
		t.Fatalf("channels %v, %d", names, c.Len())
	}
	if c.Channel("mail") == nil || c.Channel("mai") != nil || c.Channel("zzz") != nil {
		t.Fatal("Channel finds the wrong cursors")
	}
	dup := c.Clone()
	before := c.Append(nil)
	for _, ct := range []Control{
		confirmed("audit", 10, 12), deferred("audit", Deferral{ID: 50, DueMs: 1, Attempts: 1}),
		{Kind: ChannelDeleted, Channel: "mail"},
	} {
		if err := dup.Apply(&ct, 100); err != nil {
			t.Fatal(err)
		}
	}
	if !bytes.Equal(c.Append(nil), before) {
		t.Fatal("changing a clone changes the original")
	}
}

// Folding confirmations of known channels, the steady state, allocates nothing.
func TestCursorsAllocs(t *testing.T) {
	c := Cursors{}
	at := segment.MsgID(0)
	for _, name := range []string{"a", "b"} {
		ct := created(name, 0)
		if err := c.Apply(&ct, 0); err != nil {
			t.Fatal(err)
		}
	}
	var body []byte
	rs := make([]IDRange, 1)
	step := func() {
		body = body[:0]
		for _, name := range []string{"a", "b"} {
			rs[0] = IDRange{at, at + 4}
			ct := Control{Kind: Confirmed, Channel: name, Ranges: rs}
			body = AppendControl(body, &ct)
		}
		at += 4
		c.Publish(at-4, 4)
		if err := c.ApplyBody(body, at); err != nil {
			t.Fatal(err)
		}
	}
	step()
	// One allocation for the decoder's reusable slice, the others for closures.
	if n := testing.AllocsPerRun(100, step); n > 4 {
		t.Errorf("%v allocations per body", n)
	}
}

// The fold's two list operations, compared with their plain definitions.
func TestCursorsListsModel(t *testing.T) {
	for seed := range uint64(300) {
		rng := rand.New(rand.NewPCG(seed, 5))
		ch := &Cursor{Name: "c", Confirmed: segment.MsgID(rng.IntN(10))}
		model := map[segment.MsgID]Deferral{}
		for round := range 20 {
			var ds []Deferral
			var set IDSet
			for id := range segment.MsgID(60) {
				if rng.IntN(6) == 0 {
					ds = append(ds, Deferral{ID: id, DueMs: int64(round), Attempts: uint16(rng.IntN(5))})
				}
				if rng.IntN(9) == 0 {
					set.Add(id)
				}
			}
			ch.requeue(ds)
			for _, d := range ds {
				if d.ID >= ch.Confirmed {
					model[d.ID] = d
				}
			}
			drop := func(d Deferral) bool { return d.ID%3 != 0 }
			ch.Requeued = RemoveWithin(ch.Requeued, set.Ranges(), Deferral.id, drop)
			var want []Deferral
			for id := range segment.MsgID(60) {
				d, ok := model[id]
				if ok && set.Contains(id) && drop(d) {
					delete(model, id)
				} else if ok {
					d.Recent = true
					want = append(want, d)
				}
			}
			if !slices.Equal(ch.Requeued, want) {
				t.Fatalf("seed %d: delays\n %v, want\n %v", seed, ch.Requeued, want)
			}
		}
	}
}

// ShiftDue moves what the last epoch has stored, and nothing else: neither what was deferred before, nor what was
// carried into it. What no right clock could have stored is moved wherever it is from, and segments that begin with the
// fold change nothing.
func TestShiftDue(t *testing.T) {
	c := &Cursors{}
	apply := func(cts ...Control) {
		t.Helper()
		for i := range cts {
			must(t, c.ApplyAt(&cts[i], 99, 50))
		}
	}
	apply(created("a", 0), deferred("a",
		Deferral{ID: 1, DueMs: 5000}, Deferral{ID: 3, DueMs: 9001}, Deferral{ID: 4, DueMs: 5000}))
	c.PublishDeferred([]DeferredMessage{{ID: 2, DueMs: 4000, At: 7}, {ID: 5, DueMs: 4000, At: 8}})
	apply(Control{Kind: EpochStart, Epoch: 2}, Control{Kind: Checkpoint, Cursors: c.Clone()})
	apply(deferred("a", Deferral{ID: 4, DueMs: 6000}, Deferral{ID: 6, DueMs: 100}),
		Control{Kind: DeferredCarried, Carried: []CarriedMessage{{ID: 5, DueMs: 4000}}})
	c.PublishDeferred([]DeferredMessage{{ID: 7, DueMs: 4000, At: 20}})
	back, _, err := DecodeCursors(c.Append(nil))
	must(t, err)
	apply(Control{Kind: Checkpoint, Cursors: back})
	if n := c.ShiftDue(-1000, 20, 9000); n != 4 {
		t.Errorf("%d were moved", n)
	}
	if got, want := c.text(), "a:0-0[]+1@5000/0+3@8001/0+4@5000/0+6@0/0; 2@4000 5@4000 7@3000"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
	c.BeginEpoch()
	if n := c.ShiftDue(-1000, 21, 9000); n != 0 {
		t.Errorf("%d were moved for another epoch, which stored none", n)
	}
}
