package fold

import (
	"cmp"
	"slices"

	"penstock/segment"
)

// TraceKind says what an entry of the log did to a message. The names are part of the HTTP API.
type TraceKind string

// The kinds of TraceEntry.
const (
	TraceCreated      TraceKind = "channel_created"     // the channel began at or before the message
	TraceCreatedAfter TraceKind = "channel_began_later" // the channel began behind the message
	TraceDeleted      TraceKind = "channel_deleted"
	TraceConfirmed    TraceKind = "confirmed"
	TraceDeferred     TraceKind = "deferred"           // requeued, or its delay was noted: DueMs, Attempts
	TraceDead         TraceKind = "dead_lettered"      // confirmed, and on its way to the dead-letter topic: Attempts
	TraceDeadStored   TraceKind = "dead_letter_stored" // the dead-letter topic has it
	TraceRewound      TraceKind = "rewound"            // the channel was moved back: the message is wanted again
	TracePassed       TraceKind = "passed_over"        // the channel was emptied, or moved behind the message
	TraceEmptied      TraceKind = "topic_emptied"      // the topic was emptied: dropped if it was held back
	TraceCarried      TraceKind = "carried"            // copied to this place, because its segment may be removed
)

// TraceEntry is what one control entry says about one message.
type TraceEntry struct {
	Kind     TraceKind
	Channel  string // "": of the topic
	DueMs    int64  // unix ms
	Attempts uint16 // deliveries before it
}

// Trace returns what the entry says about the message; false: nothing. The name of the channel is borrowed.
func (c *Control) Trace(id segment.MsgID) (e TraceEntry, ok bool) {
	e.Channel = c.Channel
	switch c.Kind {
	case ChannelCreated:
		e.Kind = TraceCreated
		if id < c.ID {
			e.Kind = TraceCreatedAfter
		}
	case ChannelDeleted:
		e.Kind = TraceDeleted
	case ChannelReset:
		e.Kind = TraceRewound
		if id < c.ID {
			e.Kind = TracePassed
		}
	case Confirmed, DeadLetterMoved:
		if !within(c.Ranges, id) {
			return e, false
		}
		e.Kind = TraceConfirmed
		if c.Kind == DeadLetterMoved {
			e.Kind = TraceDeadStored
		}
	case Deferred:
		i := SearchID(c.Deferrals, id, Deferral.id)
		if i == len(c.Deferrals) || c.Deferrals[i].ID != id {
			return e, false
		}
		e.Kind, e.DueMs, e.Attempts = TraceDeferred, c.Deferrals[i].DueMs, c.Deferrals[i].Attempts
	case DeadLettered:
		i := SearchID(c.Dead, id, DeadMessage.id)
		if i == len(c.Dead) || c.Dead[i].ID != id {
			return e, false
		}
		e.Kind, e.Attempts = TraceDead, c.Dead[i].Attempts
	case TopicEmptied:
		e.Kind = TraceEmptied
		return e, id < c.ID
	case DeferredCarried:
		i := SearchID(c.Carried, id, func(m CarriedMessage) segment.MsgID { return m.ID })
		if i == len(c.Carried) || c.Carried[i].ID != id {
			return e, false
		}
		e.Kind, e.DueMs = TraceCarried, c.Carried[i].DueMs
	default:
		return e, false
	}
	return e, true
}

func within(rs []IDRange, id segment.MsgID) bool {
	i, found := slices.BinarySearchFunc(rs, id, func(r IDRange, id segment.MsgID) int { return cmp.Compare(r.From, id) })
	return found || i > 0 && id < rs[i-1].To
}

// TraceState says what became of a message in a channel. The names are part of the HTTP API.
type TraceState string

// The states of ChannelTrace.
const (
	StateWaiting       TraceState = "waiting"            // for a consumer
	StateDeferred      TraceState = "deferred"           // until DueMs
	StateHeldBack      TraceState = "held_back"          // by the pause of the topic
	StateConfirmed     TraceState = "confirmed"          // finished by a consumer, as far as the log says
	StateFiltered      TraceState = "filtered"           // the channel did not want it
	StateSkipped       TraceState = "skipped"            // the channel discarded its messages
	StatePassed        TraceState = "passed_over"        // the channel was emptied, or moved behind it
	StateDeadWaiting   TraceState = "dead_letter_moving" // the dead-letter topic does not have it yet
	StateDead          TraceState = "dead_lettered"
	StateNotIts        TraceState = "older_than_channel"
	StateGone          TraceState = "removed" // retention removed it before the channel confirmed it
	StateOfDeadChannel TraceState = "channel_deleted"
)

// ChannelFold is what the fold of a log says about one message and one channel.
type ChannelFold struct {
	Channel   string
	Confirmed bool
	NotIts    bool   // the channel began behind it
	Moving    bool   // in the outbox: Attempts
	Waits     bool   // for its time: DueMs, Attempts
	Held      bool   // by the pause of the topic
	DueMs     int64  // unix ms
	Attempts  uint16 // deliveries before that
	Skipped   bool
	Settings  ChannelSettings
}

// Trace returns what the fold says about a message: one item for each channel.
func (c *Cursors) Trace(id segment.MsgID) []ChannelFold {
	all := make([]ChannelFold, 0, len(c.channels))
	for _, ch := range c.channels {
		f := ChannelFold{
			Channel: ch.Name, Confirmed: ch.IsConfirmed(id), NotIts: id < ch.Start, Skipped: ch.Skipped, Settings: ch.Settings,
			Held: c.TopicPaused && id >= c.HeldFrom,
		}
		if i := SearchID(ch.Dead, id, DeadMessage.id); i < len(ch.Dead) && ch.Dead[i].ID == id {
			f.Moving, f.Attempts = true, ch.Dead[i].Attempts
		}
		if i := SearchID(c.Deferred, id, DeferredMessage.id); i < len(c.Deferred) && c.Deferred[i].ID == id {
			f.Waits, f.DueMs = true, c.Deferred[i].DueMs
		}
		if i := SearchID(ch.Requeued, id, Deferral.id); i < len(ch.Requeued) && ch.Requeued[i].ID == id {
			f.Waits, f.DueMs, f.Attempts = true, ch.Requeued[i].DueMs, ch.Requeued[i].Attempts
		}
		f.Waits = f.Waits && !f.Confirmed
		all = append(all, f)
	}
	return all
}

// TraceCutWhy says why a trace ended before the log did. The names are part of the HTTP API.
type TraceCutWhy string

// The reasons.
const (
	CutBytes  TraceCutWhy = "bytes"
	CutTime   TraceCutWhy = "time"
	CutEvents TraceCutWhy = "events"
	CutDamage TraceCutWhy = "damage" // the log cannot be read further
)

// StateInFlight is the state of a message that a consumer has: the log does not say it, the leader does.
const StateInFlight TraceState = "in_flight"
