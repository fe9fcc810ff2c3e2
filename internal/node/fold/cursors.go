package fold

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"penstock/segment"
)

// Cursor is the state of one channel in one partition, as the log defines it.
type Cursor struct {
	Name      string
	Start     segment.MsgID // the lowest id that was ever the channel's
	Confirmed segment.MsgID // every id below it is confirmed; only a reset lowers it
	Ranges    IDSet         // confirmed ranges above Confirmed; none touches it
	Requeued  []Deferral    // messages that wait for their time; none is confirmed; sorted by ID
	Paused    bool
	Skipped   bool
	Settings  ChannelSettings // Version 0: never configured
	Dead      []DeadMessage   // the outbox: confirmed, and not in the dead-letter topic yet; sorted by ID

	needed segment.MsgID // cached by neededBy: every id below it is confirmed or carried; 0: not known
	gaps   gapCount      // of Requeued
}

// DeferredMessage is a message that was published with a delay: when it is due (unix ms), and the offset of the batch
// that holds or carries it.
type DeferredMessage struct {
	ID    segment.MsgID
	DueMs int64
	At    segment.Offset
}

// Cursors is the fold of one partition's control batches up to some position of its log. Equal logs give equal Cursors
// and equal bytes (Append) on every replica. The zero value is the state at the beginning of a log. The limits of the
// channels' machines (MaxRanges, MaxDeferred per channel) bound its size. Whoever folds the log owns it; it has no
// lock.
type Cursors struct {
	Unclaimed   segment.MsgID // while there is no channel: the first channel gets the messages from here on
	TopicPaused bool
	HeldFrom    segment.MsgID     // while TopicPaused: no channel gets the messages from here on
	Deferred    []DeferredMessage // DPUBs that some channel has not confirmed, sorted by ID

	end       segment.MsgID  // the id after the last message folded
	channels  []*Cursor      // sorted by name
	carried   []carriedPlace // sorted by ID; only messages that are wanted, see wanted
	producers producers

	// carriedFrom caches the lowest offset in carried. It is valid only while carriedKnown is set.
	carriedFrom  segment.Offset
	carriedKnown bool
	gaps         gapCount // of Deferred
	rewinds      uint64   // see Rewinds
}

// ErrBeyondEnd says that a control entry names messages that the log does not hold before it. No replica may fold it.
var ErrBeyondEnd = errors.New("engine: control batch names messages beyond the end of the log: the partition's log " +
	"is damaged; restore it from a replica or a backup")

// Channel returns the cursor of the channel with this name, or nil. It is borrowed until the next change of c.
func (c *Cursors) Channel(name string) *Cursor {
	if i, ok := c.find(name); ok {
		return c.channels[i]
	}
	return nil
}

func (c *Cursors) Len() int { return len(c.channels) }

// Each visits the channels in the order of their names.
func (c *Cursors) Each(visit func(*Cursor)) {
	for _, ch := range c.channels {
		visit(ch)
	}
}

// End returns the id after the last message that Publish folded.
func (c *Cursors) End() segment.MsgID { return c.end }

// StartFor returns the first message of a new channel. The first channel of a topic gets all unclaimed messages. A
// later one starts at end, or at the first message that a paused topic holds back, because those go to every channel
// that exists when the topic is unpaused.
func (c *Cursors) StartFor(end segment.MsgID) segment.MsgID {
	switch {
	case len(c.channels) == 0:
		return min(c.Unclaimed, end)
	case c.TopicPaused:
		return min(c.HeldFrom, end)
	}
	return end
}

// StartAt is StartFor for a channel that is to start at id. It starts at the end at the latest, or at the first message
// that a paused topic holds back.
func (c *Cursors) StartAt(id, end segment.MsgID) segment.MsgID {
	if c.TopicPaused {
		end = min(c.HeldFrom, end)
	}
	return min(id, end)
}

// Needed returns the lowest id that some channel, an outbox, or a topic's first channel yet to come still has to read
// where it was published. Retention by confirmation may remove messages below it, as far as CarriedFrom allows. start
// and end are those of the log; messages below start are gone, even if a channel wants them.
func (c *Cursors) Needed(start, end segment.MsgID) segment.MsgID {
	if len(c.channels) == 0 {
		return min(c.neededBy(&Cursor{Confirmed: c.Unclaimed}, start), end)
	}
	for _, ch := range c.channels {
		end = min(end, c.neededBy(ch, start))
		for _, d := range ch.Dead {
			if d.ID >= start && c.placeOf(d.ID) == 0 {
				end = min(end, d.ID)
				break
			}
		}
	}
	return end
}

// Publish folds a batch of count messages that begins with the id first.
func (c *Cursors) Publish(first segment.MsgID, count uint32) {
	c.end = max(c.end, first+segment.MsgID(count))
}

