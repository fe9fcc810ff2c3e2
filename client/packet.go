package client

import (
	"sync"
	"sync/atomic"
	"time"

	"penstock/batch"
)

// packet is a batch with the messages that wait for its fate. It is used again when nobody holds it: the lane holds it
// until its messages were told, and every connection that it was sent on until the bytes were written.
type packet struct {
	unit
	holders atomic.Int32
	builder batch.Builder
	items   []item
	room    int64     // bytes of MaxBufferedBytes that the messages took
	calls   int       // items whose done function belongs to the application
	created time.Time // when it took its first message

	bytes   []byte // the sealed batch; nil: not sealed yet
	as      numbers
	request uint64 // of the newest attempt
}

// item is a message and what to call when its fate is known.
type item struct {
	m    *Message
	done func(*Message, ID, error)
}

// numbers are what a producer puts into a batch's header.
type numbers struct {
	id    uint64
	epoch uint32
	base  uint32
}

// packets keeps the memory of packets that are not used. What is not needed for long goes to the garbage collector.
var packets = sync.Pool{New: func() any { return new(packet) }}

func newPacket(codec batch.Codec, now time.Time) *packet {
	p := packets.Get().(*packet)
	p.holders.Store(1)
	p.unit, p.room, p.calls, p.bytes, p.created = unit{}, 0, 0, nil, now
	p.builder.Reset(codec)
	return p
}

// Release gives up one hold.
func (p *packet) Release() {
	switch n := p.holders.Add(-1); {
	case n == 0:
		clear(p.items)
		p.items = p.items[:0]
		packets.Put(p)
	case n < 0:
		panic("BUG: client: a packet was released too often")
	}
}

// seal encodes the packet as a batch with these numbers into p.bytes. If p.bytes is a batch with other numbers already,
// seal changes them in place, unless a connection still holds the bytes.
func (p *packet) seal(as numbers) error {
	if p.bytes != nil && p.as == as {
		return nil
	}
	p.as = as
	if p.bytes == nil {
		p.builder.ProducerID, p.builder.ProducerEpoch, p.builder.BaseSequence = as.id, as.epoch, as.base
		var err error
		p.bytes, err = p.builder.Seal(p.created.UnixNano())
		return err
	}
	if p.holders.Load() > 1 {
		p.bytes = append([]byte(nil), p.bytes...)
	}
	var h batch.Header
	if err := h.Decode(p.bytes); err != nil {
		return err
	}
	h.ProducerID, h.ProducerEpoch, h.BaseSequence = as.id, as.epoch, as.base
	h.Encode(p.bytes)
	return nil
}

// divided returns two packets with the messages of p, which has been sealed: the first half, rounded down, and the
// rest.
func (p *packet) divided(codec batch.Codec) (first, second *packet) {
	var h batch.Header
	err := h.Decode(p.bytes)
	var records []byte
	if err == nil {
		records, err = batch.DecompressBody(&h, p.bytes[batch.HeaderBytes:], nil)
	}
	first, second = newPacket(codec, p.created), newPacket(codec, p.created)
	var walk batch.RecordIter
	walk.Reset(&h, records)
	half := len(p.items) / 2
	for i := 0; i < len(p.items) && err == nil; i++ {
		to := first
		if i >= half {
			to = second
		}
		r, ok := walk.Next()
		if err = walk.Err(); ok {
			err = to.builder.Add(&r)
		}
		to.items = append(to.items, p.items[i])
	}
	if err != nil {
		panic("BUG: client: a batch that this client has sealed cannot be read: " + err.Error())
	}
	first.room = p.room * int64(half) / int64(len(p.items))
	second.room = p.room - first.room
	second.calls = p.calls // which of them are in first is not known; until second is told, all count
	return first, second
}
