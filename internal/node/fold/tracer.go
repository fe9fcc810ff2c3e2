package fold

import (
	"cmp"
	"slices"
	"strings"

	"penstock/segment"
)

// TracePlace is where and when a batch was appended.
type TracePlace struct {
	AppendedNs int64 // the leader's clock
	Offset     segment.Offset
	Position   segment.Position
	Epoch      segment.Epoch
}

// TraceEvent is a TraceEntry with the batch that has it.
type TraceEvent struct {
	TraceEntry
	TracePlace

	inForce
	// Once sealed, inForce cannot become known any more, because it was changed since.
	settingsSealed bool
	skippedSealed  bool
}

// inForce is what was in force in a channel; nil: not known.
type inForce struct {
	settings *ChannelSettings
	skipped  *bool
}

// ChannelTrace says what became of a message in one channel.
type ChannelTrace struct {
	Channel    string
	State      TraceState
	By         *TraceEvent // what made the state; nil: no entry that was read says it
	DeadStored *TraceEvent // when the dead-letter topic got it; nil: not known
	DueMs      int64       // StateDeferred
	Attempts   uint16      // deliveries
	Counted    bool        // Attempts is known
	Settings   ChannelSettings
}

// Tracer collects what the control entries of a log say about one message. The caller passes the entries behind the
// message in their order, and then the fold. It is for one goroutine.
type Tracer struct {
	ID      segment.MsgID
	Read    bool         // Headers and Only are known, because the log has the message
	Headers []segment.KV // of the message
	Only    string       // if not "", the only channel that the message is for
	Events  []TraceEvent // at most as many as the caller lets Apply add

	now map[string]inForce // by channel: as the entries that were read last say
}

// Apply notes what one entry says. It copies what it keeps of ct, except ct.Cursors and ct.Settings.
func (t *Tracer) Apply(ct *Control, at TracePlace) {
	switch ct.Kind {
	case Checkpoint:
		for _, ch := range ct.Cursors.channels {
			t.learn(ch.Name, &ch.Settings, &ch.Skipped)
			t.set(ch.Name, inForce{&ch.Settings, &ch.Skipped})
		}
	case ChannelConfigured:
		t.changed(ct.Channel, func(e *TraceEvent) { e.settingsSealed = true })
		t.set(ct.Channel, inForce{ct.Settings, t.now[ct.Channel].skipped})
	case ChannelSkipped:
		t.changed(ct.Channel, func(e *TraceEvent) { e.skippedSealed = true })
		flag := ct.Flag
		t.set(ct.Channel, inForce{t.now[ct.Channel].settings, &flag})
	}
	if e, ok := ct.Trace(t.ID); ok {
		e.Channel = strings.Clone(e.Channel)
		t.Events = append(t.Events, TraceEvent{TraceEntry: e, TracePlace: at, inForce: t.now[e.Channel]})
	}
}

func (t *Tracer) set(channel string, f inForce) {
	if t.now == nil {
		t.now = map[string]inForce{}
	}
	t.now[strings.Clone(channel)] = f
}

// learn notes what is in force in a channel. It was also in force at the events of which nothing was changed since.
func (t *Tracer) learn(channel string, s *ChannelSettings, skipped *bool) {
	t.changed(channel, func(e *TraceEvent) {
		if e.settings == nil && !e.settingsSealed {
			e.settings = s
		}
		if e.skipped == nil && !e.skippedSealed {
			e.skipped = skipped
		}
	})
}

func (t *Tracer) changed(channel string, f func(*TraceEvent)) {
	for i := range t.Events {
		if t.Events[i].Channel == channel {
			f(&t.Events[i])
		}
	}
}

// Settled says whether the events explain everything that the fold says, so that reading on would explain no more.
// While a channel wants the message, reading on may.
func (t *Tracer) Settled(fold []ChannelFold) bool {
	for i := range fold {
		f := &fold[i]
		if f.NotIts {
			continue
		}
		by := t.decisive(f.Channel)
		if !f.Confirmed || f.Moving || by == nil || by.Kind == TraceDead && t.stored(f.Channel, by) == nil {
			return false
		}
	}
	return len(fold) > 0
}

