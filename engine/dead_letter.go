package engine

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"penstock/engine/core"
	"penstock/replicate/wire"
	"penstock/segment"
)

// Headers that the engine adds to a dead letter, and to one that was sent back.
const (
	OriginTopicHeader   = ReservedHeaders + "origin-topic"
	OriginChannelHeader = ReservedHeaders + "origin-channel"
	OriginIDHeader      = ReservedHeaders + "origin-id" // 16 hex digits; two dead letters with the same one are duplicates
	AttemptsHeader      = ReservedHeaders + "attempts"
	ChannelHeader       = ReservedHeaders + "channel" // only this channel gets the message; Redrive sets it
)

// TagHeader is the header that says which consumers get a message: see ConsumerOptions.Tag.
const TagHeader = "tag"

// redriveChannel is the channel of a dead-letter topic from which Redrive sends messages back. It exists from the
// topic's beginning. Messages that it has not confirmed were not sent back yet, and are kept.
const redriveChannel = "redrive"

const (
	maxMoveCount    = 64 // dead letters that are on their way at once
	movePause       = 50 * time.Millisecond
	maxMovePause    = 30 * time.Second
	deadHeaderCount = 4 // of the headers above in a dead letter
)

// startDeadLetterMover starts moveDeadLetters if the outbox has dead letters. Before the channel is started it does
// nothing: while the engine opens, not all topics exist and nothing can be published. mu is held.
func (c *Channel) startDeadLetterMover() {
	if !c.started || c.deadLetterMover || c.closed != nil || c.settings.Version == 0 || c.outboxCount() == 0 {
		return
	}
	c.deadLetterMover = true
	c.e.background(c.moveDeadLetters)
}

// outboxCount returns how many dead letters of the channel are not in its dead-letter topic yet. mu is held.
func (c *Channel) outboxCount() (n int) {
	for i := range c.cursors {
		if cur := &c.cursors[i]; cur.assigned {
			c.outbox = c.m.Outbox(cur.number, c.outbox[:0])
			n += len(c.outbox)
		}
	}
	return n
}

// moveDeadLetters publishes the dead letters in the outbox to the dead-letter topic. When they are stored there, it
// records that in the log. After a crash between the two a dead letter is published twice, but none is lost. It runs on
// a goroutine of its own until the outbox is empty.
func (c *Channel) moveDeadLetters() {
	pause, told := movePause, ""
	for {
		dead, name, ok := c.nextDead()
		if !ok {
			return
		}
		moved, err := c.moveDead(dead, name)
		c.movedDead(moved)
		if err == nil {
			pause, told = movePause, ""
			continue
		}
		if text := err.Error(); text != told {
			told = text
			c.e.log.Warn("dead letters could not be moved; they are kept, and it is tried again",
				"topic", c.t.name, "channel", c.name, "to", name, "error", err)
		}
		if !c.e.host.Pause(pause, c.done) {
			return
		}
		pause = min(2*pause, maxMovePause)
	}
}

// deadLetter is an entry of an outbox.
type deadLetter struct {
	id       ID
	attempts uint16
}

// nextDead returns some of the outbox. If ok is false there is nothing, and the caller's goroutine must end.
func (c *Channel) nextDead() (dead []deadLetter, name string, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed != nil {
		return nil, "", false
	}
	for i := range c.cursors {
		if cur := &c.cursors[i]; cur.assigned && len(dead) < maxMoveCount {
			c.outbox = c.m.Outbox(cur.number, c.outbox[:0])
			for _, d := range c.outbox[:min(len(c.outbox), maxMoveCount-len(dead))] {
				dead = append(dead, deadLetter{core.MakeID(cur.number, d.ID), d.Attempts})
			}
		}
	}
	if len(dead) == 0 {
		c.deadLetterMover = false
		return nil, "", false
	}
	name = c.settings.DeadLetter
	if name == "" {
		name = c.t.name + core.DeadLetterSuffix
	}
	return dead, name, true
}

