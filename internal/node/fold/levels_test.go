package fold

import (
	"bytes"
	"reflect"
	"testing"

	"penstock/segment"
)

// A version that does not know a kind of entry may still read a fold that was written after such an entry, in the first
// batch of a later segment. Nothing that the entry did may then be missing. It is not, because the fold contains the
// effects of all entries, and a version refuses a fold that it cannot read in full. So after any number of entries of
// any kinds, a fold that is written and read must develop like the one that was written.
func TestFoldSaysWhatItsEntriesDid(t *testing.T) {
	seen := map[ControlKind]bool{EpochStart: true, Checkpoint: true} // without effect on a fold, and the fold itself
	behind := func(name string, controls []Control, fold func() *Cursors) {
		t.Helper()
		apply := func(c *Cursors, i int) {
			t.Helper()
			seen[controls[i].Kind] = true
			if err := c.ApplyBodyAt(AppendControl(nil, &controls[i]), 10, segment.Offset(i+1)*1000); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
		}
		for cut := 0; cut <= len(controls); cut++ {
			whole, first := fold(), fold()
			for i := range controls {
				if apply(whole, i); i < cut {
					apply(first, i)
				}
			}
			second := new(Cursors)
			if err := second.ApplyBody(AppendControl(nil, &Control{Kind: Checkpoint, Cursors: first}), 10); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			for i := cut; i < len(controls); i++ {
				apply(second, i)
			}
			if whole.text() != second.text() || !bytes.Equal(whole.Append(nil), second.Append(nil)) {
				t.Errorf("%s: written and read behind entry %d the fold goes on to\n %s, want\n %s",
					name, cut, second.text(), whole.text())
			}
		}
	}
	for _, tc := range applyCases {
		behind(tc.name, tc.controls, func() *Cursors {
			c := new(Cursors)
			c.Publish(0, 10)
			c.PublishDeferred([]DeferredMessage{{ID: 6, DueMs: 60}, {ID: 8, DueMs: 80}})
			return c
		})
	}
	for _, tc := range carryCases() {
		behind(tc.name, tc.controls, func() *Cursors { return carryFold(t, nil) })
	}
	behind("producers", producerControls(), func() *Cursors { return producerFold(t) })
	for k := ChannelCreated; k <= lastControlKind; k++ {
		if !seen[k] {
			t.Errorf("no case has an entry of kind %d", k)
		}
	}
}

// derived are the fields of a fold that are computed from others.
var derived = map[string]bool{
	"Cursors.carriedFrom": true, "Cursors.carriedKnown": true, "Cursor.needed": true, "IDSet.head": true,
	"producers.nameBytes": true, "producers.newestNs": true, "producers.ids": true,
	"Cursors.gaps": true, "Cursors.rewinds": true, "Cursor.gaps": true,
	"gapCount.joined": true, "gapCount.changes": true,
	"Deferral.Recent": true,
}

// Every field of a fold is written: the samples have a value in each field, and are read back unchanged. A new field
// that is not encoded fails here.
func TestFoldHasEveryField(t *testing.T) {
	filled := map[string]bool{}
	var walk func(v reflect.Value)
	walk = func(v reflect.Value) {
		switch v.Kind() {
		case reflect.Pointer:
			walk(v.Elem())
		case reflect.Slice:
			for i := range v.Len() {
				walk(v.Index(i))
			}
		case reflect.Struct:
			for i := range v.NumField() {
				name := v.Type().Name() + "." + v.Type().Field(i).Name
				filled[name] = filled[name] || !v.Field(i).IsZero() || derived[name]
				walk(v.Field(i))
			}
		}
	}
	for _, c := range []*Cursors{
		sampleCursors(), sampleCursors2(), sampleCursors3(), sampleCursors4(), sampleCursors5(),
		{Unclaimed: 3},
	} {
		walk(reflect.ValueOf(c))
		back, rest, err := DecodeCursors(c.Append(nil))
		if err != nil || len(rest) != 0 || !reflect.DeepEqual(plain(back), plain(c)) {
			t.Errorf("the fold\n %s is read as\n %s: %v", c.text(), back.text(), err)
		}
	}
	for name, is := range filled {
		if !is {
			t.Errorf("no sample has anything in %s", name)
		}
	}
}

// plain returns a copy for comparison: without derived fields, and without nil slices.
func plain(c *Cursors) *Cursors {
	p := *c
	p.carriedFrom, p.carriedKnown, p.producers.ids = 0, false, nil
	p.gaps, p.rewinds = gapCount{}, 0
	p.Deferred, p.carried, p.channels = append([]DeferredMessage{}, c.Deferred...), append([]carriedPlace{}, c.carried...),
		[]*Cursor{}
	for _, ch := range c.channels {
		q := *ch
		q.needed, q.gaps = 0, gapCount{}
		q.Ranges = IDSet{r: append([]IDRange{}, ch.Ranges.Ranges()...)}
		q.Requeued, q.Dead = append([]Deferral{}, ch.Requeued...), append([]DeadMessage{}, ch.Dead...)
		for i := range q.Requeued {
			q.Requeued[i].Recent = false
		}
		p.channels = append(p.channels, &q)
	}
	return &p
}

// The contents of a fold come from entries, so a log of a level has no fold that a version of this level cannot read.
func TestFoldsOfALevel(t *testing.T) {
	for version, level := range foldLevels {
		if (level == 0) != (version == 0) {
			t.Errorf("version %d of the fold is of level %d", version, level)
		}
	}
	for _, controls := range append(append(carryControls(), applyControls()...), producerControls()) {
		c, level := carryFold(t, nil), 1
		for i, ct := range controls {
			level = max(level, ct.Level())
			if err := c.ApplyBodyAt(AppendControl(nil, &ct), 10, segment.Offset(i+1)*1000); err != nil {
				t.Fatal(err)
			}
			if c.Level() > level {
				t.Fatalf("entries up to level %d make a fold of level %d: %+v", level, c.Level(), controls)
			}
		}
	}
}

func carryControls() (all [][]Control) {
	for _, tc := range carryCases() {
		all = append(all, tc.controls)
	}
	return all
}

func applyControls() (all [][]Control) {
	for _, tc := range applyCases {
		all = append(all, tc.controls)
	}
	return all
}
