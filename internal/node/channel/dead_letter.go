package channel

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"penstock/batch"
	"penstock/internal/node/delivery"
	"penstock/internal/node/errs"
	"penstock/internal/node/fold"
	"penstock/internal/node/message"
	"penstock/replicate/wire"
	"penstock/segment"
)

// Headers that the engine adds to a dead letter, and to a message that Redrive publishes again.
const (
	OriginTopicHeader   = message.ReservedHeaders + "origin-topic"
	OriginChannelHeader = message.ReservedHeaders + "origin-channel"
	// 16 hex digits; two dead letters with the same id are duplicates
	OriginIDHeader = message.ReservedHeaders + "origin-id"
	AttemptsHeader = message.ReservedHeaders + "attempts"
	// how often the message became a dead letter since it was published, or published again by Redrive
	HopsHeader    = message.ReservedHeaders + "hops"
	ChannelHeader = message.OnlyChannelHeader // only this channel gets the message; Redrive sets it
)

// TagHeader is the header that says which consumers get a message: see ConsumerOptions.Tag.
const TagHeader = "tag"

const (
	maxMoveCount = 64 // most dead letters that are moved at once
	movePause    = 50 * time.Millisecond
	maxMovePause = 30 * time.Second
	asidePause   = 250 * time.Millisecond // how often it is looked for new ones while others are aside
)

// deadMover is the goroutine that moves the dead letters of a channel to their topic. It runs while the outbox has
// some. A crash loses it; the next channel starts one if the log has dead letters.
type deadMover struct {
	c    *Channel
	told string // the last reason that was logged
}

