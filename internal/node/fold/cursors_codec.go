package fold

import (
	"encoding/binary"
	"fmt"
	"slices"

	"penstock/segment"
)

const (
	// A fold is written in the lowest version that can represent it. So an older program can read the log until a
	// feature of a later version is used.
	cursorsVersion1 = 1
	cursorsVersion2 = 2 // settings, outboxes, carried messages
	cursorsVersion3 = 3 // producers
	cursorsVersion4 = 4 // their tenures, and the checksums of their batches
	cursorsVersion  = 5 // settings of format 2

	cursorsFlagTopicPaused = 1

	cursorFlagPaused   = 1
	cursorFlagSkipped  = 2
	cursorFlagSettings = 4 // from version 2 on
	cursorFlagDead     = 8 // from version 2 on

	// Smallest encoded sizes. The decoder checks each count against them and the bytes that follow.
	minCursorBytes   = 7 // name length, one byte of name, flags, start, confirmed, two counts
	minDeferredBytes = 3
	minPlaceBytes    = 2
)

// version returns the lowest version that can represent the fold.
func (c *Cursors) version() byte {
	if slices.ContainsFunc(c.channels, func(ch *Cursor) bool { return ch.Settings.format() == settingsFormat }) {
		return cursorsVersion
	}
	if c.producers.haveTenures() {
		return cursorsVersion4
	}
	if len(c.producers.all) > 0 {
		return cursorsVersion3
	}
	if len(c.carried) > 0 {
		return cursorsVersion2
	}
	for _, ch := range c.channels {
		if ch.Settings.Version != 0 || len(ch.Dead) > 0 {
			return cursorsVersion2
		}
	}
	return cursorsVersion1
}

// foldLevels has the feature level from which on a version of the fold may be written. What only that version can
// represent comes from entries of that level alone.
var foldLevels = [cursorsVersion + 1]uint8{
	cursorsVersion1: 1, cursorsVersion2: 1, cursorsVersion3: 3, cursorsVersion4: 5,
	cursorsVersion: settingsLevel,
}

// Level returns the lowest feature level at which the fold can be read.
func (c *Cursors) Level() int { return int(foldLevels[c.version()]) }

// Append appends the encoding of FORMAT.md. Equal folds have equal encodings.
func (c *Cursors) Append(dst []byte) []byte {
	flags := byte(0)
	if c.TopicPaused {
		flags = cursorsFlagTopicPaused
	}
	version := c.version()
	dst = append(dst, version, flags)
	dst = binary.AppendUvarint(dst, uint64(c.end))
	dst = binary.AppendUvarint(dst, uint64(c.Unclaimed))
	dst = binary.AppendUvarint(dst, uint64(c.HeldFrom))
	dst = binary.AppendUvarint(dst, uint64(len(c.channels)))
	for _, ch := range c.channels {
		dst = ch.append(dst)
	}
	dst = binary.AppendUvarint(dst, uint64(len(c.Deferred)))
	last := segment.MsgID(0)
	for _, d := range c.Deferred {
		if d.DueMs < 0 || d.At < 0 {
			panic("BUG: a delayed message is due or stored before zero")
		}
		dst = binary.AppendUvarint(dst, uint64(d.ID-last))
		dst = binary.AppendUvarint(dst, uint64(d.DueMs))
		dst = binary.AppendUvarint(dst, uint64(d.At))
		last = d.ID
	}
	if version > cursorsVersion1 {
		dst = appendPlaces(dst, c.carried)
	}
	if version > cursorsVersion2 {
		dst = c.producers.append(dst, version)
	}
	return dst
}

// appendPlaces writes the count and then, for each place, the id as a difference from the previous one, and the offset.
func appendPlaces(dst []byte, places []carriedPlace) []byte {
	dst = binary.AppendUvarint(dst, uint64(len(places)))
	last := segment.MsgID(0)
	for _, p := range places {
		dst = binary.AppendUvarint(dst, uint64(p.ID-last))
		dst = binary.AppendUvarint(dst, uint64(p.At))
		last = p.ID
	}
	return dst
}

func (ch *Cursor) append(dst []byte) []byte {
	flags := byte(0)
	if ch.Paused {
		flags |= cursorFlagPaused
	}
	if ch.Skipped {
		flags |= cursorFlagSkipped
	}
	if ch.Settings.Version != 0 {
		flags |= cursorFlagSettings
	}
	if len(ch.Dead) > 0 {
		flags |= cursorFlagDead
	}
	dst = append(dst, byte(len(ch.Name)))
	dst = append(dst, ch.Name...)
	dst = append(dst, flags)
	dst = binary.AppendUvarint(dst, uint64(ch.Start))
	dst = binary.AppendUvarint(dst, uint64(ch.Confirmed))
	dst = appendRanges(dst, ch.Ranges.Ranges())
	dst = appendDeferrals(dst, ch.Requeued)
	if flags&cursorFlagSettings != 0 {
		dst = ch.Settings.Append(dst)
	}
	if flags&cursorFlagDead != 0 {
		dst = appendDead(dst, ch.Dead)
	}
	return dst
}