// moveDead publishes dead letters, and returns those that are stored in their topic now.
func (c *Channel) moveDead(dead []deadLetter, name string) (moved []ID, err error) {
	ctx := c.e.members.context()
	to, err := c.e.deadLetterTopic(ctx, name)
	if err != nil {
		return nil, err
	}
	var ms []Outgoing
	var ids []ID
	p := peeker{count: 1, room: MaxPeekBytes, whole: true, readAhead: c.e.opts.ReadAheadBytes}
	for _, d := range dead {
		m, err := p.one(c.t, d.id)
		if errors.Is(err, segment.ErrBelowStart) {
			m, err = c.t.carriedOne(ctx, d.id)
		}
		switch {
		case errors.Is(err, segment.ErrBelowStart):
			c.e.log.Warn("a dead letter is gone: retention by size or age removed it before it was moved",
				"topic", c.t.name, "channel", c.name, "id", d.id.String())
			moved = append(moved, d.id)
			continue
		case err != nil:
			return moved, err // damage may be repaired, so it is tried again
		case m == nil: // no room: the next round
			continue
		}
		ids = append(ids, d.id)
		ms = append(ms, Outgoing{Body: m.Body, Headers: c.deadHeaders(m.Headers, d)})
	}
	for i, perr := range to.publishEach(ctx, ms) {
		if perr == nil {
			moved = append(moved, ids[i])
		} else {
			err = perr
		}
	}
	return moved, err
}

// deadHeaders returns the headers of a dead letter: its own, as many as fit, and those that name its origin.
func (c *Channel) deadHeaders(own []Header, d deadLetter) []Header {
	hs := withoutReserved(own)
	hs = hs[:min(len(hs), MaxHeaderCount-deadHeaderCount)]
	return append(hs, header(OriginTopicHeader, c.t.name), header(OriginChannelHeader, c.name),
		header(OriginIDHeader, d.id.String()), header(AttemptsHeader, strconv.Itoa(int(d.attempts))))
}

func header(name, value string) Header { return Header{Key: []byte(name), Value: []byte(value)} }

// withoutReserved returns a copy without the engine's own headers.
func withoutReserved(hs []Header) []Header {
	return slices.DeleteFunc(slices.Clone(hs),
		func(h Header) bool { return strings.HasPrefix(string(h.Key), ReservedHeaders) })
}

// deadLetterTopic returns the topic of that name, with the channel that keeps its messages. It creates what is missing.
func (e *Engine) deadLetterTopic(ctx context.Context, name string) (*Topic, error) {
	t, err := e.CreateTopic(ctx, name, 0)
	if err != nil {
		return nil, err
	}
	if t.hasRedrive.Load() && t.hasChannel(redriveChannel) {
		return t, nil
	}
	// The channel that this node knows may not be committed yet, and a failover could undo it.
	if _, err = t.CreateChannel(ctx, redriveChannel); err == nil {
		t.hasRedrive.Store(true)
	}
	return t, err
}

// movedDead records in the log which dead letters left the outbox.
func (c *Channel) movedDead(ids []ID) {
	if len(ids) == 0 {
		return
	}
	slices.Sort(ids)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed != nil {
		return // the next leader moves them again
	}
	for i := range c.cursors {
		if rs := rangesOf(ids, c.cursors[i].number); c.cursors[i].assigned && len(rs) > 0 {
			c.ev = core.Event{Kind: core.EvDeadMoved, Part: c.cursors[i].number, Ranges: rs}
			c.step()
		}
	}
	c.deadMoved += uint64(len(ids))
	c.queueControls()
}

// rangesOf returns the ids of one partition as ranges. ids are sorted.
func rangesOf(ids []ID, part uint32) (rs []core.IDRange) {
	for _, id := range ids {
		if id.Partition() != part {
			continue
		}
		m := id.MsgID()
		if n := len(rs); n > 0 && rs[n-1].To == m {
			rs[n-1].To++
		} else {
			rs = append(rs, core.IDRange{From: m, To: m + 1})
		}
	}
	return rs
}

// one copies one whole message. It returns nil if there is no room for it.
func (p *peeker) one(t *Topic, id ID) (*PeekedMessage, error) {
	before := len(p.found)
	pt := t.partitions()[id.Partition()]
	err := p.readRange(pt, core.IDRange{From: id.MsgID(), To: id.MsgID() + 1})
	p.view.Release()
	switch {
	case err != nil:
		return nil, err
	case len(p.found) == before:
		return nil, nil
	}
	return &p.found[before], nil
}

