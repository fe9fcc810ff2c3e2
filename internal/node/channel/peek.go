package channel

import (
	"cmp"
	"errors"
	"slices"
	"time"

	"penstock/batch"
	"penstock/internal/node/fold"
	"penstock/internal/node/inflate"
	"penstock/internal/node/message"
	"penstock/replicate/wire"
	"penstock/segment"
)

const (
	// MaxListCount is the most messages that Peek, Pending and DeferredMessages return. A count of 0 means
	// DefaultListCount.
	MaxListCount     = 1000
	DefaultListCount = 10
	// MaxPeekBytes bounds the bodies and headers that Peek returns, in bytes, and those that each leader reads for it.
	// A body that does not fit is cut: see wire.PeekedMessage.
	MaxPeekBytes = 4 << 20
)

// ListCount returns the length of a list for a caller that asked for n items.
func ListCount(n int) int {
	if n <= 0 {
		n = DefaultListCount
	}
	return min(n, MaxListCount)
}

// peek returns messages of op's partitions on this node that the channel has not confirmed. It reads the log without
// Channel.mu, so that deliveries go on.
func (c *Channel) peek(op wire.Operation) ([]wire.PeekedMessage, error) {
	p := peeker{count: ListCount(op.Peek.Count), room: MaxPeekBytes, readAhead: c.node.limits().ReadAheadBytes}
	if op.Peek.OriginTopic != "" {
		p.origin, p.whole = op.Peek, true
	}
	for i := range c.topic.Count() {
		pt := c.topic.Partition(i)
		if !op.About(pt.Number()) {
			continue
		}
		if err := c.peekPartition(&p, pt, op.Peek); err != nil {
			return nil, err
		}
	}
	return p.found, nil
}

// firstIn returns the id in a partition at which a request begins to read.
func firstIn(partition uint32, r *wire.PeekRequest) segment.MsgID {
	from := r.From
	if n := int(partition); n < len(r.Next) {
		from = r.Next[n]
	}
	if from.Partition() != partition {
		return 0
	}
	return from.MsgID()
}

// sinceIn is firstIn, of which a time may be asked for. Carried messages are older than the log: a time that is before
// its begin leaves them in.
func sinceIn(pt Partition, r *wire.PeekRequest, end segment.MsgID) (segment.MsgID, error) {
	from := firstIn(pt.Number(), r)
	if r.Since.IsZero() {
		return from, nil
	}
	at, err := Place(pt.Log(), &wire.SeekTo{Kind: wire.SeekTime, Time: r.Since}, end)
	if _, _, start := pt.Log().Start(); at > start {
		from = max(from, at)
	}
	return from, err
}

// peekPartition adds messages of one partition: the first ones or, if p.origin is set, the first ones that p.origin
// selects in a dead-letter topic of several channels.
func (c *Channel) peekPartition(p *peeker, pt Partition, req *wire.PeekRequest) error {
	from := firstIn(pt.Number(), req)
	for had := len(p.found); ; {
		count := p.count
		if !p.selects() {
			count -= len(p.found) - had
		}
		carried, start := pt.OnlyCarried(from, maxPeekCarried)
		more := len(carried) == maxPeekCarried
		if more {
			from = carried[len(carried)-1].ID + 1
		}
		carried, ranges, err := c.unconfirmed(int(pt.Number()), carried, max(from, start), count)
		if err == nil {
			err = p.readCarried(pt, carried)
		}
		if err == nil && !more {
			err = p.read(pt, ranges)
		}
		switch {
		case err != nil || p.full || len(p.found)-had >= p.count:
			return err
		case more:
		case !p.selects() || len(ranges) == 0:
			return nil
		default:
			from = ranges[len(ranges)-1].To
		}
	}
}

// maxPeekCarried is how many carried messages are examined in one step.
const maxPeekCarried = 4 * MaxListCount

