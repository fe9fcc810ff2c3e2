package fold

import (
	"encoding/binary"
	"errors"
	"slices"

	"penstock/batch"
	"penstock/segment"
)

// A producer numbers its messages, separately in each partition. Its batches carry its id, its epoch and the number of
// their first message (segment.Header). The fold remembers for each producer what comes next, and the last batches, so
// that a batch which is sent again is recognized, and nothing is stored twice or left out:
//
//	batch that follows the last one                            stored
//	one of the last ProducerWindow batches, unchanged          repeat: its first id is known
//	the numbers of one of them, and another content            ErrSequence, if the producer has a tenure
//	anything else of the present epoch: a gap, an overlap      ErrSequence
//	batch of an earlier epoch                                  ErrFenced
//	batch of an unknown producer, or of an epoch yet unknown   ErrUnknownProducer
//
// A control entry opens a producer (ProducerOpened, ProducerTaken). A named producer keeps its id and its numbers when
// it is opened again, and gets the next epoch: from that entry on, the log takes no batch of an earlier epoch. Programs
// hold a name for a tenure: see tenure.go. A producer without a name is new each time. Only entries forget producers,
// at fixed places in the log, so that all replicas know the same. Operators remove a name by such an entry, too
// (ProducerRemoved).

const (
	// ProducerWindow is the number of batches of a producer that are recognized when they are sent again. A client has
	// at most that many on their way to one partition.
	ProducerWindow = 8
	// MaxProducerCount bounds the producers that one partition knows. Opening another one forgets the anonymous one
	// that was unused for the longest time. Named ones are not forgotten for that: see HasRoomForProducer.
	MaxProducerCount = 4096
	// MaxOwnedProducers bounds those of them that belong to one owner (owner.go), so that nobody can take all.
	MaxOwnedProducers = MaxProducerCount / 4
	// ProducerAgeNs is the time, by the append times of the log, after which an unused producer is forgotten when
	// another one is opened: 7 days.
	ProducerAgeNs = 7 * 24 * 3600 * 1_000_000_000
	// ProducerStepNs is the most that counts of the time between two entries or batches of the partition's producers: an
	// hour. So a leader whose clock is days ahead makes nobody older than that.
	ProducerStepNs = 3600 * 1_000_000_000
	// MaxProducerNameBytes is the longest name of a producer.
	MaxProducerNameBytes = 255
)

// Reasons why a batch of a producer is not stored, tested with errors.Is.
var (
	// ErrFenced says that the batch is of an earlier epoch.
	ErrFenced = errors.New("engine: the producer was opened again, by another program or after a restart, and this " +
		"batch is of an earlier epoch; it was not stored")
	// ErrSequence says that there is a gap or an overlap.
	ErrSequence = errors.New("engine: the batch neither follows the producer's last one nor repeats one of the last " +
		"few: there is a gap or an overlap; it was not stored")
	// ErrUnknownProducer says that the state of the producer is not there, so nobody can tell whether the batch was
	// stored before.
	ErrUnknownProducer = errors.New("engine: the partition does not know the producer, because it was never opened " +
		"there, or was forgotten; the batch was not stored, open the producer again")
	// ErrTooManyProducers says that MaxProducerCount named producers exist. Nodes of versions before the numbers of
	// errors recognize it by this sentence.
	ErrTooManyProducers = errors.New("engine: the partition knows as many named producers as it may (4096), and all of " +
		"them were used in the last 7 days; nothing was changed")
)

// ProducerOpening is what an entry of kind ProducerOpened or ProducerTaken says.
type ProducerOpening struct {
	ID     uint64 // not 0
	Epoch  uint32
	TimeNs int64  // append time of the batch with the entry, ns since 1970
	Name   string // at most MaxProducerNameBytes bytes; empty: anonymous
	Tenure uint64 // ProducerTaken: at least batch.MinTenure; else 0

	// Begins says that a new tenure begins, which FillOpening may raise. It is not encoded.
	Begins bool
	// Sequence is a result of FillOpening: the number of the producer's next message. It is not encoded.
	Sequence uint32
}

