package channel

import (
	"errors"
	"time"

	"penstock/batch"
	"penstock/internal/node/clock"
	"penstock/internal/node/delivery"
	"penstock/internal/node/fold"
	"penstock/internal/node/message"
	"penstock/segment"
)

// pump delivers what can be delivered now, on the caller's goroutine, and flushes the sinks that got messages. No lock
// is held.
func (c *Channel) pump() {
	var room [16]*Consumer
	for again := true; again; {
		c.mu.Lock()
		if c.closed != nil {
			c.mu.Unlock()
			return
		}
		again = c.deliverRound()
		flush := append(room[:0], c.touched...)
		for _, k := range c.touched {
			k.touched = false
		}
		clear(c.touched)
		c.touched = c.touched[:0]
		c.arm()
		c.mu.Unlock()
		for _, k := range flush {
			k.sink.Flush()
		}
	}
}

// deliverRound delivers until no message is left, no consumer has credit, or the turn has used up its deliveries. In
// the last case it returns true: pump releases mu and goes on with another round. mu is held.
func (c *Channel) deliverRound() (again bool) {
	left := c.node.limits().MaxDeliveriesAtOne
	if !c.mayDeliver() {
		return false // another node may already deliver these messages
	}
	c.tick()
	if c.partsAll != uint32(c.topic.Count()) {
		c.share() // the topic has grown: partitions that other nodes lead have a share of the limits now
	}
	for {
		c.syncVisible()
		before := left
		if left = c.takeTurns(left); left <= 0 {
			return true
		}
		if left < before {
			continue
		}
		// Announce that a commit should wake the channel, and then look once more. A commit makes messages visible
		// before it looks at hungry, so either this goroutine sees the messages, or the commit sees hungry.
		hungry := c.m.Hungry()
		c.noteFull(hungry)
		c.hungry.Store(hungry)
		if !hungry || !c.moreVisible() {
			return false
		}
	}
}

// noteFull notes how many partitions are full. If a consumer waits, it logs which, when that begins. mu is held.
func (c *Channel) noteFull(hungry bool) {
	n := 0
	for i := range c.cursors {
		cur := &c.cursors[i]
		if !cur.assigned || !c.m.Full(cur.number) {
			cur.full = false
			continue
		}
		if n++; hungry && !cur.full {
			cur.full = true
			c.node.Log.Warn("a channel delivers no new messages of a partition: too many wait between confirmed ones; nothing "+
				"is lost, and it goes on when the oldest of them are finished or become dead letters: see channel deferred",
				"topic", c.topic.Name(), "channel", c.name, "partition", cur.number,
				"oldest", batch.MakeID(cur.number, c.m.OldestUnconfirmed(cur.number)).String(), "limit", c.limits.MaxRanges)
		}
	}
	if n != c.troubles.last().FullPartitions {
		c.note(func(t *Troubles) { t.FullPartitions = n })
	}
}

// takeTurns offers the messages that the machine names, until it names none. It returns what remains of left, the
// number of messages that may still be offered. mu is held.
func (c *Channel) takeTurns(left int) int {
	defer func() {
		c.fetched.close()
		c.inflated.close(c.node)
	}()
	for stay := false; left > 0; stay = true {
		c.ev = delivery.Event{Kind: delivery.EvNext, Flag: stay}
		next := c.step()
		switch {
		case next.Decision != delivery.Read:
			return left
		case next.Queued:
			left--
			c.fetch()
			continue
		}
		c.fetched.close() // it borrows what read uses
		cur, turn := &c.cursors[next.Part], min(left, next.Count)
		from := c.m.ReadFrom(cur.number)
		rest := c.read(cur, turn)
		if left -= turn - rest; rest == turn && from == c.m.ReadFrom(cur.number) {
			c.ev = delivery.Event{Kind: delivery.EvStall, Part: cur.number}
			c.step()
		}
	}
	return left
}

// hasStaleEpoch says whether this node no longer serves one of the channel's partitions, or serves it in another epoch.
// The engine will then soon take the partition from the channel (Revoke), or shut the channel. mu is held.
func (r *channelReader) hasStaleEpoch() bool {
	for i := range r.cursors {
		if cur := &r.cursors[i]; cur.assigned && !cur.part.ServesIn(cur.epoch) {
			return true
		}
	}
	return false
}

// tick lets the machine handle timers that are due. mu is held.
func (c *Channel) tick() {
	if due, ok := c.m.NextDue(); ok && due <= c.node.now().UnixMilli() {
		c.ev = delivery.Event{Kind: delivery.EvTick}
		c.step()
	}
}

