package world

import (
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"

	"penstock/internal/meta"
	"penstock/internal/node"
	"penstock/internal/node/errs"
	"penstock/internal/node/fold"
	"penstock/segment"
)

// book knows of every message what its producer was told, and what consumers saw.
type book struct {
	w      *World
	values []value
}

type fate uint8

const (
	offered fate = iota
	acked
	refused
	unknown
)

// value is one message.
type value struct {
	topic     *topicModel
	fate      fate
	by        *host
	life      int
	submitted int64
	answered  int64
	deferred  bool
	delay     int64  // ns, of one that is deferred
	key       string // of OrderKey
	headers   []node.Header
	id        node.ID
	hasID     bool
	holders   uint8 // FeatureForget: the nodes, by index, that were in the ISR then and have not forgotten it
	numbered  bool  // of a producer, which sends it again until the answer is sure
	first     int   // the first value of its put, unless it is numbered
	count     int   // the values of its put; 0: it is numbered
}

// topicModel is what a client knows of a topic.
type topicModel struct {
	id         uuid.UUID // nil: the store has not made it
	index      int       // of its name
	name       string
	partitions int
	ready      bool
	doomed     bool             // its deletion was asked for
	gone       bool             // the store has deleted it
	goneFrom   map[process]bool // who has answered that it is deleted
	ids        map[node.ID]int  // what stands under an id, for ever
	channels   []*channelModel
	attempts   int // to make channels
	forks      int // of its channels

	versions map[uint64]meta.TopicSettings // that were answered
	acked    uint64                        // the last of them
	lossy    bool                          // somebody wanted messages to go that were not read
	wish     wish                          // of all settings that were made
	kept     kept                          // of all settings that were made
	served   map[uint32]msgID              // by partition: the highest that the log of a copy that served began at
	cuts     []cut                         // of copies that have served since

	of      *topicModel     // the first of the name whose dead letters these are; nil: it is no dead-letter topic
	letters map[letter]bool // of it that are in the dead-letter topic

	lettersIn map[uint32][]placedLetter // of a dead-letter topic: what its partitions' logs have in the end
}

// channelModel is one life of a channel.
type channelModel struct {
	t         *topicModel
	name      string
	begun     int64 // when its creation was first asked for
	created   int64 // when its creation was answered; 0: not yet, or unknown
	first     bool  // no other channel was there or coming when it was made
	doomed    bool  // it is deleted, or was tried to be
	asking    int   // creations that have no answer
	erased    bool  // its deletion was answered OK, and nobody wants it any more
	far       bool  // consumed at nodes that lead nothing of the topic, while there are any
	delivered map[node.ID]int
	done      map[node.ID]bool // a FIN was taken
	// doneValues are the values of done. Where nodes forget, an id may come again with another value.
	doneValues map[int]bool
	high       map[uint32]segment.MsgID // of first deliveries, by partition: one beyond the last

	settings   *fold.ChannelSettings // that it has before anybody consumes it
	configured bool                  // it has them
	loose      bool                  // messages of a busy key wait for those that were published later
	acked      fold.ChannelSettings  // the last that were answered
	versions   map[uint64]fold.ChannelSettings
	lanes      map[lane]msgID           // the highest delivered
	copies     map[int]map[node.ID]bool // by value: what was sent back to the channel
	redriven   int                      // dead letters that were sent back, as operators were told
	fork       *fork                    // nil: it did not begin as one
}

func (b *book) init(w *World) { b.w = w }

const bodyHead = 16

// body is the message that carries a value.
func (b *book) body(v int) []byte {
	w := b.w
	n := bodyHead + int(w.skewed(0, 1000))
	if w.chance(0.03) {
		n += int(w.between(500, 5000))
	}
	p := make([]byte, n)
	binary.LittleEndian.PutUint64(p, uint64(v))
	binary.LittleEndian.PutUint64(p[8:], uint64(n))
	for i := bodyHead; i < n; i++ {
		p[i] = byte(v + i)
	}
	return p
}