// Finish returns what became of the message in each channel, by name. gone says that the log has the message no more.
func (t *Tracer) Finish(fold []ChannelFold, gone bool) []ChannelTrace {
	var all []ChannelTrace
	for i := range fold {
		f := &fold[i]
		t.learn(f.Channel, &f.Settings, &f.Skipped)
		all = append(all, t.judge(f, gone))
	}
	for i := range t.Events {
		e := &t.Events[i]
		if e.Kind == TraceDeleted && !slices.ContainsFunc(all, func(c ChannelTrace) bool { return c.Channel == e.Channel }) {
			all = append(all, ChannelTrace{Channel: e.Channel, State: StateOfDeadChannel, By: e})
		}
	}
	slices.SortFunc(all, func(a, b ChannelTrace) int { return cmp.Compare(a.Channel, b.Channel) })
	return all
}

// judge decides what became of the message in a channel that exists. What the fold says counts; the events say when.
func (t *Tracer) judge(f *ChannelFold, gone bool) ChannelTrace {
	c := ChannelTrace{Channel: f.Channel, Settings: f.Settings}
	by := t.decisive(f.Channel)
	switch {
	case f.Moving:
		c.State, c.By, c.Attempts, c.Counted = StateDeadWaiting, by, f.Attempts, true
	case f.NotIts:
		c.State = StateNotIts
	case f.Confirmed:
		c.State, c.By = StateConfirmed, by
		t.explain(&c)
	case gone:
		c.State = StateGone
	case f.Waits:
		c.State, c.DueMs, c.Attempts, c.Counted = StateDeferred, f.DueMs, f.Attempts, true
		c.By = t.last(f.Channel, TraceDeferred)
	case f.Held:
		c.State = StateHeldBack
	default:
		c.State = StateWaiting
	}
	return c
}

// explain says in which way a confirmed message was confirmed, if c.By does.
func (t *Tracer) explain(c *ChannelTrace) {
	by := c.By
	if by == nil {
		return
	}
	if by.settings != nil {
		c.Settings = *by.settings
	}
	switch {
	case by.Kind == TraceDead:
		c.State, c.Attempts, c.Counted, c.DeadStored = StateDead, by.Attempts, true, t.stored(c.Channel, by)
	case by.Kind == TracePassed, by.Kind == TraceEmptied:
		c.State = StatePassed
	case by.skipped != nil && *by.skipped:
		c.State = StateSkipped
	case t.Read && t.Only != "" && t.Only != c.Channel:
		c.State = StateFiltered
	case t.Read && by.settings != nil && t.unwanted(by.settings):
		c.State = StateFiltered
	}
}

// unwanted says whether settings leave out the message by its headers.
func (t *Tracer) unwanted(s *ChannelSettings) bool {
	m, err := s.Filter.Matcher()
	return err == nil && !m.Match(t.Headers)
}

// decisive returns the event that confirmed the message for the channel: the first one since the channel wanted it
// last. nil: none was read.
func (t *Tracer) decisive(channel string) (by *TraceEvent) {
	var emptied *TraceEvent // it concerns only what the topic held back, so any other reason counts first
	for i := range t.Events {
		e := &t.Events[i]
		if e.Channel != channel && e.Kind != TraceEmptied {
			continue
		}
		switch e.Kind {
		case TraceRewound, TraceDeleted:
			by, emptied = nil, nil
		case TraceConfirmed, TraceDead, TracePassed:
			if by == nil {
				by = e
			}
		case TraceEmptied:
			emptied = e
		}
	}
	if by == nil {
		by = emptied
	}
	return by
}

// stored returns the event behind by that says that the dead-letter topic has the message; nil: none was read.
func (t *Tracer) stored(channel string, by *TraceEvent) *TraceEvent {
	for i := range t.Events {
		if e := &t.Events[i]; e.Kind == TraceDeadStored && e.Channel == channel && e.Position >= by.Position {
			return e
		}
	}
	return nil
}

// last returns the last event of a kind; nil: none was read.
func (t *Tracer) last(channel string, kind TraceKind) *TraceEvent {
	for i := len(t.Events) - 1; i >= 0; i-- {
		if e := &t.Events[i]; e.Kind == kind && e.Channel == channel {
			return e
		}
	}
	return nil
}