// PublishDeferred folds the deferred messages of a batch. A message that the fold already has gets the new due time and
// place, because it was carried to another batch (B51). But if a control batch carries a copy, the message keeps that
// place, because the segment of any other may be gone.
func (c *Cursors) PublishDeferred(ds []DeferredMessage) {
	for _, d := range ds {
		if at := c.placeOf(d.ID); at != 0 {
			d.At = at
		}
		i := SearchID(c.Deferred, d.ID, DeferredMessage.id)
		switch {
		case i < len(c.Deferred) && c.Deferred[i].ID == d.ID:
			c.Deferred[i] = d
		case c.wanted(d.ID):
			c.Deferred = slices.Insert(c.Deferred, i, d)
			if c.gaps.added(1); i > 0 && c.Deferred[i-1].ID+1 == d.ID {
				c.gaps.joined++
			}
		}
	}
}

// ApplyBodyAt folds the body of a control batch, which lies at the offset at; end is the id after the last message
// before the batch. After an error the fold is unusable and must be rebuilt.
func (c *Cursors) ApplyBodyAt(body []byte, end segment.MsgID, at segment.Offset) error {
	var ct Control
	return decodeControls(&ct, body, c.internName, func(ct *Control) error { return c.ApplyAt(ct, end, at) })
}

// ApplyAt folds one entry of the batch at the offset at. Only DeferredCarried needs at. ApplyAt copies what it keeps of
// ct, except ct.Cursors and what ct.Settings points to. An entry about a channel that does not exist, or not any more,
// has no effect: it was under way when the channel was deleted.
func (c *Cursors) ApplyAt(ct *Control, end segment.MsgID, at segment.Offset) error {
	switch ct.Kind {
	case ChannelCreated:
		c.rewinds++
		return c.create(ct, end)
	case ChannelDeleted:
		c.remove(ct.Channel, end)
	case Confirmed, Deferred, ChannelPaused, ChannelSkipped, ChannelReset, ChannelConfigured, DeadLettered,
		DeadLetterMoved:
		if i, ok := c.find(ct.Channel); ok {
			return c.applyChannel(c.channels[i], ct, end)
		}
	case TopicPaused:
		return c.pauseTopic(ct, end)
	case TopicEmptied:
		return c.emptyTopic(ct.ID, end)
	case EpochStart:
		c.BeginEpoch()
	case Checkpoint:
		old := *c
		*c = *ct.Cursors
		c.keepRecent(&old)
		c.rewinds = old.rewinds + 1
	case DeferredCarried:
		return c.carry(ct, end, at)
	case ProducerOpened, ProducerTaken:
		c.producers.open(&ct.Producer)
	case ProducerRemoved:
		c.producers.remove(ct.Producer.ID)
	default:
		return fmt.Errorf("%w (entry kind %d)", ErrNewerControl, ct.Kind)
	}
	return nil
}

// create folds ChannelCreated. If it makes the topic's first channel, no message is unclaimed any more.
func (c *Cursors) create(ct *Control, end segment.MsgID) error {
	if ct.ID > end {
		return beyondEnd(ct, ct.ID, end)
	}
	i, exists := c.find(ct.Channel)
	if exists {
		return nil // two nodes may ask for the same channel: the first creation holds
	}
	ch := &Cursor{Name: strings.Clone(ct.Channel), Start: ct.ID, Confirmed: ct.ID}
	c.channels = slices.Insert(c.channels, i, ch)
	if len(c.channels) == 1 {
		c.Unclaimed = 0
		c.dropUnwanted([]IDRange{{0, segment.MaxMsgID + 1}})
	}
	return nil
}

// remove folds ChannelDeleted. After the last channel, later messages are unclaimed, as are those that a paused topic
// holds back.
func (c *Cursors) remove(name string, end segment.MsgID) {
	i, ok := c.find(name)
	if !ok {
		return
	}
	c.channels = slices.Delete(c.channels, i, i+1)
	if len(c.channels) == 0 {
		c.Unclaimed = end
		if c.TopicPaused { // messages that are held back never reached the channel and go on waiting
			c.Unclaimed = min(end, c.HeldFrom)
		}
	}
	c.dropUnwanted([]IDRange{{0, segment.MaxMsgID + 1}})
}