// unconfirmed returns the carried messages that are not confirmed, and then the ranges of the first unconfirmed ids at
// or above m in the partition: together at most count messages. It takes mu.
func (c *Channel) unconfirmed(
	index int, carried []fold.CarrySource, m segment.MsgID, count int,
) (some []fold.CarrySource, rs []fold.IDRange, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed != nil {
		return nil, nil, c.closed
	}
	c.syncVisible()
	if index >= len(c.cursors) || !c.cursors[index].assigned {
		return nil, nil, nil
	}
	cur := &c.cursors[index]
	for _, s := range carried {
		if len(some) < count && s.ID < cur.end && c.m.NextUnconfirmed(cur.number, s.ID) == s.ID {
			some = append(some, s)
		}
	}
	for count -= len(some); count > 0; count-- {
		if m = c.m.NextUnconfirmed(cur.number, m); m >= cur.end {
			break
		}
		if n := len(rs); n > 0 && rs[n-1].To == m {
			rs[n-1].To++
		} else {
			rs = append(rs, fold.IDRange{From: m, To: m + 1})
		}
		m++
	}
	return some, rs, nil
}

// PeekTopic returns stored messages of op's partitions on this node, independent of channels.
func PeekTopic(t Topic, op wire.Operation, readAhead int) ([]wire.PeekedMessage, error) {
	p := peeker{count: ListCount(op.Peek.Count), room: MaxPeekBytes, readAhead: readAhead}
	for i := range t.Count() {
		pt := t.Partition(i)
		if !op.About(pt.Number()) {
			continue
		}
		end, _ := pt.Ends()
		from, err := sinceIn(pt, op.Peek, segment.MsgID(end.Load()))
		if err != nil {
			return nil, err
		}
		carried, start := pt.OnlyCarried(from, p.count)
		if err := p.readCarried(pt, carried); err != nil {
			return nil, err
		}
		from = max(from, start)
		if err := p.read(pt, []fold.IDRange{{
			From: from, To: min(from+segment.MsgID(p.count-len(carried)), segment.MsgID(end.Load())),
		}}); err != nil {
			return nil, err
		}
	}
	return p.found, nil
}

// FirstPeeked returns the count oldest messages of all partitions. It cuts bodies so that the result stays within
// MaxPeekBytes.
func FirstPeeked(all []wire.PeekedMessage, count int) []wire.PeekedMessage {
	slices.SortFunc(all, func(a, b wire.PeekedMessage) int {
		return cmp.Or(a.Timestamp.Compare(b.Timestamp), cmp.Compare(a.ID, b.ID))
	})
	all = all[:min(len(all), count)]
	room := MaxPeekBytes
	for i := range all {
		room = fit(&all[i], room)
	}
	return all
}

// peeker copies messages out of logs. One goroutine uses it; it takes no lock.
type peeker struct {
	count     int                  // messages wanted from each partition
	room      int                  // bytes that the bodies and headers of further messages may take
	readAhead int                  // most bytes that one view pins
	origin    *wire.PeekRequest    // if not nil, only dead letters that it selects are copied
	others    bool                 // only messages that are no dead letters are found, without their content
	whole     bool                 // bodies are not cut: a message that does not fit is left out, except the first
	full      bool                 // a message was left out
	found     []wire.PeekedMessage // the result

	view    segment.View
	iter    segment.BatchIter
	records segment.RecordIter
	scratch []byte
}

// selects says whether not all messages are wanted.
func (p *peeker) selects() bool { return p.origin != nil || p.others }

