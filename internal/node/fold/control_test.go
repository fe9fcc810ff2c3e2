package fold

import (
	"bufio"
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"

	"penstock/batch"
	"penstock/segment"
)

func ranges(bounds ...segment.MsgID) (out []IDRange) {
	for i := 0; i < len(bounds); i += 2 {
		out = append(out, IDRange{bounds[i], bounds[i+1]})
	}
	return out
}

func setOf(bounds ...segment.MsgID) (s IDSet) {
	for _, r := range ranges(bounds...) {
		s.AddRange(r)
	}
	return s
}

// sampleCursors is a fold with something in every field.
func sampleCursors() *Cursors {
	c := &Cursors{TopicPaused: true, HeldFrom: 90, end: 100}
	c.channels = []*Cursor{
		{
			Name: "audit", Start: 0, Confirmed: 10, Ranges: setOf(12, 15, 20, 21), Paused: true,
			Requeued: []Deferral{{ID: 11, DueMs: 1_700_000_000_123, Attempts: 3}, {ID: 30, DueMs: 0, Attempts: MaxAttempts}},
		},
		{Name: "mail", Start: 7, Confirmed: 100, Skipped: true},
	}
	c.Deferred = []DeferredMessage{{ID: 40, DueMs: 1_700_000_060_000, At: 4096}, {ID: 41, DueMs: 5, At: 0}}
	return c
}

type sampleControl struct {
	name string
	ct   Control
}

// sampleSettings are settings with something in every field.
func sampleSettings() ChannelSettings {
	return ChannelSettings{
		Version: 300, Order: OrderKey, KeyHeader: "account", MaxAttempts: 5, DeadLetter: "orders.failed",
		RatePerSecond: 70000,
		MaxInFlight:   1 << 31, SampleRate: 99,
		Filter: Filter{All: true, Invert: true, Rules: []Rule{
			{Header: "type", Match: MatchExact, Pattern: "refund"},
			{Header: "region", Match: MatchGlob, Pattern: "eu-*"},
			{Header: "trace", Match: MatchExists},
		}},
	}
}

// sampleCursors2 is a fold with contents that only version 2 can represent.
func sampleCursors2() *Cursors {
	c := sampleCursors()
	c.channels[0].Settings = sampleSettings()
	c.channels[0].Requeued[1].At = 70000
	c.channels[1].Dead = []DeadMessage{{ID: 2, Attempts: 5}, {ID: 9, Attempts: MaxAttempts}}
	c.Deferred[0].At = 8192
	c.carried = []carriedPlace{{30, 70000}, {40, 8192}}
	return c
}

// sampleControls2 have the kinds that came after version 1.
var sampleControls2 = func() []sampleControl {
	full, small := sampleSettings(), ChannelSettings{Version: 1}
	return []sampleControl{
		{"configured", Control{Kind: ChannelConfigured, Channel: "c", Settings: &full}},
		{"configured-to-the-defaults", Control{Kind: ChannelConfigured, Channel: "c", Settings: &small}},
		{
			"dead-lettered",
			Control{
				Kind: DeadLettered, Channel: "c", Dead: []DeadMessage{{ID: 0, Attempts: 1}, {ID: 70000, Attempts: MaxAttempts}},
			},
		},
		{"dead-letter-moved", Control{Kind: DeadLetterMoved, Channel: "c", Ranges: ranges(5, 8, 9, 10)}},
		{"carried", Control{Kind: DeferredCarried, Carried: []CarriedMessage{
			{
				ID: 7, DueMs: 1_700_000_000_000, CreatedNs: 1_600_000_000_000_000_000,
				Record: batch.AppendRecord(nil, &segment.Record{Body: []byte("body")}),
			},
			{
				ID: 300, CreatedNs: 5,
				Record: batch.AppendRecord(nil, &segment.Record{Headers: []segment.KV{{Key: []byte("k"), Value: []byte("v")}}}),
			},
		}}},
		{"checkpoint-v2", Control{Kind: Checkpoint, Cursors: sampleCursors2()}},
	}
}()

// sampleCursors3 is a fold with contents that only version 3 can represent.
func sampleCursors3() *Cursors {
	c := sampleCursors2()
	c.producers = producers{nameBytes: 4, newestNs: 1_700_000_000_000_000_000, all: []producer{
		{
			id: 5, epoch: 2, next: 3, usedNs: 1_700_000_000_000_000_000, name: "load", n: 2,
			last: [ProducerWindow]producedBatch{{first: 0, count: 4}, {first: 9, count: 1}},
		},
		{id: 1 << 63, epoch: 1},
	}}
	return c
}

