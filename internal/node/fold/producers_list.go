package fold

import (
	"encoding/binary"
	"slices"
	"strconv"
)

// This file says which producers a partition knows, and whose they are, and removes them.

// KnownProducer is what a fold knows of a producer with a name.
type KnownProducer struct {
	ID     uint64
	Owner  string // see owner.go; empty: it has none
	Name   string // without its owner
	Epoch  uint32
	Tenure uint64 // 0: it has none
	Next   uint32 // number of its next message
	UsedNs int64  // when it was used last, by the times of the log
}

// KnownProducers returns the producers that have a name, and the number of those that have none.
func (c *Cursors) KnownProducers() (named []KnownProducer, nameless int) {
	for i := range c.producers.all {
		p := &c.producers.all[i]
		if p.name == "" {
			nameless++
			continue
		}
		owner := ownerOf(p.name)
		named = append(named, KnownProducer{
			ID: p.id, Owner: owner, Name: p.name[len(owner):], Epoch: p.epoch, Tenure: p.tenure, Next: p.next, UsedNs: p.usedNs,
		})
	}
	return named, nameless
}

// Shown is the producer's name as people see and type it: one with characters that cannot be printed is quoted.
func (p *KnownProducer) Shown() string {
	if quoted := strconv.Quote(p.Name); len(quoted) > len(p.Name)+2 {
		return quoted
	}
	return p.Name
}

// OwnedProducers returns how many producers with a name, that are not too old at nowNs, belong to the owner of this
// name; 0 if the name has none.
func (c *Cursors) OwnedProducers(name string, nowNs int64) (n int) {
	owner := ownerOf(name)
	if owner == "" {
		return 0
	}
	nowNs -= c.producers.unproven(nowNs)
	for i := range c.producers.all {
		if p := &c.producers.all[i]; ownerOf(p.name) == owner && !p.isOld(nowNs) {
			n++
		}
	}
	return n
}

// remove folds ProducerRemoved. Whoever uses the producer still is told ErrUnknownProducer, and may open its name anew.
func (ps *producers) remove(id uint64) {
	i, known := ps.find(id)
	if !known {
		return
	}
	ps.nameBytes -= int64(len(ps.all[i].name))
	ps.all = slices.Delete(ps.all, i, i+1)
	ps.ids, ps.newestNs = nil, 0
	for i := range ps.all {
		ps.newestNs = max(ps.newestNs, ps.all[i].usedNs)
	}
}

// appendRemoval writes the payload of ProducerRemoved.
func appendRemoval(dst []byte, o *ProducerOpening) []byte {
	if o.ID == 0 {
		panic("BUG: a producer without an id is removed")
	}
	return binary.LittleEndian.AppendUint64(dst, o.ID)
}

func (d *decoder) removal() (o ProducerOpening) {
	if o.ID = d.u64(); o.ID == 0 {
		d.fail("a producer without an id")
	}
	return o
}
