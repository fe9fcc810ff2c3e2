package fold

import (
	"reflect"
	"testing"

	"penstock/segment"
)

// What each kind of entry says about message 7.
func TestTraceOfEntries(t *testing.T) {
	const id = 7
	said := func(k TraceKind) *TraceEntry { return &TraceEntry{Kind: k, Channel: "c"} }
	for name, c := range map[string]struct {
		entry Control
		want  *TraceEntry
	}{
		"created at it":       {Control{Kind: ChannelCreated, ID: 7}, said(TraceCreated)},
		"created behind it":   {Control{Kind: ChannelCreated, ID: 8}, said(TraceCreatedAfter)},
		"deleted":             {Control{Kind: ChannelDeleted}, said(TraceDeleted)},
		"confirmed":           {Control{Kind: Confirmed, Ranges: []IDRange{{1, 3}, {5, 8}}}, said(TraceConfirmed)},
		"the first of a run":  {Control{Kind: Confirmed, Ranges: []IDRange{{7, 8}}}, said(TraceConfirmed)},
		"confirmed up to it":  {Control{Kind: Confirmed, Ranges: []IDRange{{1, 7}}}, nil},
		"confirmed behind it": {Control{Kind: Confirmed, Ranges: []IDRange{{8, 9}}}, nil},
		"deferred": {
			Control{Kind: Deferred, Deferrals: []Deferral{{ID: 6, DueMs: 1}, {ID: 7, DueMs: 50, Attempts: 3}}},
			&TraceEntry{Kind: TraceDeferred, Channel: "c", DueMs: 50, Attempts: 3},
		},
		"another is deferred": {Control{Kind: Deferred, Deferrals: []Deferral{{ID: 6}, {ID: 8}}}, nil},
		"reset to it":         {Control{Kind: ChannelReset, ID: 7}, said(TraceRewound)},
		"reset behind it":     {Control{Kind: ChannelReset, ID: 8}, said(TracePassed)},
		"dead": {
			Control{Kind: DeadLettered, Dead: []DeadMessage{{ID: 7, Attempts: 5}}},
			&TraceEntry{Kind: TraceDead, Channel: "c", Attempts: 5},
		},
		"another is dead":  {Control{Kind: DeadLettered, Dead: []DeadMessage{{ID: 9}}}, nil},
		"stored as dead":   {Control{Kind: DeadLetterMoved, Ranges: []IDRange{{7, 8}}}, said(TraceDeadStored)},
		"another stored":   {Control{Kind: DeadLetterMoved, Ranges: []IDRange{{1, 2}}}, nil},
		"topic emptied":    {Control{Kind: TopicEmptied, ID: 8}, &TraceEntry{Kind: TraceEmptied}},
		"emptied up to it": {Control{Kind: TopicEmptied, ID: 7}, nil},
		"carried": {
			Control{Kind: DeferredCarried, Carried: []CarriedMessage{{ID: 7, DueMs: 9}}},
			&TraceEntry{Kind: TraceCarried, DueMs: 9},
		},
		"another carried": {Control{Kind: DeferredCarried, Carried: []CarriedMessage{{ID: 8}}}, nil},
		"paused":          {Control{Kind: ChannelPaused, Flag: true}, nil},
		"an epoch":        {Control{Kind: EpochStart, Epoch: 3}, nil},
	} {
		if c.entry.Kind.ofChannel() {
			c.entry.Channel = "c"
		}
		got, ok := c.entry.Trace(id)
		if ok != (c.want != nil) || ok && got != *c.want {
			t.Errorf("%s: %+v %v, want %+v", name, got, ok, c.want)
		}
	}
}

// tracedWorld is a fold and the tracer of message 7, which get the same entries.
type tracedWorld struct {
	fold Cursors
	Tracer
	at TracePlace
}

func (w *tracedWorld) add(t *testing.T, traced bool, cs ...Control) {
	t.Helper()
	for i := range cs {
		w.at.Position++
		w.at.Epoch = segment.Epoch(w.at.Position)
		if err := w.fold.ApplyAt(&cs[i], 10, 1); err != nil {
			t.Fatal(err)
		}
		if traced {
			w.Apply(&cs[i], w.at)
		}
	}
}