// DecodeCursors decodes a fold and returns it and the bytes behind it. The fold owns its memory. Any input is safe:
// what is not a valid fold gives ErrBadControl, or ErrNewerControl if its version is unknown.
func DecodeCursors(p []byte) (*Cursors, []byte, error) {
	d := decoder{p: p}
	version := d.byte()
	if version > cursorsVersion {
		return nil, nil, fmt.Errorf("%w (checkpoint version %d)", ErrNewerControl, version)
	} else if version == 0 {
		d.fail("version 0")
	}
	flags := d.byte()
	c := &Cursors{TopicPaused: flags&cursorsFlagTopicPaused != 0}
	c.end, c.Unclaimed, c.HeldFrom = d.msgID(), d.msgID(), d.msgID()
	if flags > cursorsFlagTopicPaused || !c.TopicPaused && c.HeldFrom != 0 {
		d.fail("flags")
	}
	for i, n := 0, d.count(minCursorBytes); i < n && d.bad == ""; i++ {
		ch := d.cursor(version)
		if i > 0 && ch.Name <= c.channels[i-1].Name {
			d.fail("channels are not sorted by name")
		}
		c.channels = append(c.channels, ch)
	}
	if len(c.channels) > 0 && c.Unclaimed != 0 {
		d.fail("a topic with channels has unclaimed messages")
	}
	d.deferred(c)
	if version > cursorsVersion1 {
		d.places(c)
	}
	if version > cursorsVersion2 {
		c.producers = d.producers(c.end, version)
	}
	if d.bad == "" && c.version() != version {
		d.fail("a fold that an earlier version can say")
	}
	if d.newer {
		return nil, nil, fmt.Errorf("%w (%s)", ErrNewerControl, d.bad)
	}
	if d.bad != "" {
		return nil, nil, badControl("checkpoint: %s", d.bad)
	}
	c.CountGaps(0)
	return c, d.p, nil
}

func (d *decoder) deferred(c *Cursors) {
	last := segment.MsgID(0)
	for i, n := 0, d.count(minDeferredBytes); i < n && d.bad == ""; i++ {
		m := DeferredMessage{ID: last + d.msgID(), DueMs: int64(d.atMost(1<<63 - 1)), At: segment.Offset(d.atMost(1<<63 - 1))}
		if i > 0 && m.ID == last || m.ID > segment.MaxMsgID || d.bad == "" && !c.wanted(m.ID) {
			d.fail("delayed messages are not sorted by id, or nobody waits for one")
		}
		c.Deferred = append(c.Deferred, m)
		last = m.ID
	}
}

// places decodes the places of carried messages and sets them in the channels' deferrals.
func (d *decoder) places(c *Cursors) {
	last := segment.MsgID(0)
	for i, n := 0, d.count(minPlaceBytes); i < n && d.bad == ""; i++ {
		p := carriedPlace{ID: last + d.msgID(), At: segment.Offset(d.atMost(1<<63 - 1))}
		if i > 0 && p.ID == last || p.ID > segment.MaxMsgID || p.At == 0 || d.bad == "" && !c.wanted(p.ID) {
			d.fail("carried messages are not sorted by id, or nobody waits for one")
		}
		c.carried = append(c.carried, p)
		last = p.ID
	}
	for _, m := range c.Deferred {
		if at := c.placeOf(m.ID); at != 0 && at != m.At {
			d.fail("a delayed message is not where it was carried to")
		}
	}
	for _, ch := range c.channels {
		c.placeRequeued(ch, ch.Requeued)
	}
}

func (d *decoder) cursor(version byte) *Cursor {
	nameBytes := int(d.byte())
	if nameBytes == 0 || nameBytes > MaxChannelNameBytes {
		d.fail("length of a channel's name")
	}
	ch := &Cursor{Name: string(d.bytes(nameBytes))}
	flags := d.byte()
	if known := byte(cursorFlagPaused | cursorFlagSkipped); version == cursorsVersion1 && flags > known ||
		flags > known|cursorFlagSettings|cursorFlagDead {
		d.fail("a channel's flags")
	}
	ch.Paused, ch.Skipped = flags&cursorFlagPaused != 0, flags&cursorFlagSkipped != 0
	ch.Start, ch.Confirmed = d.msgID(), d.msgID()
	ch.Ranges.r = d.ranges(nil)
	if first, ok := ch.Ranges.First(); ok && first.From <= ch.Confirmed {
		d.fail("a confirmed range touches what is confirmed below it")
	}
	ch.Requeued = d.deferrals(nil)
	for _, r := range ch.Requeued {
		if ch.IsConfirmed(r.ID) {
			d.fail("a confirmed message waits")
			break
		}
	}
	if flags&cursorFlagSettings != 0 {
		ch.Settings = d.settings()
	}
	if flags&cursorFlagDead != 0 {
		if ch.Dead = d.dead(nil); len(ch.Dead) == 0 {
			d.fail("an empty outbox")
		}
	}
	return ch
}