// startDeadLetterMover starts a deadMover if the outbox has dead letters. Before the channel is started it does
// nothing: while the engine opens, not all topics exist and nothing can be published. mu is held.
func (c *Channel) startDeadLetterMover() {
	if !c.started || c.deadLetterMover || c.closed != nil || c.settings.Version == 0 || c.outboxCount() == 0 {
		return
	}
	c.deadLetterMover = true
	m := &deadMover{c: c}
	c.node.Host.SpawnIn(c.node.Tasks, m.run)
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

// run publishes the dead letters in the outbox to the dead-letter topic. When they are stored there, it
// writes that to the log of the partition. A crash between the two lets a dead letter be published twice, but loses
// none. It ends when the outbox is empty.
func (m *deadMover) run() {
	c := m.c
	pause := movePause
	for {
		dead, name, ok := m.next()
		if !ok {
			return
		}
		moved, failed, err := m.move(dead, name)
		m.moved(moved)
		if why := m.setAside(failed, err); why != "" && why != m.told {
			m.told = why
			c.node.Log.Warn("dead letters could not be moved; they are kept, and it is tried again",
				"topic", c.topic.Name(), "channel", c.name, "to", name, "error", why)
		}
		if err == nil && len(moved)+len(failed) > 0 {
			pause = movePause
			continue
		}
		if err == nil {
			pause = asidePause // all that is left is aside
		}
		if !c.node.Host.Pause(pause, c.done) {
			return
		}
		pause = min(2*pause, maxMovePause)
	}
}

// failedLetter is a dead letter that could not be moved.
type failedLetter struct {
	id  message.ID
	why error
}

// setAside notes which dead letters could not be moved. err says why the dead-letter topic takes none. It returns the
// last reason; "": there is none.
func (m *deadMover) setAside(failed []failedLetter, err error) (why string) {
	c := m.c
	c.mu.Lock()
	defer c.mu.Unlock()
	if err != nil {
		why = reason(err)
	}
	c.aside.FailAll(why)
	for _, f := range failed {
		why = reason(f.why)
		c.aside.Fail(f.id, why, c.node.now().UnixNano())
	}
	if c.closed == nil {
		c.noteAside()
	}
	return why
}

// reason returns the text of an error for people, without the name of the package.
func reason(err error) string { return strings.TrimPrefix(err.Error(), "engine: ") }

// deadLetter is an entry of an outbox.
type deadLetter struct {
	id       message.ID
	attempts uint16
}

// next returns some dead letters of the outbox that may be tried now, and their topic. If ok is false, the outbox
// is empty, and the caller's goroutine must end.
func (m *deadMover) next() (dead []deadLetter, name string, ok bool) {
	c := m.c
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed != nil {
		return nil, "", false
	}
	waiting, now := 0, c.node.now().UnixNano()
	for i := range c.cursors {
		if cur := &c.cursors[i]; cur.assigned && len(dead) < maxMoveCount {
			c.outbox = c.m.Outbox(cur.number, c.outbox[:0])
			waiting += len(c.outbox)
			for _, d := range c.outbox {
				if id := batch.MakeID(cur.number, d.ID); len(dead) < maxMoveCount && !c.aside.Waits(id, now) {
					dead = append(dead, deadLetter{id, d.Attempts})
				}
			}
		}
	}
	if waiting == 0 {
		c.deadLetterMover = false
		c.aside.Clear()
		c.noteAside()
		return nil, "", false
	}
	name = c.settings.DeadLetter
	if name == "" {
		name = c.topic.Name() + fold.DeadLetterSuffix
	}
	return dead, name, true
}

// move publishes dead letters, and returns those that are stored in their topic now, and those that could not be
// moved. err says that the topic takes none.
func (m *deadMover) move(dead []deadLetter, name string) (moved []message.ID, failed []failedLetter, err error) {
	c := m.c
	if len(dead) == 0 {
		return nil, nil, nil
	}
	var ms []message.Outgoing
	var ids []message.ID
	p := peeker{count: 1, room: MaxPeekBytes, whole: true, readAhead: c.node.limits().ReadAheadBytes}
	for _, d := range dead {
		letter, err := m.read(&p, d)
		var headers []message.Header
		if err == nil && letter != nil {
			headers, err = m.headers(letter.Headers, d)
		}
		switch {
		case errors.Is(err, segment.ErrBelowStart):
			c.node.Log.Warn("a dead letter is gone: retention by size or age removed it before it was moved",
				"topic", c.topic.Name(), "channel", c.name, "id", d.id.String())
			moved = append(moved, d.id)
		case err != nil: // damage may be repaired, and settings changed: it is tried again
			failed = append(failed, failedLetter{d.id, err})
		case letter != nil: // otherwise there was no room: the next round moves it
			ids = append(ids, d.id)
			ms = append(ms, message.Outgoing{Body: letter.Body, Headers: headers})
		}
	}
	if len(ms) == 0 {
		return moved, failed, nil
	}
	ctx := c.node.Context() // what is gone counts as moved, whether the topic can be opened or not
	publish, err := c.topic.OpenDeadLetters(ctx, name)
	if err != nil {
		return moved, failed, err
	}
	for i, perr := range publish(ctx, ms) {
		if perr == nil {
			moved = append(moved, ids[i])
		} else {
			failed = append(failed, failedLetter{ids[i], perr})
		}
	}
	return moved, failed, nil
}

// read returns a copy of the message of a dead letter; nil: there is no room for it.
func (m *deadMover) read(p *peeker, d deadLetter) (*wire.PeekedMessage, error) {
	c := m.c
	pt := c.topic.Partition(int(d.id.Partition()))
	letter, err := p.one(pt, d.id.MsgID())
	if errors.Is(err, segment.ErrBelowStart) {
		return carriedOne(pt, d.id.MsgID())
	}
	return letter, err
}

// errHops says that a message went from one dead-letter topic to the next too often.
var errHops = fmt.Errorf("the message became a dead letter %d times, each time of the dead-letter topic before: "+
	"the settings of their channels make a cycle of topics", delivery.MaxDeadHops)

// headers returns the headers of a dead letter: its own, as many as fit, and those that name its origin.
func (m *deadMover) headers(own []message.Header, d deadLetter) ([]message.Header, error) {
	c := m.c
	hops, ok := delivery.DeadHops(headerOf(own, HopsHeader))
	if !ok {
		return nil, errHops
	}
	hs := WithRoom(WithoutReserved(own))
	return append(hs, NewHeader(OriginTopicHeader, c.topic.Name()), NewHeader(OriginChannelHeader, c.name),
		NewHeader(OriginIDHeader, d.id.String()), NewHeader(AttemptsHeader, strconv.Itoa(int(d.attempts))),
		NewHeader(HopsHeader, strconv.Itoa(hops))), nil
}

// WithRoom returns as many of a message's headers as leave room for those that the engine adds. It keeps the first key,
// which chooses the partition. Messages that were stored before publishers were held to message.MaxHeaderCount may have
// more.
func WithRoom(hs []message.Header) []message.Header {
	if len(hs) <= message.MaxHeaderCount {
		return hs
	}
	last := message.MaxHeaderCount - 1
	for i := last + 1; i < len(hs); i++ {
		if string(hs[i].Key) == message.KeyHeader && headerOf(hs[:last+1], message.KeyHeader) == nil {
			hs[last] = hs[i]
		}
	}
	return hs[:last+1]
}

// NewHeader returns a header with this name and value.
func NewHeader(name, value string) message.Header {
	return message.Header{Key: []byte(name), Value: []byte(value)}
}

// WithoutReserved returns a copy without the engine's own headers.
func WithoutReserved(hs []message.Header) []message.Header {
	return slices.DeleteFunc(slices.Clone(hs),
		func(h message.Header) bool { return strings.HasPrefix(string(h.Key), message.ReservedHeaders) })
}

// moved notes for the log which dead letters left the outbox.
func (m *deadMover) moved(ids []message.ID) {
	c := m.c
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
			c.ev = delivery.Event{Kind: delivery.EvDeadMoved, Part: c.cursors[i].number, Ranges: rs}
			c.step()
		}
	}
	for _, id := range ids {
		c.aside.Forget(id)
	}
	c.deadMoved += uint64(len(ids))
	c.queueControls()
}