// sampleControls3 have the kinds that came after version 2.
var sampleControls3 = []sampleControl{
	{"producer", Control{
		Kind:     ProducerOpened,
		Producer: ProducerOpening{ID: 1 << 60, Epoch: 7, TimeNs: 1_700_000_000_000_000_000, Name: "loader"},
	}},
	{"anonymous-producer", Control{Kind: ProducerOpened, Producer: ProducerOpening{ID: 1, Epoch: 1}}},
	{"checkpoint-v3", Control{Kind: Checkpoint, Cursors: sampleCursors3()}},
}

// sampleCursors4 is a fold with contents that only version 4 can represent.
func sampleCursors4() *Cursors {
	c := sampleCursors3()
	p := &c.producers.all[0]
	p.tenure, p.last[1].sum = 1_700_000_000_000<<20|7, 0xe3069283
	return c
}

// sampleControls4 have the kinds that came after version 3.
var sampleControls4 = []sampleControl{
	{"taken", Control{Kind: ProducerTaken, Producer: ProducerOpening{
		ID: 1 << 60, Epoch: 7, TimeNs: 1_700_000_000_000_000_000, Name: "loader", Tenure: 1_700_000_000_000<<20 | 7,
	}}},
	{"checkpoint-v4", Control{Kind: Checkpoint, Cursors: sampleCursors4()}},
}

// sampleControls5 have the kinds that came after version 4 of the fold.
var sampleControls5 = []sampleControl{
	{"producer-removed", Control{Kind: ProducerRemoved, Producer: ProducerOpening{ID: 1<<60 + 5}}},
}

// sampleCursors5 is a fold with settings that only version 5 can represent, and without producers.
func sampleCursors5() *Cursors {
	c := sampleCursors2()
	c.channels[0].Settings = sampleSettings2()
	return c
}

// sampleSettings2 are settings that only format 2 can represent.
func sampleSettings2() ChannelSettings {
	s := sampleSettings()
	s.RateBytes, s.Unknown = 5<<20, []byte{200, 1, 2, 7, 9} // tag 100
	return s
}

// sampleControls6 have what came with format 2 of a channel's settings.
var sampleControls6 = func() []sampleControl {
	s := sampleSettings2()
	few := ChannelSettings{Version: 1, RateBytes: 1, Unknown: []byte{200, 1, 0}}
	return []sampleControl{
		{"configured-2", Control{Kind: ChannelConfigured, Channel: "c", Settings: &s}},
		{"configured-unknown", Control{Kind: ChannelConfigured, Channel: "c", Settings: &few}},
		{"checkpoint-v5", Control{Kind: Checkpoint, Cursors: sampleCursors5()}},
	}
}()

var sampleControls = []sampleControl{
	{"created", Control{Kind: ChannelCreated, Channel: "c", ID: 300}},
	{"created-at-the-last-id", Control{Kind: ChannelCreated, Channel: "c#ephemeral", ID: segment.MaxMsgID + 1}},
	{"deleted", Control{Kind: ChannelDeleted, Channel: strings.Repeat("n", MaxChannelNameBytes)}},
	{"confirmed", Control{Kind: Confirmed, Channel: "c", Ranges: ranges(5, 8, 9, 10)}},
	{
		"confirmed-from-0-to-the-last-id",
		Control{Kind: Confirmed, Channel: "c", Ranges: ranges(0, 1, segment.MaxMsgID, segment.MaxMsgID+1)},
	},
	{
		"deferred",
		Control{
			Kind: Deferred, Channel: "c",
			Deferrals: []Deferral{{ID: 0, DueMs: 1_700_000_000_000, Attempts: 1}, {ID: 70000, DueMs: 1, Attempts: MaxAttempts}},
		},
	},
	{"paused", Control{Kind: ChannelPaused, Channel: "c", Flag: true}},
	{"unpaused", Control{Kind: ChannelPaused, Channel: "c"}},
	{"skipped", Control{Kind: ChannelSkipped, Channel: "c", Flag: true}},
	{"reset", Control{Kind: ChannelReset, Channel: "c", ID: 12}},
	{"topic-paused", Control{Kind: TopicPaused, Flag: true, ID: 128}},
	{"topic-emptied", Control{Kind: TopicEmptied, ID: 129}},
	{"epoch-start", Control{Kind: EpochStart, Epoch: 1 << 63}},
	{"checkpoint", Control{Kind: Checkpoint, Cursors: sampleCursors()}},
	{
		"checkpoint-without-channels",
		Control{Kind: Checkpoint, Cursors: &Cursors{Unclaimed: 3, Deferred: []DeferredMessage{{ID: 3, DueMs: 9, At: 1}}}},
	},
}