// carriedOne returns a copy of a message that a control batch carries; ErrBelowStart: none does.
func (t *Topic) carriedOne(ctx context.Context, id ID) (*PeekedMessage, error) {
	pt := t.partitions()[id.Partition()]
	p := peeker{whole: true, room: MaxPeekBytes}
	list, _, err := pt.OnlyCarried(ctx, id.MsgID(), 1)
	if err == nil && len(list) == 1 && list[0].ID == id.MsgID() {
		err = p.readCarried(ctx, pt, list)
	}
	switch {
	case err != nil:
		return nil, err
	case len(p.found) == 0:
		return nil, segment.ErrBelowStart
	}
	return &p.found[0], nil
}

// Redrive sends up to max of the channel's dead letters back: it publishes them to the channel's topic, for this
// channel only, and confirms them in the channel "redrive" of the dead-letter topic. It returns their number. After a
// crash or an error in between, one may be sent back twice; OriginIDHeader of the dead letter identifies it.
func (c *Channel) Redrive(ctx context.Context, max int) (moved int, err error) {
	s, err := c.ReadSettings(ctx)
	if err != nil {
		return 0, err
	}
	name := s.DeadLetter
	if name == "" {
		name = c.t.name + core.DeadLetterSuffix
	}
	from, ok := c.e.LookupTopic(name)
	if !ok {
		return 0, nil
	}
	store, err := from.CreateChannel(ctx, redriveChannel)
	if err != nil {
		return 0, err
	}
	req := &wire.PeekRequest{OriginTopic: c.t.name, OriginChannel: c.name, Next: make([]ID, from.Partitions())}
	for moved < max {
		var dead []PeekedMessage
		req.Count = min(max-moved, maxMoveCount)
		op := wire.Operation{Kind: wire.OpPeek, Peek: req}
		if err := store.ask(ctx, op, nil, collect(&dead)); err != nil || len(dead) == 0 {
			return moved, err
		}
		dead = dead[:min(len(dead), max-moved)]
		n, err := c.sendBack(ctx, store, dead)
		if moved += n; err != nil {
			return moved, err
		}
		for _, m := range dead {
			if next := m.ID + 1; next > req.Next[m.ID.Partition()] {
				req.Next[m.ID.Partition()] = next
			}
		}
	}
	return moved, nil
}

// sendBack publishes dead letters to their original topic, and confirms those that are stored there.
func (c *Channel) sendBack(ctx context.Context, store *Channel, dead []PeekedMessage) (moved int, err error) {
	ms := make([]Outgoing, len(dead))
	for i := range dead {
		ms[i] = Outgoing{Body: dead[i].Body, Headers: append(withoutReserved(dead[i].Headers), header(ChannelHeader, c.name))}
	}
	op := wire.Operation{Kind: wire.OpConfirm}
	for i, perr := range c.t.publishEach(ctx, ms) {
		if perr == nil {
			op.IDs = append(op.IDs, dead[i].ID)
		} else {
			err = fmt.Errorf("engine: a dead letter could not be sent back, it stays where it is: %w", perr)
		}
	}
	if len(op.IDs) == 0 {
		return 0, err
	}
	concerned := func(n uint32) bool {
		return slices.ContainsFunc(op.IDs, func(id ID) bool { return id.Partition() == n })
	}
	return len(op.IDs), errors.Join(err, store.ask(ctx, op, concerned, nil))
}

// confirmLocal confirms op.IDs, whichever consumer has them in flight.
func (c *Channel) confirmLocal(ctx context.Context, op wire.Operation) error {
	var evs []core.Event
	for _, id := range op.IDs {
		if n := id.Partition(); op.About(n) && c.hasPartition(int(n)) {
			evs = append(evs, core.Event{Kind: core.EvDrop, ID: id})
		}
	}
	if len(evs) == 0 {
		return c.closedErr()
	}
	return c.change(ctx, evs...)
}