// producer is the state of one producer. Its batches in last follow each other without a gap, and the newest ends
// before next, so their first numbers are not kept.
type producer struct {
	id     uint64
	epoch  uint32
	tenure uint64 // 0: it has none, because it was opened below feature level 5, or has no name
	next   uint32 // number of the next message; numbers wrap
	usedNs int64  // append time of its newest batch, or of the entry that opened it; see advance
	name   string
	last   [ProducerWindow]producedBatch // the newest n batches of the epoch, oldest first
	n      uint8
}

type producedBatch struct {
	first segment.MsgID
	count uint32
	sum   uint32 // BodyCRC; 0 without a tenure, because older versions do not keep it
}

// producers are the producers that a fold knows.
type producers struct {
	all       []producer        // sorted by id
	nameBytes int64             // sum of the lengths of the names
	newestNs  int64             // the highest usedNs
	ids       map[string]uint64 // by name, also without its owner; nil: not made since the producers changed
}

// find returns the index of the producer, or where it would be.
func (ps *producers) find(id uint64) (int, bool) {
	lo, hi := 0, len(ps.all)
	for lo < hi {
		if mid := int(uint(lo+hi) / 2); ps.all[mid].id < id {
			lo = mid + 1
		} else {
			hi = mid
		}
	}
	return lo, lo < len(ps.all) && ps.all[lo].id == id
}

// unproven is how much of the time until nowNs does not count for the age of producers: what it has beyond
// ProducerStepNs. Nothing in the log tells a quiet partition from a clock that was set forward.
func (ps *producers) unproven(nowNs int64) int64 {
	if len(ps.all) == 0 {
		return 0
	}
	return max(0, nowNs-ps.newestNs-ProducerStepNs)
}

// advance notes that a producer is used in a batch that was appended at nowNs, and returns the time of that use. Time
// that does not count is added to the times of all others, so that their age grows by ProducerStepNs only. The caller
// gives the time to a producer.
func (ps *producers) advance(nowNs int64) int64 {
	if d := ps.unproven(nowNs); d > 0 {
		for i := range ps.all {
			ps.all[i].usedNs += d
		}
	}
	ps.newestNs = max(ps.newestNs, nowNs)
	return ps.newestNs
}

// namedProducer returns the id of the producer that a client may use which names it so (see owner.go). It borrows name
// until it returns. Like a change of the fold it is for the goroutine that owns the fold.
func (c *Cursors) namedProducer(name []byte) (id uint64, known bool) {
	ps := &c.producers
	if ps.ids == nil {
		ps.ids = map[string]uint64{}
		for i := range ps.all {
			if p := &ps.all[i]; p.name != "" {
				ps.ids[p.name] = p.id
			}
		}
		for i := range ps.all {
			bare := ps.all[i].name[len(ownerOf(ps.all[i].name)):]
			if _, has := ps.ids[bare]; !has && bare != "" {
				ps.ids[bare] = ps.all[i].id
			}
		}
	}
	if id, known = ps.ids[string(name)]; known {
		return id, true
	}
	owner := ownerOf(name)
	if id, known = ps.ids[string(name[len(owner):])]; known && len(owner) > 0 {
		i, _ := ps.find(id)
		known = ownerOf(ps.all[i].name) == ""
	}
	if !known {
		return 0, false
	}
	return id, true
}

// KnowsProducer says whether the fold has a producer that a client may use which names it so. An empty name is
// nobody's. Unlike namedProducer it looks at every producer, and makes nothing for the next call: it is for what is
// rare, as opening one.
func (c *Cursors) KnowsProducer(name string) bool { return c.producers.named(name) != nil }
func (c *Cursors) ProducerCount() int             { return len(c.producers.all) }