// rangesOf returns the ids of one partition as ranges. ids must be sorted.
func rangesOf(ids []message.ID, part uint32) (rs []fold.IDRange) {
	for _, id := range ids {
		if id.Partition() != part {
			continue
		}
		m := id.MsgID()
		if n := len(rs); n > 0 && rs[n-1].To == m {
			rs[n-1].To++
		} else {
			rs = append(rs, fold.IDRange{From: m, To: m + 1})
		}
	}
	return rs
}

// one returns a copy of one whole message, or nil if there is no room for it.
func (p *peeker) one(pt Partition, id segment.MsgID) (*wire.PeekedMessage, error) {
	before := len(p.found)
	err := p.readRange(pt, fold.IDRange{From: id, To: id + 1})
	p.view.Release()
	switch {
	case err != nil:
		return nil, err
	case len(p.found) == before:
		return nil, nil
	}
	return &p.found[before], nil
}

// carriedOne returns a copy of a message that a control batch carries. If no batch carries it, the error is
// ErrBelowStart.
func carriedOne(pt Partition, id segment.MsgID) (*wire.PeekedMessage, error) {
	p := peeker{whole: true, room: MaxPeekBytes}
	if list, _ := pt.OnlyCarried(id, 1); len(list) == 1 && list[0].ID == id {
		if err := p.readCarried(pt, list); err != nil {
			return nil, err
		}
	}
	if len(p.found) == 0 {
		return nil, segment.ErrBelowStart
	}
	return &p.found[0], nil
}

// claimRedrive takes the claim on the channel's dead letters, or gives it back.
func (c *Channel) claimRedrive(op wire.Operation) (wire.RedriveClaim, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed != nil {
		return wire.RedriveClaim{}, c.closed
	}
	if !op.Flag {
		c.redrive.Give(op.Claim)
		return wire.RedriveClaim{}, nil
	}
	c.applyPostsLocked()
	taken := c.redrive.Take(op.Claim, c.node.now().UnixNano())
	return wire.RedriveClaim{Taken: taken, Skipped: c.m.Stats().Skipped}, nil
}

// AboutMessage says whether a message was refused because of what it is, so that it would be refused each time.
func AboutMessage(err error) bool {
	return slices.ContainsFunc([]error{
		errs.ErrMessageTooBig, errs.ErrBatchTooBig, errs.ErrEmptyMessage, errs.ErrHeaders, errs.ErrHeaderBytes, errHops,
	}, func(one error) bool { return errors.Is(err, one) })
}