// parse returns the value of a body; it must be whole.
func (b *book) parse(p []byte) (int, error) {
	if len(p) < bodyHead {
		return 0, fmt.Errorf("a body of %d bytes", len(p))
	}
	v, n := binary.LittleEndian.Uint64(p), binary.LittleEndian.Uint64(p[8:])
	if v >= uint64(len(b.values)) {
		return 0, fmt.Errorf("value %d was never published", v)
	}
	if n != uint64(len(p)) {
		return 0, fmt.Errorf("value %d has %d bytes, was published with %d", v, len(p), n)
	}
	for i := bodyHead; i < len(p); i++ {
		if p[i] != byte(int(v)+i) {
			return 0, fmt.Errorf("value %d is damaged at %d", v, i)
		}
	}
	return int(v), nil
}

// put offers some messages to a node.
func (w *World) put(n *host, t *topicModel) {
	topic, ok := n.e.Catalog().LookupTopic(t.name)
	if !ok {
		return
	}
	t = w.models[topic.ID()] // or what had its name before
	b := &w.book
	count := 1
	if w.chance(0.3) {
		count = int(w.between(2, 12))
	}
	first := len(b.values)
	p := &node.Put{}
	if w.chance(0.1) {
		p.Defer = time.Duration(w.between(1, 400)) * time.Millisecond
	}
	key := w.special(p)
	if w.leaps != nil {
		p.Defer = 0
	}
	for i := range count {
		hs := w.drawHeaders()
		if key != "" {
			hs = append(hs, node.Header{Key: []byte(fold.DefaultKeyHeader), Value: []byte(key)})
		}
		b.values = append(b.values, value{
			topic: t, by: n, life: n.life, submitted: w.now, deferred: p.Defer > 0, delay: int64(p.Defer), key: key, headers: hs,
			first: first, count: count,
		})
		p.Messages = append(p.Messages, b.body(first+i))
		if key != "" || w.has(FeatureFilters) {
			p.Headers = append(p.Headers, hs)
		}
	}
	answered, life := false, n.life
	p.Done = func(p *node.Put) {
		if answered {
			w.fail("put of values %d.. was answered twice", first)
		}
		answered = true
		if n.life == life { // else nobody hears it
			b.answer(first, count, p)
		}
	}
	if err := topic.Submit(p); err != nil {
		answered = true
		p.Err = err
		b.answer(first, count, p)
	}
	n.poke()
}

// special gives a put what only FeatureChannels has: a key, or a long delay.
func (w *World) special(p *node.Put) (key string) {
	if !w.has(FeatureChannels) {
		return ""
	}
	if p.Defer > 0 && w.chance(0.3) {
		p.Defer = time.Duration(w.between(1000, 4000)) * time.Millisecond
	}
	if w.chance(0.5) {
		key = fmt.Sprintf("key %d", w.rng.IntN(5))
	}
	return key
}

func (b *book) answer(first, count int, p *node.Put) {
	w := b.w
	f := refused
	switch {
	case p.Err == nil:
		f = acked
		w.Stats.Acked += count
	case w.refusedByDeletion(p.Err, &b.values[first]), errors.Is(p.Err, errs.ErrUnknown),
		errors.Is(p.Err, errs.ErrDisk), errors.Is(p.Err, errs.ErrClosed):
		f = unknown
		w.Stats.Unknown += count
	default:
		w.Stats.Refused += count
		w.refusedByQuota(p.Err, count)
	}
	put := &b.values[first]
	w.tracef("%s answers put %d+%d of %s: %v %v", put.by.name, first, count, put.topic.name, p.First, p.Err)
	b.judgeRefusal(put, p.Err)
	for i := range count {
		v := &b.values[first+i]
		if v.fate == unknown && f != acked {
			continue // its process ended meanwhile
		}
		if f == refused && v.hasID {
			w.fail("value %d was delivered, and its producer is told now that it was not stored: %v", first+i, p.Err)
		}
		v.fate, v.answered = f, w.now
		if f == acked {
			b.place(first+i, p.First+node.ID(i))
		}
	}
}

// place says that a value has an id.
func (b *book) place(v int, id node.ID) {
	t := b.values[v].topic
	if old, ok := t.ids[id]; ok && old != v && !b.w.mayComeAgain(old) {
		b.w.fail("id %v of topic %s is value %d and value %d", id, t.name, old, v)
	}
	t.ids[id] = v
	b.values[v].id, b.values[v].hasID = id, true
	b.w.noteHolders(&b.values[v])
}

