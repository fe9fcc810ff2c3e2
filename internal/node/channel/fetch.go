package channel

import (
	"encoding/binary"
	"errors"
	"fmt"

	"penstock/internal/node/delivery"
	"penstock/internal/node/fold"
	"penstock/internal/node/message"
	"penstock/segment"
	"penstock/segment/aio"
)

// fetched is the batch from which the last redelivered message was read. In a key-ordered channel many messages of one
// batch are redelivered, in any order. To verify the batch and iterate over its records for each of them would cost
// more than everything else. The view pins the batch until close. Channel.mu guards it.
type fetched struct {
	view   segment.View
	cur    *cursor // nil: no batch is pinned
	at     segment.Offset
	header *segment.Header
	body   []byte         // decompressed
	ends   []int          // ends, in body, of the records that were looked up so far
	one    segment.Header // scratch: the header for a batch of one record
}

// record returns the bytes of the record with this index in the batch. It returns false if the batch has fewer records.
func (f *fetched) record(index int) ([]byte, bool) {
	for len(f.ends) <= index {
		at := 0
		if n := len(f.ends); n > 0 {
			at = f.ends[n-1]
		}
		size, n := binary.Uvarint(f.body[at:])
		if n <= 0 || size > uint64(len(f.body)-at-n) {
			return nil, false
		}
		f.ends = append(f.ends, at+n+int(size))
	}
	if index == 0 {
		return f.body[:f.ends[0]], true
	}
	return f.body[f.ends[index-1]:f.ends[index]], true
}

// close releases the batch. Channel.mu is held.
func (f *fetched) close() {
	if f.cur != nil {
		f.cur, f.header, f.body = nil, nil, nil
		f.view.Release()
	}
}

// fetch reads the queued message whose turn it is (c.res), and offers it. mu is held.
func (c *Channel) fetch() {
	id := c.res.ID
	cur := c.cursorOf(id)
	err := c.fetchFrom(cur, id)
	if err == nil {
		cur.unread = nil
		return
	}
	if errors.Is(err, segment.ErrBelowStart) && c.posted.Load() {
		// It may have been carried elsewhere. The posts give its new place, and are applied before it is tried again.
		c.readLater(id, 1)
		return
	}
	if c.mayReadLater(err) {
		c.readLater(id, unreadPauseMs)
		if cur.unread == nil {
			cur.unread = err
			c.node.Log.Error("a message that has to come again cannot be read here; it waits, and nothing is lost: it comes "+
				"when its bytes were read from another copy, or from that copy's node",
				"topic", c.topic.Name(), "channel", c.name, "id", id.String(), "error", err)
		}
		return
	}
	// Retention removed the bytes, or they are damaged: the message can never be delivered, so it must not be
	// redelivered for ever.
	c.ev = delivery.Event{Kind: delivery.EvGone, ID: id}
	if !errors.Is(err, segment.ErrBelowStart) {
		c.node.Log.Error("a message cannot be delivered again",
			"topic", c.topic.Name(), "channel", c.name, "id", id.String(), "error", err)
		c.ev.Kind = delivery.EvDrop
	}
	c.step()
}

// readLater makes a message wait that cannot be read now. mu is held.
func (c *Channel) readLater(id message.ID, pauseMs int64) {
	c.ev = delivery.Event{Kind: delivery.EvUnread, ID: id, DelayMs: pauseMs}
	c.step()
}

// unreadPauseMs is the pause before a message that could not be read is tried again.
const unreadPauseMs = 1000

// mayReadLater says whether a message that cannot be read now may be readable later: another node may have a copy, or
// the device failed the read without proof of damage.
func (c *Channel) mayReadLater(err error) bool {
	switch {
	case errors.Is(err, segment.ErrBelowStart):
		return false
	case c.node.Cluster:
		return true
	}
	return errors.Is(err, aio.ErrMedia)
}

// fetchFrom offers the queued message whose turn it is (c.res). It reads the message from the batch that holds or
// carries it. mu is held.
func (c *Channel) fetchFrom(cur *cursor, id message.ID) (err error) {
	at, m := c.res.At, id.MsgID()
	if !c.res.HasAt {
		if at, _, err = cur.part.Log().Seek(m); err != nil {
			return err
		}
	}
	f := &c.fetched
	if f.cur != cur || f.at != at {
		f.close()
		if err := c.openFetched(cur, at); err != nil {
			return err
		}
	}
	if f.header.Control() {
		return c.fetchCarried(id)
	}
	if m < f.header.FirstID || m >= f.header.NextID() {
		return fmt.Errorf("message %s is not in the batch at offset %d, which has %d to %d",
			id, at, f.header.FirstID, f.header.NextID())
	}
	if record, ok := f.record(int(m - f.header.FirstID)); ok {
		f.one = segment.Header{Count: 1}
		c.records.Reset(&f.one, record)
		if r := c.records.NextRef(); r != nil {
			c.offerQueued(id, f.header, r)
			return nil
		}
	}
	return fmt.Errorf("message %s is not in the batch at offset %d (%v)", id, at, c.records.Err())
}

// openFetched pins the batch at offset at. mu is held.
func (c *Channel) openFetched(cur *cursor, at segment.Offset) error {
	f := &c.fetched
	c.inflated.close(c.node)
	if err := cur.part.Log().View(&f.view, at, 1); err != nil {
		return err
	}
	f.cur, f.at = cur, at
	c.iter.Reset(f.view.Bytes())
	h, body, ok := c.iter.Next()
	if !ok {
		f.close()
		return fmt.Errorf("there is no batch at offset %d (%v)", at, c.iter.Err())
	}
	plain, err := c.plain(cur, at, h, body)
	if err != nil {
		f.close()
		return err
	}
	f.header, f.body, f.ends = h, plain, f.ends[:0]
	return nil
}

// fetchCarried offers a message that the pinned control batch carries. mu is held.
func (c *Channel) fetchCarried(id message.ID) error {
	f, m := &c.fetched, id.MsgID()
	found, err := fold.CarriedRecord(f.body, m)
	if err != nil {
		return err
	}
	f.one = segment.Header{Count: 1, FirstID: m, Created: found.CreatedNs}
	c.records.Reset(&f.one, found.Record)
	r := c.records.NextRef()
	if r == nil {
		return fmt.Errorf("message %d is carried at offset %d and cannot be read (%v)", m, f.at, c.records.Err())
	}
	c.offerQueued(id, &f.one, r)
	return nil
}

// offerQueued offers a message that was not read at the reading cursor, and delivers it if the machine says so. mu is
// held.
func (c *Channel) offerQueued(id message.ID, h *segment.Header, r *segment.Record) {
	c.ev = delivery.Event{Kind: delivery.EvOffer, Flag: true, Part: id.Partition(), Msg: id.MsgID(), Bytes: len(r.Body)}
	if c.needsHeaders || len(r.Headers) != 0 {
		c.evalHeaders(r.Headers, &c.ev)
	}
	if c.step().Decision == delivery.Deliver {
		c.deliverOne(h, r)
	}
}
