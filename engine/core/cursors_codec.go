package core

import (
	"encoding/binary"
	"fmt"

	"penstock/segment"
)

const (
	cursorsVersion = 1

	cursorsFlagTopicPaused = 1

	cursorFlagPaused  = 1
	cursorFlagSkipped = 2

	// Smallest encodings, by which a count is checked against the bytes that follow.
	minCursorBytes   = 7 // name length, one byte of name, flags, start, confirmed, two counts
	minDeferredBytes = 3
)

// Append appends the fold in the form of FORMAT.md. Equal folds give equal bytes.
func (c *Cursors) Append(dst []byte) []byte {
	flags := byte(0)
	if c.TopicPaused {
		flags = cursorsFlagTopicPaused
	}
	dst = append(dst, cursorsVersion, flags)
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
	dst = append(dst, byte(len(ch.Name)))
	dst = append(dst, ch.Name...)
	dst = append(dst, flags)
	dst = binary.AppendUvarint(dst, uint64(ch.Start))
	dst = binary.AppendUvarint(dst, uint64(ch.Confirmed))
	dst = appendRanges(dst, ch.Ranges.Ranges())
	return appendDeferrals(dst, ch.Requeued)
}

// DecodeCursors reads a fold and returns it with the bytes behind it. The fold owns
// its memory. Any bytes are safe: what is not a fold is ErrBadControl.
func DecodeCursors(p []byte) (*Cursors, []byte, error) {
	d := decoder{p: p}
	if version := d.byte(); version > cursorsVersion {
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
		ch := d.cursor()
		if i > 0 && ch.Name <= c.channels[i-1].Name {
			d.fail("channels are not sorted by name")
		}
		c.channels = append(c.channels, ch)
	}
	if len(c.channels) > 0 && c.Unclaimed != 0 {
		d.fail("a topic with channels has unclaimed messages")
	}
	last := segment.MsgID(0)
	for i, n := 0, d.count(minDeferredBytes); i < n && d.bad == ""; i++ {
		m := DeferredMessage{ID: last + d.msgID(), DueMs: int64(d.atMost(1<<63 - 1)), At: segment.Offset(d.atMost(1<<63 - 1))}
		if i > 0 && m.ID == last || m.ID > segment.MaxMsgID || d.bad == "" && !c.wanted(m.ID) {
			d.fail("delayed messages are not sorted by id, or nobody waits for one")
		}
		c.Deferred = append(c.Deferred, m)
		last = m.ID
	}
	if d.bad != "" {
		return nil, nil, badControl("checkpoint: %s", d.bad)
	}
	return c, d.p, nil
}

func (d *decoder) cursor() *Cursor {
	nameBytes := int(d.byte())
	if nameBytes == 0 || nameBytes > MaxChannelNameBytes {
		d.fail("length of a channel's name")
	}
	ch := &Cursor{Name: string(d.bytes(nameBytes))}
	flags := d.byte()
	if flags > cursorFlagPaused|cursorFlagSkipped {
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
	return ch
}