// What became of message 7, by the entries that were read and by the fold, which has all entries.
func TestTraceOfCursors(t *testing.T) {
	confirmed := Control{Kind: Confirmed, Channel: "c", Ranges: []IDRange{{7, 8}}}
	created := Control{Kind: ChannelCreated, Channel: "c"}
	wantsX := &ChannelSettings{Version: 1, Filter: Filter{Rules: []Rule{{Header: "kind", Pattern: "x"}}}}
	configured := Control{Kind: ChannelConfigured, Channel: "c", Settings: wantsX}
	all := &ChannelSettings{Version: 2}
	reset := func(id segment.MsgID) Control { return Control{Kind: ChannelReset, Channel: "c", ID: id} }
	dead := Control{Kind: DeadLettered, Channel: "c", Dead: []DeadMessage{{ID: 7, Attempts: 5}}}
	moved := Control{Kind: DeadLetterMoved, Channel: "c", Ranges: []IDRange{{7, 8}}}
	deferred := Control{Kind: Deferred, Channel: "c", Deferrals: []Deferral{{ID: 7, DueMs: 50, Attempts: 2}}}
	skip := func(on bool) Control { return Control{Kind: ChannelSkipped, Channel: "c", Flag: on} }
	type one struct {
		State   TraceState
		By      segment.Position // 0: not known
		Counted bool
	}
	for name, c := range map[string]struct {
		older   []Control // not in the log any more
		read    []Control
		gone    bool
		want    []one
		settled bool
	}{
		"waits": {older: []Control{created}, want: []one{{State: StateWaiting}}},
		"waited in vain": {
			older: []Control{created}, gone: true,
			want: []one{{State: StateGone}},
		},
		"confirmed": {
			[]Control{created},
			[]Control{confirmed},
			false,
			[]one{{StateConfirmed, 2, false}},
			true,
		},
		"confirmed before the log": {
			older: []Control{created, confirmed},
			want:  []one{{State: StateConfirmed}},
		},
		"confirmed, and read again": {
			[]Control{created},
			[]Control{confirmed, reset(3)},
			false,
			[]one{{State: StateWaiting}},
			false,
		},
		"confirmed for a second one": {
			[]Control{created},
			[]Control{confirmed, reset(3), confirmed},
			false,
			[]one{{StateConfirmed, 4, false}},
			true,
		},
		"confirmed, then passed": {
			[]Control{created},
			[]Control{confirmed, reset(9)},
			false,
			[]one{{StateConfirmed, 2, false}},
			true,
		},
		"passed over": {
			[]Control{created},
			[]Control{reset(9)},
			false,
			[]one{{StatePassed, 2, false}},
			true,
		},
		"deferred": {
			[]Control{created},
			[]Control{deferred},
			false,
			[]one{{StateDeferred, 2, true}},
			false,
		},
		"deferred before the log": {
			older: []Control{created, deferred},
			want:  []one{{StateDeferred, 0, true}},
		},
		"older than the channel": {
			nil,
			[]Control{{Kind: ChannelCreated, Channel: "c", ID: 8}},
			false,
			[]one{{State: StateNotIts}},
			true,
		},
		"on its way to be a dead letter": {
			[]Control{created},
			[]Control{dead},
			false,
			[]one{{StateDeadWaiting, 2, true}},
			false,
		},
		"a dead letter": {
			[]Control{created},
			[]Control{dead, moved},
			false,
			[]one{{StateDead, 2, true}},
			true,
		},
		"a dead letter before the log": {
			older: []Control{created, dead}, read: []Control{moved},
			want: []one{{State: StateConfirmed}},
		},
		"filtered": {
			[]Control{created, configured},
			[]Control{confirmed},
			false,
			[]one{{StateFiltered, 3, false}},
			true,
		},
		"filtered, as the log says": {
			[]Control{created},
			[]Control{configured, confirmed},
			false,
			[]one{{StateFiltered, 3, false}},
			true,
		},
		"finished before the filter": {
			[]Control{created},
			[]Control{confirmed, configured},
			false,
			[]one{{StateConfirmed, 2, false}},
			true,
		},
		"filtered before it was given up": {
			[]Control{created},
			[]Control{configured, confirmed, {Kind: ChannelConfigured, Channel: "c", Settings: all}},
			false,
			[]one{{StateFiltered, 3, false}},
			true,
		},
		"the filter then is not known": {
			[]Control{created, configured},
			[]Control{confirmed, {Kind: ChannelConfigured, Channel: "c", Settings: all}},
			false,
			[]one{{StateConfirmed, 3, false}},
			true,
		},
		"skipped": {
			[]Control{created, skip(true)},
			[]Control{confirmed},
			false,
			[]one{{StateSkipped, 3, false}},
			true,
		},
		"finished, then skipping": {
			[]Control{created},
			[]Control{confirmed, skip(true)},
			false,
			[]one{{StateConfirmed, 2, false}},
			true,
		},
		"held back": {
			older: []Control{created, {Kind: TopicPaused, Flag: true, ID: 5}}, want: []one{{State: StateHeldBack}},
		},
		"held back and dropped": {
			[]Control{created, {Kind: TopicPaused, Flag: true, ID: 5}},
			[]Control{{Kind: TopicEmptied, ID: 9}},
			false,
			[]one{{StatePassed, 3, false}},
			true,
		},
		"a deleted channel": {
			older: []Control{created}, read: []Control{{Kind: ChannelDeleted, Channel: "c"}},
			want: []one{{StateOfDeadChannel, 2, false}},
		},
	} {
		w := new(tracedWorld)
		w.Tracer = Tracer{ID: 7, Read: !c.gone, Headers: []segment.KV{{Key: []byte("kind"), Value: []byte("y")}}}
		w.fold.Publish(0, 10)
		w.add(t, false, c.older...)
		w.add(t, true, c.read...)
		fold := w.fold.Trace(7)
		if got := w.Settled(fold); got != c.settled {
			t.Errorf("%s: settled: %v", name, got)
		}
		var got []one
		for _, ch := range w.Finish(fold, c.gone) {
			o := one{ch.State, 0, ch.Counted}
			if ch.By != nil {
				o.By = ch.By.Position
			}
			got = append(got, o)
		}
		if !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s: %+v, want %+v", name, got, c.want)
		}
	}
}
