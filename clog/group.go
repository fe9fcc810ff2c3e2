package clog

import (
	"fmt"
	"time"

	"penstock/segment"
	"penstock/segment/aio"
)

// Group is what one write and one flush make durable: a header and records, contiguous in one Buf. A Source sees a
// group in Gather, where it may add records, and in Durable, where it may only read. The Group is reused afterwards:
// keep what is needed of it, not the pointer. The holder of Log.mu owns its fields.
type Group struct {
	log  *Log
	slot int

	buf  *aio.Buf
	data []byte // the part of buf from the group's first byte to the end
	end  int    // header and records so far; GroupHeaderBytes <= end <= limit
	last int    // where the last record begins
	// limit is where the group must end: the least of the end of data, GroupBytes, and the file's room. It is a
	// multiple of the block.
	limit int

	file      uint64
	seq       uint64
	oldest    uint64 // oldest needed file that its header promises
	fileEnd   int64  // where the group ends in its file
	records   int
	done      bool // its completion was seen
	submitted time.Time
}

// Buf is the buffer that holds the group, and possibly other groups. Ask for it after Reserve: the first record may
// move the group to another buffer. Retain the Buf to keep slices of Reserve beyond Durable.
func (g *Group) Buf() *aio.Buf { return g.buf }

// FileSeq is the number of the file the group goes to; see Log.Release.
func (g *Group) FileSeq() uint64 { return g.file }

// Records is the number of records in the group.
func (g *Group) Records() int { return g.records }

// Slot is a small number, 0 <= Slot < Options.InFlight, that no other group has from Gather to Durable.
func (g *Group) Slot() int { return g.slot }

// Reserve adds a record with a payload of n bytes and returns the payload, inside the group's buffer. The caller fills
// it before Gather returns; until then the payload holds garbage. A Batch must be sealed and stamped when Gather
// returns.
//
// Reserve returns nil if the record does not fit: keep that record and all later ones and return from Gather. This is
// final for this group. The log calls Gather again as soon as it has a buffer and file space for at least that record,
// so an empty group refuses n <= MaxPayloadBytes only while the buffer or the file space is missing. A record larger
// than Log.MaxPayloadBytes may need a larger file: use it only for what cannot be smaller.
func (g *Group) Reserve(p Placement, n int) []byte {
	if p.Type == 0 || p.Type >= Checkpoint || n < 0 || n > MaxPayloadBytes || p.Type == Batch && n < segment.HeaderBytes {
		panic(fmt.Sprintf("BUG: clog: reserving %d bytes for a record of type %d; at most %d are possible",
			n, p.Type, MaxPayloadBytes))
	}
	if g.end+RecordHeaderBytes+n > g.limit && (g.records > 0 || !g.log.reopen(g, n)) {
		return nil
	}
	return g.add(&p, 0, n)
}

// Free is how many payload bytes one more record may have in this group, so that a source can size the batches it
// coalesces. An empty group accepts a larger record, too (see Reserve); Free counts only the buffer that the group has
// now.
func (g *Group) Free() int { return max(0, g.limit-g.end-RecordHeaderBytes) }

// add places a record that fits.
func (g *Group) add(p *Placement, flags uint8, n int) []byte {
	start := g.end + RecordHeaderBytes
	encodeRecord(g.data[g.end:], p, flags, n, g.seq)
	g.last, g.end = g.end, start+n
	g.records++
	return g.data[start:g.end:g.end]
}

// open makes the group empty, at the start of data, as sequence seq of file.
func (g *Group) open(buf *aio.Buf, data []byte, limit int, file, seq uint64) {
	g.buf, g.data, g.end, g.limit = buf, data, GroupHeaderBytes, limit
	g.file, g.seq = file, seq
	g.records, g.done = 0, false
}

// seal completes the records and the header and returns the bytes to write. The caller has set in h what the log knows:
// the promises, the store and the chain.
func (g *Group) seal(h *groupHeader) []byte {
	h.File, h.Seq, h.Bytes, h.Records = g.file, g.seq, uint32(g.end), uint32(g.records)
	padded := int(h.padded())
	clear(g.data[g.end:padded])
	h.encode(g.data)
	seed := recordSeed(g.data)
	for at := GroupHeaderBytes; at < g.end; {
		at += sealRecord(g.data[at:g.end], seed)
	}
	return g.data[:padded]
}
