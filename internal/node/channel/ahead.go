package channel

import "penstock/segment"

// MaxAheadBytes bounds the bytes of segments that the channels of a node keep between their turns. Beyond it a channel
// reads and verifies its bytes again in each turn.
const MaxAheadBytes = 64 << 20

// ahead is the run of verified bytes from which the channel reads a partition. A client that finishes its messages one
// by one gets one or a few in each turn; to copy and verify up to ReadAheadBytes for each turn would cost more than
// everything else. So the channel keeps bytes that are a copy out of a segment, and goes on in them, also when other
// partitions had their turns in between. Channel.mu guards all.
type ahead struct {
	view segment.View
	kept int // bytes of memory that are counted in Node.aheadBytes
}

// open makes the view show verified bytes of the cursor's partition from cur.at on, at least one batch. A turn calls it
// for each run of batches that it reads. mu is held.
func (a *ahead) open(n *Shared, cur *cursor) error {
	log := cur.part.Log()
	if log.Again(&a.view, cur.at) {
		return nil
	}
	a.drop(n)
	return log.View(&a.view, cur.at, n.limits().ReadAheadBytes)
}

// close ends the reading of a run, after each successful open. The bytes are kept for the next turn if they are a copy
// and MaxAheadBytes allows it. mu is held.
func (a *ahead) close(n *Shared) {
	if a.kept != 0 {
		return
	}
	size := a.view.Keep()
	switch {
	case size == 0:
	case n.aheadBytes.Add(int64(size)) > MaxAheadBytes:
		n.aheadBytes.Add(-int64(size))
		a.drop(n)
	default:
		a.kept = size
	}
}

// drop releases the bytes, kept or not. mu is held.
func (a *ahead) drop(n *Shared) {
	a.view.Release()
	n.aheadBytes.Add(-int64(a.kept))
	a.kept = 0
}

// stopped is the place in a batch at which a turn stopped, so that the next turn does not walk over the records before
// it again. Channel.mu guards it. The zero value is no place.
type stopped struct {
	batch batchKey
	id    segment.MsgID // of the message at place
	place segment.Place
}

// batchKey identifies a batch among those of a channel.
type batchKey struct {
	partition uint32
	at        segment.Offset
	crc       uint32 // the header's
}