// arm sets the timer to the machine's next due time; mu is held.
func (c *Channel) arm() {
	c.queueControls()
	due, ok := c.m.NextDue()
	if !c.mayDeliver() {
		due, ok = c.node.now().Add(pausedInterval).UnixMilli(), true // poll: no event tells when this state ends
	}
	if !ok || c.armed != 0 && c.armed <= due {
		return
	}
	c.armed = due
	c.timer.Reset(c.node.until(due))
}

// pausedInterval is how often a channel that may not deliver checks whether it may.
const pausedInterval = 50 * time.Millisecond

// moreVisible says whether messages became visible, or events were posted, since syncVisible. mu is held.
func (c *Channel) moreVisible() bool {
	for i := range c.cursors {
		if cur := &c.cursors[i]; cur.assigned && cur.visibleEnd() > cur.end {
			return true
		}
	}
	return c.posted.Load()
}

// syncVisible tells the machine which messages are visible now. Deferred messages are posted before they become
// visible. So syncVisible reads the visible ends first and applies the posts after that: it misses no deferred message
// below an end. mu is held.
func (c *Channel) syncVisible() {
	for i := range c.cursors {
		c.cursors[i].newEnd = c.cursors[i].visibleEnd()
	}
	c.applyPostsLocked()
	for i := range c.cursors {
		cur := &c.cursors[i]
		if !cur.assigned || cur.newEnd <= cur.end {
			continue
		}
		cur.end = cur.newEnd
		c.ev = delivery.Event{Kind: delivery.EvVisible, Part: cur.number, End: cur.end}
		c.step()
	}
}

// read offers messages of one partition to the machine, batch by batch. It returns what remains of left, the number of
// messages that this turn may still deliver. mu is held.
func (c *Channel) read(cur *cursor, left int) int {
	if cur.bad != nil {
		return left
	}
	for left > 0 && c.m.Hungry() {
		next := c.m.ReadFrom(cur.number)
		if next >= cur.end {
			c.inflated.drop(c.node)
			break
		}
		if !cur.found && !c.find(cur, next) {
			break
		}
		switch err := cur.ahead.open(c.node, cur); {
		case err == nil:
		case errors.Is(err, segment.ErrBelowStart):
			cur.found = false
			continue
		default:
			c.stopReading(cur, err)
			return left
		}
		var more bool
		left, more = c.offerRun(cur, left)
		cur.ahead.close(c.node)
		c.inflated.close(c.node)
		if !more {
			break
		}
	}
	return left
}

// find looks up the batch of the next message. If retention has removed it, the machine first moves on to the log's
// start. find returns false if there is nothing to read. mu is held.
func (c *Channel) find(cur *cursor, next segment.MsgID) bool {
	at, _, err := cur.part.Log().Seek(next)
	if errors.Is(err, segment.ErrBelowStart) {
		_, _, start := cur.part.Log().Start()
		c.trimmed(cur, start, 0)
		next = c.m.ReadFrom(cur.number)
		if next >= cur.end {
			return false
		}
		at, _, err = cur.part.Log().Seek(next)
	}
	if err != nil {
		c.stopReading(cur, err)
		return false
	}
	cur.at, cur.found = at, true
	return true
}

// trimmed tells the machine where the log begins; at: see delivery.EvTrimmed. A place where reading stopped may be
// gone.
// mu is held.
func (c *Channel) trimmed(cur *cursor, start segment.MsgID, at segment.Offset) {
	next := c.m.ReadFrom(cur.number)
	c.ev = delivery.Event{Kind: delivery.EvTrimmed, Part: cur.number, Start: start, At: at}
	c.step()
	if cur.found = false; c.m.ReadFrom(cur.number) != next {
		cur.bad = nil
	}
}

// stopReading stops reading a partition whose bytes cannot be read, and logs that once. Messages in flight can still be
// confirmed. No message from this place on is delivered until the place is repaired, or retention has removed it. mu is
// held.
func (c *Channel) stopReading(cur *cursor, err error) {
	cur.bad = err
	c.node.Log.Error("a channel stops reading a partition",
		"topic", c.topic.Name(), "channel", c.name, "partition", cur.number, "error", err)
}

// offerRun offers the messages of a pinned run of batches. It returns what remains of left, and false if the rest must
// wait. mu is held.
func (c *Channel) offerRun(cur *cursor, left int) (int, bool) {
	c.iter.Reset(cur.ahead.view.Bytes())
	for h, body, ok := c.iter.Next(); ok; h, body, ok = c.iter.Next() {
		next := c.m.ReadFrom(cur.number)
		if h.NextID() > next && !h.Control() {
			if next >= cur.end {
				return left, false
			}
			var more bool
			if left, more = c.offerBatch(cur, h, body, left); !more {
				return left, false
			}
		}
		cur.at += segment.Offset(h.Size())
	}
	if err := c.iter.Err(); err != nil {
		c.stopReading(cur, err)
		return left, false
	}
	return left, true
}

