package fold

import "errors"

// Where clients prove who they are, the name of a producer belongs to the identity that has opened it: nobody else
// opens the name in that partition or sends its next number, until the partition has forgotten the producer. The owner
// stands in front of the name wherever nodes store it or tell it each other:
//
//	0x01, 16 characters of the owner, the name
//
// So no format has a field for it, and older versions take it all for a name. A client that has to prove nothing names
// no owner. It may use all names, and every client may use the names that it has opened, also when clients must prove
// who they are later: those producers go on without an owner.

// ErrProducerOwner says that a producer's name belongs to another identity.
var ErrProducerOwner = errors.New("engine: the producer's name belongs to another identity (token), which has opened " +
	"it in this partition; nothing was stored or changed: use another name, or a token with the name of that one")

const (
	// OwnerMark is the first byte of an owner, and OwnerBytes are all.
	OwnerMark  = 1
	OwnerBytes = 1 + 16
)

// ownerOf returns the owner in front of a name; empty: it has none.
func ownerOf[T string | []byte](name T) T {
	if len(name) > OwnerBytes && name[0] == OwnerMark {
		return name[:OwnerBytes]
	}
	return name[:0]
}

// mayUse says whether a client that names one producer may use the one that is stored under a name: it is the same, or
// one of them has no owner.
func mayUse(named, stored string) bool {
	a, b := ownerOf(named), ownerOf(stored)
	return named[len(a):] == stored[len(b):] && (a == b || a == "" || b == "")
}

// named returns the producer that a client may use which names it so, or nil. An empty name names none.
func (ps *producers) named(name string) *producer {
	if name == "" {
		return nil
	}
	var other *producer
	for i := range ps.all {
		switch p := &ps.all[i]; {
		case p.name == name:
			return p
		case other == nil && p.name != "" && mayUse(name, p.name):
			other = p
		}
	}
	return other
}

// IsForeignProducer says whether this name, with its owner, is that of a producer of another owner.
func (c *Cursors) IsForeignProducer(name string) bool {
	if name == "" || c.producers.named(name) != nil {
		return false
	}
	for i := range c.producers.all {
		stored := c.producers.all[i].name
		if stored != "" && stored[len(ownerOf(stored)):] == name[len(ownerOf(name)):] {
			return true
		}
	}
	return false
}

// OwnsProducer says whether a client with this owner may send batches of the producer with that id. It may not if the
// producer has another owner. The owner is empty where clients need no token.
func (c *Cursors) OwnsProducer(id uint64, owner string) bool {
	i, known := c.producers.find(id)
	if !known || owner == "" {
		return true
	}
	of := ownerOf(c.producers.all[i].name)
	return of == "" || of == owner
}