// processGone: what a process had not answered is unknown.
func (b *book) processGone(n *host) {
	for i := range b.values {
		v := &b.values[i]
		if v.by == n && v.fate == offered {
			v.fate = unknown
		}
	}
}

// waiting lists what has no answer.
func (b *book) waiting() (list []int) {
	for i := range b.values {
		if b.values[i].fate == offered {
			list = append(list, i)
		}
	}
	return list
}

// seen is a delivery.
func (b *book) seen(a *agent, d *node.Delivery) {
	w, c := b.w, a.c
	v, err := b.parse(d.Body)
	if err != nil {
		w.fail("channel %s of %s got id %v: %v", c.name, c.t.name, d.ID, err)
		return
	}
	val := &b.values[v]
	a.values[d.ID] = v
	switch {
	case val.topic != c.t && (onlyFor(d.Headers) == "" || val.topic.name != c.t.name):
		w.fail("channel %s of %s got value %d of topic %s", c.name, c.t.name, v, val.topic.name)
	case val.fate == refused:
		w.fail("channel %s of %s got value %d, whose producer was told that it was not stored", c.name, c.t.name, v)
	}
	if val.fate != acked || onlyFor(d.Headers) != "" {
		if old, ok := c.t.ids[d.ID]; ok && old != v && !w.mayComeAgain(old) {
			w.fail("id %v of topic %s is value %d and value %d", d.ID, c.t.name, old, v)
		}
		c.t.ids[d.ID] = v
		val.hasID = val.hasID || val.fate != acked
	} else if val.id != d.ID && c.t.ids[d.ID] != v {
		// A put that a node forwarded and lost the answer of is unknown, and never sent again; one that was answered stands
		// once.
		w.fail("value %d was answered with id %v and delivered as %v", v, val.id, d.ID)
	}
	a.sawHeaders(d, v, val)
	a.inLane(d, val)
	w.Stats.Delivered++
	c.delivered[d.ID]++
	if c.delivered[d.ID] > 1 {
		w.Stats.Redelivered++
		return
	}
	if val.deferred {
		a.inTime(d, v, val)
		return
	}
	part, id := d.ID.Partition(), d.ID.MsgID()
	switch {
	case c.loose, c.t.lossy: // a leader skips what retention took; the next may still have it
	case w.has(FeatureRemote):
		a.inOrder(d)
	case id < c.high[part]:
		w.fail("channel %s of %s: first delivery of %v after that of %d in the same partition",
			c.name, c.t.name, d.ID, c.high[part]-1)
	}
	c.high[part] = max(c.high[part], id+1)
}

// inTime: a delay passes by the time that goes by, whatever somebody sets a wall clock to. What clocks that run apart
// may take from it is allowed.
func (a *agent) inTime(d *node.Delivery, v int, val *value) {
	w := a.n.w
	if !w.has(FeatureClocks) || w.opt.jump > 0 || onlyFor(d.Headers) != "" {
		return
	}
	slack := 20*ms + int64(3*w.opt.drift*float64(w.now))
	if early := val.submitted + val.delay - w.now; early > slack {
		w.fail("channel %s of %s got value %d %.3f ms before its time", a.c.name, a.c.t.name, v, float64(early)/1e6)
	}
}

// inOrder: what a leader delivers for the first time comes to each consumer in the order of the log. With consumers at
// several nodes that is all that can be said: deliveries are on their way side by side, and those on a connection that
// ends come again, to anybody. Who begins to serve a partition, by an election or because his lease lives again, begins
// where the confirmations are.
func (a *agent) inOrder(d *node.Delivery) {
	w := a.n.w
	part, id := d.ID.Partition(), d.ID.MsgID()
	high := a.high[part]
	if d.Attempts > 1 {
		return
	}
	if id < high.next && w.checks.servedSince(a.c.t, part, high.at-onTheWay) {
		w.fail("channel %s of %s: %s got the first delivery of %v after that of %d in the same partition",
			a.c.name, a.c.t.name, a.n.name, d.ID, high.next-1)
	}
	a.high[part] = agentHigh{id + 1, w.now}
}

// onTheWay is longer than a delivery of a leader that does not know of its end can take to a consumer at another node.
const onTheWay = 3000 * ms