// applyChannel folds an entry about an existing channel.
func (c *Cursors) applyChannel(ch *Cursor, ct *Control, end segment.MsgID) error {
	switch ct.Kind {
	case Confirmed:
		if n := len(ct.Ranges); n > 0 && ct.Ranges[n-1].To > end {
			return beyondEnd(ct, ct.Ranges[n-1].To, end)
		}
		c.confirm(ch, ct.Ranges)
	case Deferred:
		if n := len(ct.Deferrals); n > 0 && ct.Deferrals[n-1].ID >= end {
			return beyondEnd(ct, ct.Deferrals[n-1].ID, end)
		}
		ch.requeue(ct.Deferrals)
		c.placeRequeued(ch, ct.Deferrals)
	case ChannelPaused:
		ch.Paused = ct.Flag
	case ChannelSkipped:
		ch.Skipped = ct.Flag
	case ChannelReset:
		if ct.ID > end {
			return beyondEnd(ct, ct.ID, end)
		}
		ch.Confirmed, ch.Start = ct.ID, min(ch.Start, ct.ID)
		ch.Ranges.Clear()
		c.rewinds++
		ch.Requeued, ch.gaps = nil, gapCount{}
		ch.needed = 0
		c.dropUnwanted([]IDRange{{0, segment.MaxMsgID + 1}})
	case ChannelConfigured:
		if ct.Settings.Version >= ch.Settings.Version {
			ch.Settings = *ct.Settings
		}
	case DeadLettered:
		if n := len(ct.Dead); n > 0 && ct.Dead[n-1].ID >= end {
			return beyondEnd(ct, ct.Dead[n-1].ID, end)
		}
		c.deadLetter(ch, ct.Dead)
	case DeadLetterMoved:
		ch.Dead = RemoveWithin(ch.Dead, ct.Ranges, DeadMessage.id, func(DeadMessage) bool { return true })
		c.dropUnwanted(ct.Ranges)
	}
	return nil
}

// deadLetter puts messages into the channel's outbox and then confirms them. In the other order, confirm would find
// that nobody wants a carried copy, and forget it.
func (c *Cursors) deadLetter(ch *Cursor, dead []DeadMessage) {
	rs := make([]IDRange, 0, len(dead))
	for _, d := range dead {
		if i := SearchID(ch.Dead, d.ID, DeadMessage.id); i < len(ch.Dead) && ch.Dead[i].ID == d.ID {
			ch.Dead[i] = d
		} else {
			ch.Dead = slices.Insert(ch.Dead, i, d)
		}
		if n := len(rs); n > 0 && rs[n-1].To == d.ID {
			rs[n-1].To++
		} else {
			rs = append(rs, IDRange{d.ID, d.ID + 1})
		}
	}
	c.confirm(ch, rs)
}

// confirm marks the ranges as confirmed for ch and forgets the delays of messages in them.
func (c *Cursors) confirm(ch *Cursor, rs []IDRange) {
	for _, r := range rs {
		ConfirmRange(&ch.Confirmed, &ch.Ranges, r)
	}
	had := len(ch.Requeued)
	ch.Requeued = RemoveWithin(ch.Requeued, rs, Deferral.id, func(Deferral) bool { return true })
	ch.gaps.removed(had - len(ch.Requeued))
	c.dropUnwanted(rs)
}

func (c *Cursors) pauseTopic(ct *Control, end segment.MsgID) error {
	if ct.ID > end {
		return beyondEnd(ct, ct.ID, end)
	}
	c.TopicPaused, c.HeldFrom = ct.Flag, 0
	if ct.Flag {
		c.HeldFrom = ct.ID
	}
	return nil
}

// emptyTopic folds TopicEmptied: messages below the id are dropped that no channel owns, or that a paused topic holds
// back.
func (c *Cursors) emptyTopic(below, end segment.MsgID) error {
	if below > end {
		return beyondEnd(&Control{Kind: TopicEmptied}, below, end)
	}
	from := below
	if c.TopicPaused && c.HeldFrom < below {
		from, c.HeldFrom = c.HeldFrom, below
		for _, ch := range c.channels {
			c.confirm(ch, []IDRange{{from, below}})
		}
	}
	if len(c.channels) == 0 {
		from, c.Unclaimed = 0, max(c.Unclaimed, below)
	}
	c.dropUnwanted([]IDRange{{from, below}})
	return nil
}

// wanted says whether some channel has not confirmed id or has it in its outbox. Without a channel, it says whether the
// first one to come will get id.
func (c *Cursors) wanted(id segment.MsgID) bool {
	if len(c.channels) == 0 {
		return id >= c.Unclaimed
	}
	for _, ch := range c.channels {
		if !ch.IsConfirmed(id) || ch.isDead(id) {
			return true
		}
	}
	return false
}

func (ch *Cursor) isDead(id segment.MsgID) bool {
	i := SearchID(ch.Dead, id, DeadMessage.id)
	return i < len(ch.Dead) && ch.Dead[i].ID == id
}