// offerBatch offers one batch's messages, beginning at the machine's reading cursor, in runs where that is possible.
// Its results are those of offerRun. mu is held.
func (c *Channel) offerBatch(cur *cursor, h *segment.Header, body []byte, left int) (int, bool) {
	records, err := c.plain(cur, cur.at, h, body)
	if err != nil {
		c.stopReading(cur, err)
		return left, false
	}
	b := offering{cur: cur, h: h, now: c.node.now().UnixNano(), next: c.m.ReadFrom(cur.number), left: left}
	// If judged is false, the messages have no headers, and the channel needs none.
	b.judged = c.needsHeaders || h.Flags&segment.FlagHeaders != 0
	b.inRuns = c.runSinks > 0 && !b.judged && c.timed == nil
	// set once per batch, because it is large
	c.offer = delivery.Event{Kind: delivery.EvOffer, Part: cur.number, At: cur.at}
	var place segment.Place
	batch := batchKey{cur.number, cur.at, h.CRC}
	if s := &cur.stopped; s.batch == batch && s.id == b.next {
		place = s.place
	}
	c.records.Resume(h, records, place)
	id, index := h.FirstID+segment.MsgID(place.Index), place.Index
	for ; ; index, id = index+1, id+1 {
		if b.inRuns && id >= b.next {
			var how offered
			index, how = c.deliverRuns(&b, index)
			if id = h.FirstID + segment.MsgID(index); how == offerStop {
				cur.stopped = stopped{batch, id, c.records.Place(h)}
				return b.left, false
			}
		}
		place = c.records.Place(h)
		r := c.records.NextRef()
		if r == nil {
			break
		}
		if id < b.next {
			continue
		}
		c.offer.Msg, c.offer.Index = id, index
		switch c.offerRecord(&b, r) {
		case offerOn:
		case offerStop: // the next round continues behind it
			c.endRun(&b)
			cur.stopped = stopped{batch, id + 1, c.records.Place(h)}
			return b.left, false
		case offerHeld:
			cur.stopped = stopped{batch, id, place}
			return b.left, false
		}
	}
	c.endRun(&b)
	if err := c.records.Err(); err != nil {
		c.stopReading(cur, err)
		return b.left, false
	}
	return b.left, true
}

// offering is the state of offerBatch.
type offering struct {
	cur    *cursor
	h      *segment.Header
	now    int64 // unix ns
	judged bool
	inRuns bool          // deliverRuns may deliver messages
	next   segment.MsgID // messages below it were dealt with
	left   int           // messages that this turn may still deliver, those of run included

	// The run that is being delivered. The machine hears of it at its end.
	run   delivery.Run // what the machine has allowed
	given int          // how many of it were delivered
	event delivery.Event
}

// offered says how offerBatch goes on after a message.
type offered uint8

const (
	offerOn   offered = iota // with the next message
	offerStop                // the turn is over
	offerHeld                // the message must wait, and the turn is over
)

// offerRecord offers the message that c.offer names. mu is held.
func (c *Channel) offerRecord(b *offering, r *segment.Record) offered {
	id := c.offer.Msg
	if r.Defer != 0 {
		if due := b.h.Created/1e6 + int64(r.Defer); due*1e6 > b.now {
			c.endRun(b)
			b.next = c.deferAgain(b.cur, id, min(due, clock.CeilMs(b.now)+int64(r.Defer)))
			return offerOn
		}
	}
	if b.judged {
		c.evalHeaders(r.Headers, &c.offer)
	}
	if c.mayRun(b) {
		return c.giveInRun(b, r)
	}
	c.endRun(b)
	c.offer.Bytes = len(r.Body)
	c.m.Step(b.now, &c.offer, &c.res)
	switch c.res.Decision {
	case delivery.Skip: // it counts, too: a filter may reject a million messages in a row
	case delivery.Hold:
		if c.res.Why == delivery.HoldMoved {
			b.next = c.m.ReadFrom(b.cur.number)
			return offerOn
		}
		return offerHeld
	case delivery.Deliver:
		c.deliverOne(b.h, r)
	}
	if b.left--; b.left == 0 {
		return offerStop
	}
	return offerOn
}