// JudgeBatch decides about a batch that names a producer, before it is appended. If the batch repeats an earlier one,
// repeat is true, and first is the id of the first message of that one, which is in the log and perhaps not committed
// yet. Otherwise the batch must be appended if err is nil, and not if err says why. Without h.BodyCRC the content of a
// repeat is not compared.
func (c *Cursors) JudgeBatch(h *segment.Header) (first segment.MsgID, repeat bool, err error) {
	i, known := c.producers.find(h.ProducerID)
	if !known {
		return 0, false, ErrUnknownProducer
	}
	p := &c.producers.all[i]
	switch {
	case h.ProducerEpoch < p.epoch:
		return 0, false, &FencedError{p.holder()}
	case h.ProducerEpoch > p.epoch:
		return 0, false, ErrUnknownProducer // the entry that began this epoch is lost
	case h.BaseSequence == p.next:
		return 0, false, nil
	}
	base := p.next
	for j := int(p.n) - 1; j >= 0; j-- {
		b := &p.last[j]
		if base -= b.count; base != h.BaseSequence || b.count != h.Count {
			continue
		}
		if b.sum != 0 && h.BodyCRC != 0 && b.sum != h.BodyCRC {
			return 0, false, &SequenceError{Want: p.next, Got: h.BaseSequence, Other: true}
		}
		return b.first, true, nil
	}
	return 0, false, &SequenceError{Want: p.next, Got: h.BaseSequence}
}

// PublishBatch folds a batch of messages. Delayed messages in it are folded by PublishDeferred.
func (c *Cursors) PublishBatch(h *segment.Header) {
	c.Publish(h.FirstID, h.Count)
	if h.ProducerID == 0 {
		return
	}
	i, known := c.producers.find(h.ProducerID)
	if !known {
		return
	}
	p := &c.producers.all[i]
	if h.ProducerEpoch != p.epoch || h.BaseSequence != p.next {
		return // no leader that knew the producer has stored this
	}
	if p.n == ProducerWindow {
		copy(p.last[:], p.last[1:])
		p.n--
	}
	p.last[p.n] = producedBatch{first: h.FirstID, count: h.Count}
	if p.tenure != 0 {
		p.last[p.n].sum = h.BodyCRC
	}
	p.n++
	p.next += h.Count
	p.usedNs = c.producers.advance(h.Appended)
}

// HasRoomForProducer says whether a producer of this name may be opened now: it is known, or there is room, or one may
// be forgotten that has no name or is too old.
func (c *Cursors) HasRoomForProducer(name string, nowNs int64) bool {
	ps := &c.producers
	nowNs -= ps.unproven(nowNs)
	return len(ps.all) < MaxProducerCount || ps.named(name) != nil || slices.ContainsFunc(ps.all, func(p producer) bool {
		return p.name == "" || p.isOld(nowNs)
	})
}

func (p *producer) isOld(nowNs int64) bool { return p.usedNs < nowNs-ProducerAgeNs }

// FillOpening completes o, which has the name, for an entry that is appended now: st is the state of the log before the
// entry, nowNs the append time. A new producer's id is derived from all that, so that no other log and no earlier life
// of this log has given it away, and from secret, a random number: whoever knows the id of a producer without a name
// may send its batches, so nobody must be able to guess it.
func (c *Cursors) FillOpening(o *ProducerOpening, st *segment.State, nowNs int64, secret uint64) {
	o.TimeNs = nowNs
	p := c.producers.named(o.Name)
	if fillTenure(o, p); p != nil {
		o.ID, o.Epoch, o.Sequence = p.id, p.epoch+1, p.next
		return
	}
	o.Epoch, o.Sequence = 1, 0
	o.ID = mixed(mixed(mixed(uint64(nowNs))^uint64(st.Epoch))^uint64(st.Next)) ^ secret
	for _, known := c.producers.find(o.ID); known || o.ID == 0; _, known = c.producers.find(o.ID) {
		o.ID++
	}
}

