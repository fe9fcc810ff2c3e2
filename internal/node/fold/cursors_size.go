package fold

import (
	"math/bits"

	"penstock/segment"
)

// Sizes that MaxBytes assumes for the numbers of FORMAT.md.
const (
	uvarintBytes = 10 // any number
	dueBytes     = 6  // unix ms until the year 2109
	attemptBytes = 3  // MaxAttempts
)

// MaxDeferredBytes is more than one deferred message can add to a fold.
const MaxDeferredBytes = uvarintBytes + dueBytes + uvarintBytes

// DeferredBytes estimates what one deferred message adds to the fold of a log that ends at the offset end.
func DeferredBytes(end segment.Offset) int64 { return 2 + dueBytes + int64(uvarintLen(uint64(end))) }

// What the state costs in memory, measured by TestMemoryBytes: an entry of a channel's machine with its place in the
// table of entries, an item of the fold's lists, and a confirmed range in the fold and in the machine.
const (
	entryMemoryBytes = 224
	itemMemoryBytes  = 40
	rangeMemoryBytes = 32
)

// DelayMemoryBytes returns what one more message that is published with a delay costs in memory on the partition's
// leader: an item of the fold, and an entry of each channel.
func (c *Cursors) DelayMemoryBytes() int64 {
	return itemMemoryBytes + entryMemoryBytes*int64(max(1, len(c.channels)))
}

// MemoryBytes estimates what the fold costs in memory, with the machines of its channels on the partition's leader. A
// follower counts the same, because it may lead at any moment. Its cost is proportional to the number of channels.
func (c *Cursors) MemoryBytes() int64 {
	n := int64(len(c.Deferred))*c.DelayMemoryBytes() + itemMemoryBytes*int64(len(c.carried)) + 4*c.producers.maxBytes()
	for _, ch := range c.channels {
		n += (itemMemoryBytes + entryMemoryBytes) * int64(len(ch.Requeued)+len(ch.Dead))
		n += rangeMemoryBytes * int64(ch.Ranges.Len())
	}
	return n
}

// MaxBytes returns an upper bound, and a close one, of what Append writes for a log that ends at the offset end. Its
// cost is proportional to the number of channels and settings rules. Of long lists it looks only at the length and the
// last id.
func (c *Cursors) MaxBytes(end segment.Offset) int64 {
	at := int64(uvarintLen(uint64(end)))
	n := int64(2 + 6*uvarintBytes) // version, flags, end, unclaimed, held from, three counts
	for _, ch := range c.channels {
		n += ch.maxBytes()
	}
	if k := len(c.Deferred); k > 0 {
		n += int64(k)*(dueBytes+at) + deltaBytes(k, c.Deferred[k-1].ID)
	}
	if k := len(c.carried); k > 0 {
		n += int64(k)*at + deltaBytes(k, c.carried[k-1].ID)
	}
	return n + c.producers.maxBytes()
}

func (ch *Cursor) maxBytes() int64 {
	n := int64(2 + len(ch.Name) + 5*uvarintBytes) // length, name, flags, start, confirmed, three counts
	if rs := ch.Ranges.Ranges(); len(rs) > 0 {
		n += deltaBytes(2*len(rs), rs[len(rs)-1].To)
	}
	if k := len(ch.Requeued); k > 0 {
		n += int64(k)*(dueBytes+attemptBytes) + deltaBytes(k, ch.Requeued[k-1].ID)
	}
	if k := len(ch.Dead); k > 0 {
		n += int64(k)*attemptBytes + deltaBytes(k, ch.Dead[k-1].ID)
	}
	if s := &ch.Settings; s.Version != 0 {
		n += int64(4 + 7*uvarintBytes + len(s.KeyHeader) + len(s.DeadLetter))
		for i := range s.Filter.Rules {
			n += int64(1 + 2*uvarintBytes + len(s.Filter.Rules[i].Header) + len(s.Filter.Rules[i].Pattern))
		}
	}
	return n
}

// deltaBytes bounds the encoded size of n differences whose sum is at most last. A difference takes a second byte only
// from 128 on, so at most last/128 of them do. It takes a third byte only from 16384 on, and so forth.
func deltaBytes(n int, last segment.MsgID) int64 {
	sum := int64(n)
	for rest := uint64(last) >> 7; rest > 0; rest >>= 7 {
		sum += int64(min(uint64(n), rest))
	}
	return sum
}

func uvarintLen(v uint64) int { return max(1, (bits.Len64(v)+6)/7) }