// read copies the messages of the ranges.
func (p *peeker) read(pt Partition, ranges []fold.IDRange) error {
	for _, r := range ranges {
		had := len(p.found)
		err := p.readRange(pt, r)
		p.view.Release()
		// Retention removed the messages meanwhile. Those that were deferred were carried to another batch before.
		if errors.Is(err, segment.ErrBelowStart) {
			if n := len(p.found); n > had {
				r.From = p.found[n-1].ID.MsgID() + 1
			}
			carried, _ := pt.OnlyCarried(r.From, int(min(r.To-r.From, maxPeekCarried)))
			carried = slices.DeleteFunc(carried, func(s fold.CarrySource) bool { return s.ID >= r.To })
			err = p.readCarried(pt, carried)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (p *peeker) readRange(pt Partition, r fold.IDRange) error {
	if r.From >= r.To {
		return nil
	}
	at, _, err := pt.Log().Seek(r.From)
	if err != nil {
		return err
	}
	for {
		if err := pt.Log().View(&p.view, at, p.readAhead); err != nil {
			return err
		}
		p.iter.Reset(p.view.Bytes())
		for h, body, ok := p.iter.Next(); ok; h, body, ok = p.iter.Next() {
			at += segment.Offset(h.Size())
			if h.Control() {
				continue
			}
			if done, err := p.readBatch(pt, h, body, r); done || err != nil {
				return err
			}
		}
		if err := p.iter.Err(); err != nil {
			return err
		}
		p.view.Release()
	}
}

// readBatch copies the messages of one batch that are in r. done says that no later batch is needed.
func (p *peeker) readBatch(pt Partition, h *segment.Header, body []byte, r fold.IDRange) (done bool, err error) {
	if h.Codec != segment.CodecNone {
		if body, err = inflate.Stored(h, body, p.scratch); err != nil {
			return false, err
		}
		p.scratch = body
	}
	p.records.Reset(h, body)
	for id := h.FirstID; ; id++ {
		rec := p.records.NextRef()
		switch {
		case rec == nil:
			return h.NextID() >= r.To, p.records.Err()
		case id >= r.To:
			return true, nil
		case id >= r.From && !p.add(batch.MakeID(pt.Number(), id), h, rec):
			return true, nil
		}
	}
}

// add copies one message, unless p does not select it. It returns false if there is no room for it.
func (p *peeker) add(id message.ID, h *segment.Header, r *segment.Record) bool {
	if p.others {
		if !slices.ContainsFunc(r.Headers, func(kv segment.KV) bool { return string(kv.Key) == OriginTopicHeader }) {
			p.found = append(p.found, wire.PeekedMessage{ID: id})
		}
		return len(p.found) < p.count
	}
	m := wire.PeekedMessage{ID: id, Timestamp: time.Unix(0, h.Created+r.TimeDelta*1000), BodyBytes: len(r.Body)}
	if r.Defer != 0 {
		m.Due = time.UnixMilli(h.Created/1e6 + int64(r.Defer))
	}
	for _, kv := range r.Headers {
		m.Headers = append(m.Headers, message.Header{Key: slices.Clone(kv.Key), Value: slices.Clone(kv.Value)})
	}
	m.Body = r.Body
	switch {
	case p.origin != nil && !isFrom(&m, p.origin.OriginTopic, p.origin.OriginChannel):
		return true
	case !p.whole:
		p.room = fit(&m, p.room)
	case len(r.Body) > p.room && len(p.found) > 0:
		p.full = true
		return false
	default:
		p.room -= len(r.Body)
	}
	m.Body = slices.Clone(m.Body)
	p.found = append(p.found, m)
	return true
}

// fit cuts the body of m so that it and the headers take at most room bytes, and returns the room that is left.
func fit(m *wire.PeekedMessage, room int) int {
	for _, h := range m.Headers {
		room -= len(h.Key) + len(h.Value)
	}
	if room = max(room, 0); len(m.Body) > room {
		m.Body, m.Truncated = m.Body[:room], true
	}
	return room - len(m.Body)
}

// isFrom says whether m is a dead letter of this topic and channel.
func isFrom(m *wire.PeekedMessage, topic, channel string) bool {
	return string(headerOf(m.Headers, OriginTopicHeader)) == topic &&
		string(headerOf(m.Headers, OriginChannelHeader)) == channel
}

func headerOf(hs []message.Header, name string) []byte {
	for i := range hs {
		if string(hs[i].Key) == name {
			return hs[i].Value
		}
	}
	return nil
}

// readCarried copies messages that control batches carry. It leaves out those that are gone.
func (p *peeker) readCarried(pt Partition, sources []fold.CarrySource) error {
	for _, s := range sources {
		m, err := pt.ReadRecord(s.ID, s.At)
		if errors.Is(err, segment.ErrBelowStart) { // carried further up meanwhile, or gone
			again, _ := pt.OnlyCarried(s.ID, 1)
			if len(again) == 0 || again[0].ID != s.ID || again[0].At == s.At {
				continue
			}
			m, err = pt.ReadRecord(s.ID, again[0].At)
		}
		if err != nil {
			return err
		}
		var it segment.RecordIter
		h := segment.Header{Count: 1, Created: m.CreatedNs}
		it.Reset(&h, m.Record)
		r := it.NextRef()
		if r == nil {
			return errors.Join(segment.ErrInvalid, it.Err())
		}
		if !p.add(batch.MakeID(pt.Number(), s.ID), &h, r) {
			return nil
		}
	}
	return nil
}