// The encoding of a version never changes: whatever was written can always be read.
func TestControlGolden(t *testing.T) {
	testGolden(t, "testdata/control-v1.txt", sampleControls)
	testGolden(t, "testdata/control-v2.txt", sampleControls2)
	testGolden(t, "testdata/control-v3.txt", sampleControls3)
	testGolden(t, "testdata/control-v4.txt", sampleControls4)
	testGolden(t, "testdata/control-v5.txt", sampleControls5)
	testGolden(t, "testdata/control-v6.txt", sampleControls6)
}

func testGolden(t *testing.T, path string, samples []sampleControl) {
	if *update {
		var out bytes.Buffer
		for _, s := range samples {
			fmt.Fprintf(&out, "%s %x\n", s.name, AppendControl(nil, &s.ct))
		}
		if err := os.WriteFile(path, out.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	golden := map[string]string{}
	for lines := bufio.NewScanner(f); lines.Scan(); {
		name, text, _ := strings.Cut(lines.Text(), " ")
		golden[name] = text
	}
	for _, s := range samples {
		t.Run(s.name, func(t *testing.T) {
			want, err := hex.DecodeString(golden[s.name])
			if err != nil || len(want) == 0 {
				t.Fatalf("no golden bytes: %v", err)
			}
			if got := AppendControl(nil, &s.ct); !bytes.Equal(got, want) {
				t.Errorf("encodes to %x, golden %x", got, want)
			}
			visits := 0
			err = DecodeControls(want, func(ct *Control) error {
				visits++
				if !sameControl(ct, &s.ct) {
					t.Errorf("decodes to %+v, want %+v", ct, s.ct)
				}
				return nil
			})
			if err != nil || visits != 1 {
				t.Errorf("%d entries, error %v", visits, err)
			}
		})
	}
}

// sameControl compares by value; an empty slice equals a nil one.
func sameControl(a, b *Control) bool {
	if (a.Cursors == nil) != (b.Cursors == nil) || a.Cursors != nil &&
		!bytes.Equal(a.Cursors.Append(nil), b.Cursors.Append(nil)) {
		return false
	}
	x, y := *a, *b
	x.Cursors, y.Cursors = nil, nil
	for _, c := range []*Control{&x, &y} {
		c.Ranges = append([]IDRange{}, c.Ranges...)
		c.Deferrals = append([]Deferral{}, c.Deferrals...)
		c.Dead = append([]DeadMessage{}, c.Dead...)
		c.Carried = append([]CarriedMessage{}, c.Carried...)
	}
	return reflect.DeepEqual(x, y)
}

func TestDecodeControlsSequence(t *testing.T) {
	var body []byte
	for _, s := range sampleControls {
		body = AppendControl(body, &s.ct)
	}
	i := 0
	err := DecodeControls(body, func(ct *Control) error {
		if !sameControl(ct, &sampleControls[i].ct) {
			t.Errorf("entry %d is %+v, want %+v", i, ct, sampleControls[i].ct)
		}
		i++
		return nil
	})
	if err != nil || i != len(sampleControls) {
		t.Fatalf("%d of %d entries, error %v", i, len(sampleControls), err)
	}
	stop := errors.New("stop")
	if err := DecodeControls(body, func(*Control) error { return stop }); err != stop {
		t.Errorf("the visitor's error came back as %v", err)
	}
	// Every proper prefix is an error unless it ends between two entries.
	for n := range body {
		whole := 0
		for _, s := range sampleControls {
			if whole >= n {
				break
			}
			whole += len(AppendControl(nil, &s.ct))
		}
		err := DecodeControls(body[:n], func(*Control) error { return nil })
		if whole == n && err != nil || whole != n && !errors.Is(err, ErrBadControl) {
			t.Fatalf("the first %d of %d bytes: error %v", n, len(body), err)
		}
	}
}

func TestDecodeControlsRefuses(t *testing.T) {
	entry := func(kind, flags, name, reserved byte, payload string, rest string) []byte {
		return append([]byte{kind, flags, name, reserved, byte(len(payload)), 0, 0, 0}, rest+payload...)
	}
	for _, tc := range []struct {
		name string
		body []byte
		want error
	}{
		{"kind 0", entry(0, 0, 0, 0, "", ""), ErrBadControl},
		{"newer kind", entry(19, 0, 0, 0, "", ""), ErrNewerControl},
		{"unknown flag", entry(5, 2, 1, 0, "", "c"), ErrBadControl},
		{"flag of a kind that has none", entry(2, 1, 1, 0, "", "c"), ErrBadControl},
		{"reserved byte", entry(2, 0, 1, 1, "", "c"), ErrBadControl},
		{"channel without a name", entry(2, 0, 0, 0, "", ""), ErrBadControl},
		{"name too long", entry(2, 0, 65, 0, "", strings.Repeat("c", 65)), ErrBadControl},
		{"name where none belongs", entry(9, 0, 1, 0, "\x01", "c"), ErrBadControl},
		{"payload too long", entry(2, 0, 1, 0, "\x01", "c"), ErrBadControl},
		{"payload missing", entry(1, 0, 1, 0, "", "c"), ErrBadControl},
		{"padded number", entry(1, 0, 1, 0, "\x81\x00", "c"), ErrBadControl},
		{"id too large", entry(1, 0, 1, 0, "\xff\xff\xff\xff\xff\xff\x7f", "c"), ErrBadControl},
		{"ranges that touch", entry(3, 0, 1, 0, "\x02\x05\x02\x00\x00", "c"), ErrBadControl},
		{"more ranges than bytes", entry(3, 0, 1, 0, "\x7f\x05\x02", "c"), ErrBadControl},
		{"deferral twice", entry(4, 0, 1, 0, "\x02\x05\x01\x01\x00\x01\x01", "c"), ErrBadControl},
		{"attempts too large", entry(4, 0, 1, 0, "\x01\x05\x01\x80\x80\x02", "c"), ErrBadControl},
		{"newer checkpoint", entry(11, 0, 0, 0, "\x06\x00\x00\x00\x00\x00\x00", ""), ErrNewerControl},
		{"producer without an id", entry(16, 0, 0, 0, "\x00\x00\x00\x00\x00\x00\x00\x00\x01\x00\x00", ""), ErrBadControl},
		{"removal of no producer", entry(18, 0, 0, 0, "\x00\x00\x00\x00\x00\x00\x00\x00", ""), ErrBadControl},
		{"name of a producer cut", entry(16, 0, 0, 0, "\x01\x00\x00\x00\x00\x00\x00\x00\x01\x00\x02n", ""), ErrBadControl},
		{"settings that must be known", entry(12, 0, 1, 0, "\x02\x01\x03\xc9\x01\x00", "c"), ErrNewerControl},
		{"newer settings", entry(12, 0, 1, 0, "\x03\x01\x00", "c"), ErrNewerControl},
		{"settings of format 2 that format 1 can say", entry(12, 0, 1, 0, "\x02\x01\x03\x0a\x01\x07", "c"), ErrBadControl},
		{"checkpoint of version 0", entry(11, 0, 0, 0, "\x00\x00\x00\x00\x00\x00\x00", ""), ErrBadControl},
		{"held from without pause", entry(11, 0, 0, 0, "\x01\x00\x00\x00\x01\x00\x00", ""), ErrBadControl},
	} {
		if err := DecodeControls(tc.body, func(*Control) error { return nil }); !errors.Is(err, tc.want) {
			t.Errorf("%s: error %v, want %v", tc.name, err, tc.want)
		}
	}
}

// Whatever decodes encodes to the same bytes. No input crashes the decoder, or makes it take more memory than a small
// multiple of the input.
func FuzzDecodeControls(f *testing.F) {
	var all []byte
	for _, s := range slices.Concat(sampleControls, sampleControls2, sampleControls3, sampleControls4, sampleControls6) {
		one := AppendControl(nil, &s.ct)
		f.Add(one)
		all = append(all, one...)
	}
	f.Add(all)
	f.Fuzz(func(t *testing.T, body []byte) {
		var again []byte
		err := DecodeControls(body, func(ct *Control) error {
			again = AppendControl(again, ct)
			return nil
		})
		if err == nil && !bytes.Equal(again, body) {
			t.Fatalf("%x decodes and encodes to %x", body, again)
		}
		if err != nil && !bytes.HasPrefix(body, again) {
			t.Fatalf("%x: entries before the error encode to %x", body, again)
		}
		// Folding is as safe as decoding.
		var c Cursors
		if c.ApplyBodyAt(body, 1000, 4096) == nil {
			checkFold(t, &c)
		}
	})
}

func FuzzDecodeCursors(f *testing.F) {
	f.Add(sampleCursors().Append(nil))
	f.Add(sampleCursors2().Append(nil))
	f.Add(sampleCursors3().Append(nil))
	f.Add(sampleCursors4().Append(nil))
	f.Add((&Cursors{}).Append(nil))
	f.Fuzz(func(t *testing.T, p []byte) {
		c, rest, err := DecodeCursors(p)
		if err != nil {
			if !errors.Is(err, ErrBadControl) && !errors.Is(err, ErrNewerControl) {
				t.Fatalf("untyped error %v", err)
			}
			return
		}
		if again := c.Append(nil); !bytes.Equal(again, p[:len(p)-len(rest)]) {
			t.Fatalf("%x decodes and encodes to %x", p, again)
		}
		checkFold(t, c)
	})
}

// checkFold asserts what must hold for every fold.
func checkFold(t *testing.T, c *Cursors) {
	t.Helper()
	for i, ch := range c.channels {
		if i > 0 && c.channels[i-1].Name >= ch.Name {
			t.Fatalf("channels %q, %q are not sorted", c.channels[i-1].Name, ch.Name)
		}
		checkRanges(t, &ch.Ranges)
		if first, ok := ch.Ranges.First(); ok && first.From <= ch.Confirmed {
			t.Fatalf("channel %q: range %v touches confirmed %d", ch.Name, first, ch.Confirmed)
		}
		for j, d := range ch.Dead {
			if j > 0 && ch.Dead[j-1].ID >= d.ID {
				t.Fatalf("channel %q: outbox %v", ch.Name, ch.Dead)
			}
		}
		for j, d := range ch.Requeued {
			if d.At != c.placeOf(d.ID) {
				t.Fatalf("channel %q: requeued %v is carried at %d", ch.Name, d, c.placeOf(d.ID))
			}
			if ch.IsConfirmed(d.ID) || j > 0 && ch.Requeued[j-1].ID >= d.ID {
				t.Fatalf("channel %q: requeued %v", ch.Name, ch.Requeued)
			}
		}
	}
	names, newest := int64(0), int64(0)
	for i, p := range c.producers.all {
		newest = max(newest, p.usedNs)
		if names += int64(len(p.name)); p.id == 0 || i > 0 && c.producers.all[i-1].id >= p.id {
			t.Fatalf("producers %v", c.producers.all)
		}
	}
	if newest != c.producers.newestNs {
		t.Fatalf("a producer was used at %d, and the last use of all was at %d", newest, c.producers.newestNs)
	}
	if names != c.producers.nameBytes || len(c.producers.all) > MaxProducerCount {
		t.Fatalf("%d producers have names of %d bytes, not %d", len(c.producers.all), names, c.producers.nameBytes)
	}
	for i, p := range c.carried {
		if !c.wanted(p.ID) || p.At <= 0 || i > 0 && c.carried[i-1].ID >= p.ID {
			t.Fatalf("carried messages %v", c.carried)
		}
	}
	for i, d := range c.Deferred {
		if at := c.placeOf(d.ID); at != 0 && at != d.At {
			t.Fatalf("delayed message %v is carried at %d", d, at)
		}
		if !c.wanted(d.ID) || i > 0 && c.Deferred[i-1].ID >= d.ID {
			t.Fatalf("delayed messages %v", c.Deferred)
		}
	}
	if back, rest, err := DecodeCursors(c.Append(nil)); err != nil || len(rest) != 0 {
		t.Fatalf("a fold that cannot be read back: %v", err)
	} else if !bytes.Equal(back.Append(nil), c.Append(nil)) || !bytes.Equal(c.Clone().Append(nil), c.Append(nil)) {
		t.Fatal("a fold's copy differs from it")
	}
}

func checkRanges(t *testing.T, s *IDSet) {
	t.Helper()
	for i, r := range s.Ranges() {
		if r.From >= r.To || i > 0 && s.Ranges()[i-1].To >= r.From {
			t.Fatalf("ranges %v are not in normal form", s.Ranges())
		}
	}
}