// dropUnwanted forgets the deferred and carried messages in the ranges that are no longer wanted.
func (c *Cursors) dropUnwanted(rs []IDRange) {
	c.carried = RemoveWithin(c.carried, rs, carriedPlace.id, func(p carriedPlace) bool {
		drop := !c.wanted(p.ID)
		c.carriedKnown = c.carriedKnown && !(drop && p.At == c.carriedFrom)
		return drop
	})
	had := len(c.Deferred)
	c.Deferred = RemoveWithin(c.Deferred, rs, DeferredMessage.id, func(d DeferredMessage) bool { return !c.wanted(d.ID) })
	c.gaps.removed(had - len(c.Deferred))
}

// RemoveWithin removes from a list sorted by id the items in the sorted ranges for which drop returns true. It visits
// only those items and moves the others at most once, however many ranges there are: a million delays and a thousand
// ranges must stay cheap.
func RemoveWithin[T any](list []T, rs []IDRange, id func(T) segment.MsgID, drop func(T) bool) []T {
	if len(list) == 0 {
		return list
	}
	kept, seen := 0, 0 // list[:kept] stays; list[kept:seen] was dropped or moved down
	for _, r := range rs {
		i := seen + SearchID(list[seen:], r.From, id)
		j := i + SearchID(list[i:], r.To, id)
		if i == j {
			continue
		}
		if kept == seen { // nothing was dropped so far: all items are still in their places
			kept = i
		} else {
			kept += copy(list[kept:], list[seen:i])
		}
		for _, item := range list[i:j] {
			if !drop(item) {
				list[kept] = item
				kept++
			}
		}
		seen = j
	}
	if kept == seen {
		return list
	}
	return list[:kept+copy(list[kept:], list[seen:])]
}

// SearchID returns the index of the first item whose id is at or above m.
func SearchID[T any](list []T, m segment.MsgID, id func(T) segment.MsgID) int {
	lo, hi := 0, len(list)
	for lo < hi {
		if mid := int(uint(lo+hi) / 2); id(list[mid]) < m {
			lo = mid + 1
		} else {
			hi = mid
		}
	}
	return lo
}

// Clone returns a deep copy. It shares only what is never changed, such as the rules of settings.
func (ch *Cursor) Clone() *Cursor {
	dup := *ch
	dup.Ranges = ch.Ranges.Clone()
	dup.Requeued, dup.Dead = slices.Clone(ch.Requeued), slices.Clone(ch.Dead)
	return &dup
}

// IsConfirmed says whether the channel has confirmed id.
func (ch *Cursor) IsConfirmed(id segment.MsgID) bool {
	return id < ch.Confirmed || ch.Ranges.Contains(id)
}

// requeue adds the deferrals. A message that already waits gets the newer time and count (B51). Both lists are sorted,
// so they are merged from the back, in place.
func (ch *Cursor) requeue(ds []Deferral) {
	news := 0
	for _, d := range ds {
		if i := SearchID(ch.Requeued, d.ID, Deferral.id); i < len(ch.Requeued) && ch.Requeued[i].ID == d.ID {
			ch.Requeued[i] = d
			ch.Requeued[i].Recent = true
		} else if !ch.IsConfirmed(d.ID) {
			news++
		}
	}
	if news == 0 {
		return
	}
	ch.gaps.added(news)
	old := len(ch.Requeued) - 1
	ch.Requeued = append(ch.Requeued, make([]Deferral, news)...)
	to := len(ch.Requeued) - 1
	for i := len(ds) - 1; to > old; i-- {
		for old >= 0 && ch.Requeued[old].ID > ds[i].ID {
			ch.Requeued[to] = ch.Requeued[old]
			to, old = to-1, old-1
		}
		if ch.IsConfirmed(ds[i].ID) || old >= 0 && ch.Requeued[old].ID == ds[i].ID {
			continue
		}
		ch.Requeued[to] = ds[i]
		ch.Requeued[to].Recent = true
		to--
	}
}

func (c *Cursors) find(name string) (int, bool) {
	return slices.BinarySearchFunc(c.channels, name, func(ch *Cursor, name string) int {
		return strings.Compare(ch.Name, name)
	})
}

// internName returns name as a string. For a known channel it does not allocate.
func (c *Cursors) internName(name []byte) string {
	lo, hi := 0, len(c.channels)
	for lo < hi {
		mid := int(uint(lo+hi) / 2)
		if c.channels[mid].Name < string(name) {
			lo = mid + 1
		} else {
			hi = mid
		}
	}
	if lo < len(c.channels) && c.channels[lo].Name == string(name) {
		return c.channels[lo].Name
	}
	return string(name)
}

func (d Deferral) id() segment.MsgID        { return d.ID }
func (d DeferredMessage) id() segment.MsgID { return d.ID }

func beyondEnd(ct *Control, id, end segment.MsgID) error {
	return fmt.Errorf("%w (entry kind %d of channel %q names %d, the log ends at %d)",
		ErrBeyondEnd, ct.Kind, ct.Channel, id, end)
}
