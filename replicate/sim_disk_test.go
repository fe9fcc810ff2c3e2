package replicate

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"

	"github.com/google/uuid"

	"penstock/segment"
)

// simBatch is a batch with its values, as one disk has it.
type simBatch struct {
	Batch
	values  []uint64 // shared between copies, never changed
	corrupt bool     // this copy does not read back
	by      process  // the process that sealed it; set in that process's own copy only
}

// process is one run of one node.
type process struct {
	node NodeID
	n    int
}

// simLog is one partition's log on one disk.
type simLog struct {
	start   segment.State
	batches []simBatch // from start.Next on
	table   EpochTable
}

func (g *simLog) end() segment.State { return g.stateAt(g.next()) }

func (g *simLog) next() segment.Position { return g.start.Next + segment.Position(len(g.batches)) }

func (g *simLog) holds(p segment.Position) bool { return p >= g.start.Next && p < g.next() }

func (g *simLog) at(p segment.Position) *simBatch { return &g.batches[p-g.start.Next] }

func (g *simLog) stateAt(p segment.Position) segment.State {
	st := g.start
	if p > g.start.Next {
		advance(&st, &g.at(p-1).Batch)
	}
	return st
}

func (g *simLog) append(b simBatch) {
	end := g.end()
	if b.Position != end.Next || b.Offset != end.End || b.PrevCRC != end.LastCRC || b.FirstID != end.NextID {
		panic(fmt.Sprintf("the log ends at %d/%d crc %x, the batch is %d/%d prev %x",
			end.Next, end.End, end.LastCRC, b.Position, b.Offset, b.PrevCRC))
	}
	g.table.Note(EpochStart{Epoch: b.Epoch, Position: b.Position, Offset: b.Offset})
	g.batches = append(g.batches, b)
}

func (g *simLog) truncate(to segment.Position) {
	g.batches = g.batches[:to-g.start.Next]
	g.table.Truncate(to)
}

func (g *simLog) reset(at segment.State, epochs []EpochStart) {
	g.start, g.batches = at, nil
	g.table.Reset(epochs)
}

func (g *simLog) trim(to segment.Position) {
	if to <= g.start.Next || to > g.next() {
		return
	}
	st := g.stateAt(to)
	g.batches = g.batches[to-g.start.Next:]
	g.start = st
	g.table.Trim(to)
}

func (g *simLog) clone() simLog {
	c := simLog{start: g.start, batches: append([]simBatch(nil), g.batches...)}
	c.table.Reset(g.table.Entries())
	return c
}

// diskOp is one record of the modelled journal. A crash keeps a prefix of the records that were not synced: groups are
// chained, so the log ends at a hole.
type diskOp struct {
	kind   byte // a append, t truncate, r reset, m trim
	batch  simBatch
	to     segment.Position
	log    segment.State
	epochs []EpochStart
}

func (op *diskOp) apply(g *simLog) {
	switch op.kind {
	case 'a':
		g.append(op.batch)
	case 't':
		g.truncate(op.to)
	case 'r':
		g.reset(op.log, op.epochs)
	case 'm':
		g.trim(op.to)
	}
}

// simDisk is a node's disk: what is stable, what is only written, and the records between the two.
type simDisk struct {
	store     uuid.UUID
	stable    simLog
	log       simLog
	pending   []diskOp
	syncing   bool
	failed    bool
	short     bool             // recovery cut the end of the log, and the log is not whole again yet
	lost      bool             // a part of that end was stable
	committed segment.Position // the mark that was last written down
	history   []earlier        // see sim_forget_test.go
	forgot    bool             // it was set back, and does not hold again what it had acknowledged
	had       segment.State    // the end of the log that it forgot
	forgotIn  segment.Epoch    // the epoch whose leader counts on what it forgot
}

func (d *simDisk) do(op diskOp) {
	op.apply(&d.log)
	d.pending = append(d.pending, op)
}

// settle makes the first n pending records stable.
func (d *simDisk) settle(n int) {
	for i := range n {
		d.pending[i].apply(&d.stable)
	}
	d.pending = append(d.pending[:0], d.pending[n:]...)
}

// crash keeps the first records that were not synced, and loses the others.
func (d *simDisk) crash(keep int) {
	d.settle(min(keep, len(d.pending)))
	d.pending = d.pending[:0]
	d.log = d.stable.clone()
	d.syncing, d.failed = false, false
	d.committed = min(d.committed, d.stable.next())
}

// tear models recovery on a disk that changed a bit in the last group: it cuts the last n batches, acknowledged or not.
func (d *simDisk) tear(n int) {
	n = min(n, len(d.stable.batches))
	d.stable.truncate(d.stable.next() - segment.Position(n))
	d.log = d.stable.clone()
	d.committed = min(d.committed, d.stable.next())
	d.short, d.lost = d.short || n > 0, d.lost || n > 0
}

func (d *simDisk) wipe(store uuid.UUID) { *d = simDisk{store: store} }

// mark makes the batch at p unreadable, or readable again.
func (d *simDisk) mark(p segment.Position, corrupt bool) {
	for _, g := range []*simLog{&d.log, &d.stable} {
		if g.holds(p) {
			g.at(p).corrupt = corrupt
		}
	}
}

func (d *simDisk) intact() bool {
	for i := range d.stable.batches {
		if d.stable.batches[i].corrupt {
			return false
		}
	}
	return true
}

// simUUID makes readable identities: different arguments give different ones.
func simUUID(kind byte, node NodeID, n int) (id uuid.UUID) {
	id[0], id[1], id[2], id[3] = kind, byte(node), byte(n>>8), byte(n)
	return id
}

var simTable = crc32.MakeTable(crc32.Castagnoli)

// sealSim makes the batch that continues a log with this end.
func sealSim(end segment.State, epoch segment.Epoch, values []uint64) simBatch {
	b := simBatch{values: values}
	b.Position, b.FirstID, b.Offset, b.Epoch = end.Next, end.NextID, end.End, epoch
	b.Count, b.PrevCRC, b.Bytes = uint32(len(values)), end.LastCRC, segment.HeaderBytes+8*len(values)
	var p [40]byte
	binary.LittleEndian.PutUint64(p[0:], uint64(b.Position))
	binary.LittleEndian.PutUint64(p[8:], uint64(b.Epoch))
	binary.LittleEndian.PutUint32(p[16:], b.PrevCRC)
	crc := crc32.Update(0, simTable, p[:20])
	for _, v := range values {
		binary.LittleEndian.PutUint64(p[:8], v)
		crc = crc32.Update(crc, simTable, p[:8])
	}
	b.CRC = crc
	return b
}