// mixed spreads the bits of x: different arguments give different results.
func mixed(x uint64) uint64 {
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// open folds ProducerOpened and ProducerTaken.
func (ps *producers) open(o *ProducerOpening) {
	nowNs := ps.advance(o.TimeNs)
	ps.ids = nil
	i, known := ps.find(o.ID)
	if known {
		p := &ps.all[i]
		if p.usedNs = nowNs; o.Epoch > p.epoch {
			*p = producer{id: p.id, epoch: o.Epoch, tenure: o.Tenure, next: p.next, name: p.name, usedNs: nowNs}
		}
	}
	ps.all = slices.DeleteFunc(ps.all, func(p producer) bool {
		old := p.isOld(nowNs)
		if old {
			ps.nameBytes -= int64(len(p.name))
		}
		return old
	})
	if known {
		return
	}
	if len(ps.all) >= MaxProducerCount {
		ps.forgetOne()
	}
	i, _ = ps.find(o.ID)
	ps.all = slices.Insert(ps.all, i, producer{id: o.ID, epoch: o.Epoch, tenure: o.Tenure, usedNs: nowNs, name: o.Name})
	ps.nameBytes += int64(len(o.Name))
}

// forgetOne forgets the anonymous producer that was unused for the longest time. Without an anonymous one, which no
// leader lets happen, it forgets a named one.
func (ps *producers) forgetOne() {
	oldest := 0
	for i := range ps.all {
		p, q := &ps.all[i], &ps.all[oldest]
		if better := p.name == "" && q.name != ""; better || (p.name == "") == (q.name == "") && p.usedNs < q.usedNs {
			oldest = i
		}
	}
	ps.nameBytes -= int64(len(ps.all[oldest].name))
	ps.all = slices.Delete(ps.all, oldest, oldest+1)
}

const (
	// MaxProducerBytes is the most that one producer adds to a fold.
	MaxProducerBytes = producerBytes + MaxProducerNameBytes

	// producerBytes is the most that a producer without a name takes in a fold: id, epoch, next, time, two lengths,
	// tenure, and ProducerWindow times a count, a difference of ids and a checksum.
	producerBytes    = 8 + 5 + 5 + 9 + 2 + 10 + ProducerWindow*(5+7+4)
	minProducerBytes = 8 + 1 + 1 + 1 + 1 + 1

	maxUint32 = 1<<32 - 1
)

// maxBytes bounds what append writes. It counts ProducerWindow batches for each producer, so that only opening one
// raises it.
func (ps *producers) maxBytes() int64 {
	if len(ps.all) == 0 {
		return 0
	}
	return 3 + int64(len(ps.all))*producerBytes + ps.nameBytes
}

// haveTenures says whether the producers need a version of the fold that has tenures.
func (ps *producers) haveTenures() bool {
	return slices.ContainsFunc(ps.all, func(p producer) bool { return p.tenure != 0 })
}

// append writes the producers as FORMAT.md says.
func (ps *producers) append(dst []byte, version byte) []byte {
	dst = binary.AppendUvarint(dst, uint64(len(ps.all)))
	for i := range ps.all {
		p := &ps.all[i]
		dst = binary.LittleEndian.AppendUint64(dst, p.id)
		dst = binary.AppendUvarint(dst, uint64(p.epoch))
		dst = binary.AppendUvarint(dst, uint64(p.next))
		dst = binary.AppendUvarint(dst, uint64(p.usedNs))
		dst = append(append(dst, byte(len(p.name))), p.name...)
		if version > cursorsVersion3 {
			dst = binary.AppendUvarint(dst, p.tenure)
		}
		dst = append(dst, p.n)
		end := segment.MsgID(0)
		for _, b := range p.last[:p.n] {
			dst = binary.AppendUvarint(dst, uint64(b.count))
			dst = binary.AppendUvarint(dst, uint64(b.first-end))
			end = b.first + segment.MsgID(b.count)
			if version > cursorsVersion3 {
				dst = binary.LittleEndian.AppendUint32(dst, b.sum)
			}
		}
	}
	return dst
}

// producers decodes the producers of a fold whose last message has the id before end.
func (d *decoder) producers(end segment.MsgID, version byte) (ps producers) {
	n := d.count(minProducerBytes)
	if n > MaxProducerCount {
		d.fail("too many producers")
	}
	for i := 0; i < n && d.bad == ""; i++ {
		p := producer{id: d.u64(), epoch: uint32(d.atMost(maxUint32)), next: uint32(d.atMost(maxUint32))}
		p.usedNs = int64(d.atMost(1<<63 - 1))
		p.name = string(d.bytes(int(d.byte())))
		if version > cursorsVersion3 {
			p.tenure = d.uvarint()
		}
		if d.bad == "" && !isTenure(p.tenure, p.name) && p.tenure != 0 {
			d.fail("a producer's tenure")
		}
		if p.id == 0 || i > 0 && p.id <= ps.all[i-1].id {
			d.fail("producers are not sorted by id")
		}
		if p.n = d.byte(); p.n > ProducerWindow {
			d.fail("a producer has too many batches")
			p.n = 0
		}
		last := segment.MsgID(0)
		for j := range p.last[:p.n] {
			b := &p.last[j]
			b.count = uint32(d.atMost(maxUint32))
			b.first = last + d.msgID()
			if version > cursorsVersion3 {
				b.sum = d.u32()
			}
			if p.tenure == 0 && b.sum != 0 {
				d.fail("a checksum of a producer without a tenure")
			}
			if last = b.first + segment.MsgID(b.count); b.count == 0 || last > end {
				d.fail("a producer's batch is empty or beyond the end of the log")
			}
		}
		ps.all = append(ps.all, p)
		ps.nameBytes += int64(len(p.name))
		ps.newestNs = max(ps.newestNs, p.usedNs)
	}
	return ps
}

func (d *decoder) u32() uint32 {
	if b := d.bytes(4); b != nil {
		return binary.LittleEndian.Uint32(b)
	}
	return 0
}

func (d *decoder) u64() uint64 {
	if b := d.bytes(8); b != nil {
		return binary.LittleEndian.Uint64(b)
	}
	return 0
}

// appendOpening writes the payload of ProducerOpened.
func appendOpening(dst []byte, o *ProducerOpening) []byte {
	if o.ID == 0 || o.TimeNs < 0 || len(o.Name) > MaxProducerNameBytes {
		panic("BUG: a producer without an id, opened before 1970, or with too long a name")
	}
	dst = binary.LittleEndian.AppendUint64(dst, o.ID)
	dst = binary.AppendUvarint(dst, uint64(o.Epoch))
	dst = binary.AppendUvarint(dst, uint64(o.TimeNs))
	return append(append(dst, byte(len(o.Name))), o.Name...)
}

// appendTaking writes the payload of ProducerTaken.
func appendTaking(dst []byte, o *ProducerOpening) []byte {
	if !isTenure(o.Tenure, o.Name) {
		panic("BUG: a name is taken without a name or a tenure")
	}
	return binary.AppendUvarint(appendOpening(dst, o), o.Tenure)
}

func isTenure(tenure uint64, name string) bool { return tenure >= batch.MinTenure && name != "" }

func (d *decoder) taking() (o ProducerOpening) {
	o = d.opening()
	if o.Tenure = d.uvarint(); d.bad == "" && !isTenure(o.Tenure, o.Name) {
		d.fail("a name that is taken without a name or a tenure")
	}
	return o
}

func (d *decoder) opening() (o ProducerOpening) {
	if o.ID = d.u64(); o.ID == 0 {
		d.fail("a producer without an id")
	}
	o.Epoch, o.TimeNs = uint32(d.atMost(maxUint32)), int64(d.atMost(1<<63-1))
	o.Name = string(d.bytes(int(d.byte())))
	return o
}