// evalHeaders sets in ev whether the channel wants the message, whether it is for this channel only, and its key and
// tag, according to its headers.
func (c *Channel) evalHeaders(headers []segment.KV, ev *delivery.Event) {
	only := headerOf(headers, ChannelHeader) // Redrive published the message for this channel
	ev.Own = only != nil && string(only) == c.name
	ev.Unwanted = only != nil && !ev.Own || !c.matcher.Match(headers)
	ev.Key = 0
	if c.settings.Order == fold.OrderKey {
		if key := headerOf(headers, c.keyHeader); key != nil {
			ev.Key = fold.HashKey(key)
		}
	}
	ev.Tag = tagOf(headers) // always: a consumer of this tag may subscribe before a redelivery
}

// tagOf returns a message's tag in the form that the machine uses; 0: none.
func tagOf(headers []segment.KV) uint64 {
	if tag := headerOf(headers, TagHeader); len(tag) != 0 {
		return fold.HashKey(tag)
	}
	return 0
}

// deferAgain makes a message that the reading cursor has reached wait for its due time. That happens after a seek back
// to a message that the channel had dropped, or that is older than the channel. deferAgain returns the id to read next.
func (c *Channel) deferAgain(cur *cursor, id segment.MsgID, dueMs int64) segment.MsgID {
	c.deferred[0] = fold.DeferredMessage{ID: id, DueMs: dueMs, At: cur.at}
	c.ev = delivery.Event{Kind: delivery.EvDeferredPublished, Part: cur.number, Deferred: c.deferred[:]}
	c.step()
	return c.m.ReadFrom(cur.number)
}

// deliverOne gives the message that the machine just assigned to its client's sink. mu is held.
func (c *Channel) deliverOne(h *segment.Header, r *segment.Record) {
	k := c.consumers[c.res.Client]
	d := k.deliveryOf(c.res.ID, h, r)
	d.Attempts, d.Number = c.res.Attempts, c.res.Number
	if d.Ordered && k.holds != nil {
		k.limit(d, c.cursorOf(c.res.ID).reign)
	}
	if c.res.Serial != 0 || d.Serial != 0 {
		d.Serial, d.Epoch = c.res.Serial, 0
		if d.Serial != 0 {
			d.Epoch = c.cursorOf(c.res.ID).epoch
		}
	}
	if !c.give(k) {
		c.block(k)
	}
}

// deliveryOf returns the delivery of a message to the consumer, in which the caller sets Attempts, Number, Serial and
// Epoch. It is large, and used again for each message. Channel.mu is held.
func (k *Consumer) deliveryOf(id message.ID, h *segment.Header, r *segment.Record) *message.Delivery {
	d := &k.delivery
	d.Ordered = k.ch.settings.Order != fold.OrderNone
	if d.Until.Clock != nil {
		d.Until = message.Deadline{}
	}
	d.ID, d.Timestamp, d.Body, d.Headers = id, h.Created+r.TimeDelta*1000, r.Body, r.Headers
	return d
}

// give gives a consumer's delivery to its sink, which must copy the body and the headers. It returns false if the sink
// is full now. mu is held.
func (c *Channel) give(k *Consumer) bool {
	k.touch()
	if c.timed != nil {
		c.timed.Delivered(&k.delivery)
	}
	room := k.sink.Deliver(&k.delivery)
	k.delivery.Body, k.delivery.Headers = nil, nil
	return room
}

// block tells the machine that a consumer's sink is full. mu is held.
func (c *Channel) block(k *Consumer) {
	c.ev = delivery.Event{Kind: delivery.EvBlocked, Client: k.id, Flag: true}
	c.step()
}

// cursorOf returns the cursor of the partition of a message. mu is held.
func (r *channelReader) cursorOf(id message.ID) *cursor {
	for i := range r.cursors {
		if r.cursors[i].number == id.Partition() {
			return &r.cursors[i]
		}
	}
	panic("BUG: the channel machine names a partition that the topic does not have")
}

// forgetGone tells the machine which deferred messages were removed with the log below its start. If a client has one
// in flight, the client may still finish it; the others count as confirmed. mu is held.
func (c *Channel) forgetGone(cur *cursor, gone []segment.MsgID) {
	count := 0
	for _, id := range gone {
		c.ev = delivery.Event{Kind: delivery.EvGone, ID: batch.MakeID(cur.number, id)}
		if c.step().Decision == delivery.Skip {
			count++
		}
	}
	if count > 0 {
		c.node.Log.Warn("messages that waited for their time are gone: retention by size, age or count removed them first",
			"topic", c.topic.Name(), "channel", c.name, "partition", cur.number, "count", count)
	}
}
