package clog

import (
	"encoding/binary"
	"fmt"
	"sync"
	"testing"

	"github.com/google/uuid"

	"penstock/batch"
	"penstock/segment"
	"penstock/segment/aio"
)

var testStore = uuid.MustParse("5eed5eed-0000-4000-8000-000000000001")

// model is a Source and knows what must be true of the log. Records are numbered, each contains its number, and the
// number gives the size, so that recovery can be checked without keeping any bytes.
type model struct {
	mu      sync.Mutex
	added   uint64 // records in groups so far
	waiting int    // records that Gather may add
	acked   uint64 // records below are durable
	stored  uint64 // records below are durable elsewhere
	failed  int
	err     error

	size   func(id uint64) int // payload bytes
	chunks int                 // chunks of a checkpoint
	grows  int                 // the checkpoint has one more chunk for every so many records; 0: never
	silent bool                // CheckpointBytes is lower than what Checkpoint will emit
	chunk  [512]byte

	ends  [MaxInFlight]uint64 // by slot: records added when the group was gathered
	files []fileEnd           // first record behind each file, in order

	retain   func(b *aio.Buf)
	emitting func() // called in Checkpoint; nil: nothing
}

type fileEnd struct {
	file uint64
	end  uint64
}

func newModel() *model {
	return &model{size: func(id uint64) int { return segment.HeaderBytes + int(id*37%300) }, chunks: 1}
}

func (m *model) Gather(g *Group) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for m.waiting > 0 {
		p := g.Reserve(m.placement(m.added), m.size(m.added))
		if p == nil {
			break
		}
		fill(p, m.added)
		m.added++
		m.waiting--
	}
	if g.Records() == 0 {
		return
	}
	m.ends[g.Slot()] = m.added
	if n := len(m.files); n == 0 || m.files[n-1].file != g.FileSeq() {
		m.files = append(m.files, fileEnd{file: g.FileSeq()})
	}
	m.files[len(m.files)-1].end = m.added
	if m.retain != nil {
		m.retain(g.Buf())
	}
}

func (m *model) Durable(g *Group) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.failed > 0 {
		panic("durable after failed")
	}
	if end := m.ends[g.Slot()]; end <= m.acked {
		panic(fmt.Sprintf("durable out of order: %d after %d", end, m.acked))
	} else {
		m.acked = end
	}
}

// Checkpoint emits the number of records in each chunk.
func (m *model) Checkpoint(emit func([]byte)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	emit(nil) // the log leaves it out
	if m.emitting != nil {
		m.emitting()
	}
	for i := range m.chunksAt(m.added) {
		binary.LittleEndian.PutUint64(m.chunk[:], m.added)
		binary.LittleEndian.PutUint64(m.chunk[8:], uint64(i))
		emit(m.chunk[:])
	}
}

// chunksAt is the number of chunks of a checkpoint after n records.
func (m *model) chunksAt(n uint64) int {
	if m.grows == 0 {
		return m.chunks
	}
	return m.chunks + int(n)/m.grows
}

func (m *model) CheckpointBytes() int64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.silent {
		return 0
	}
	return int64(m.chunksAt(m.added) * (len(m.chunk) + RecordHeaderBytes))
}

func (m *model) Failed(err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.failed++
	m.err = err
}

func (m *model) put(n int) {
	m.mu.Lock()
	m.waiting += n
	m.mu.Unlock()
}

// release notes that everything acknowledged is stored elsewhere, and returns the file number for Log.Release.
func (m *model) release() uint64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.stored = m.acked
	seq := uint64(0)
	for _, f := range m.files {
		seq = f.file
		if f.end > m.stored {
			break
		}
	}
	return seq
}

func (m *model) placement(id uint64) Placement {
	p := Placement{
		Type: Batch, Topic: testStore, Partition: uint32(id % 7), Segment: uint32(id / 100), Offset: segment.Offset(id * 10),
	}
	if id%11 == 3 {
		p.Type = Truncate
	}
	return p
}

// fill writes record id into p: a sealed batch, or bytes.
func fill(p []byte, id uint64) {
	if id%11 == 3 {
		for i := range p {
			p[i] = byte(id) + byte(i)
		}
		binary.LittleEndian.PutUint64(p, id)
		return
	}
	body := p[segment.HeaderBytes:]
	for i := range body {
		body[i] = byte(id) ^ byte(i)
	}
	h := segment.Header{
		Flags: segment.FlagControl, BodyBytes: uint32(len(body)), Created: 1, BodyCRC: batch.Checksum(body),
		Position: segment.Position(id), FirstID: segment.MsgID(id), Epoch: 1, Appended: 2,
	}
	h.Encode(p)
}

// replayed checks what recovery hands out against the rules of the model.
type replayed struct {
	m      *model
	chunks int
	start  uint64 // the checkpoint's count
	begun  bool
	next   uint64 // number that the next record must have
	keep   bool   // retain all buffers
	bufs   []*aio.Buf
}

func (r *replayed) Restart() {
	r.chunks, r.start, r.begun, r.next = 0, 0, false, 0
}

func (r *replayed) Checkpoint(chunk []byte) error {
	n := binary.LittleEndian.Uint64(chunk)
	if r.begun && n != r.start || binary.LittleEndian.Uint64(chunk[8:]) != uint64(r.chunks) {
		return fmt.Errorf("chunk %d says %d records, the first says %d", r.chunks, n, r.start)
	}
	r.begun, r.start, r.next = true, n, n
	r.chunks++
	return nil
}

func (r *replayed) Record(rec *Record) error {
	want := make([]byte, r.m.size(r.next))
	fill(want, r.next)
	switch {
	case string(want) != string(rec.Payload):
		return fmt.Errorf("record %d has other bytes", r.next)
	case rec.Placement != r.m.placement(r.next):
		return fmt.Errorf("record %d at %+v", r.next, rec.Placement)
	case rec.FileSeq == 0 || rec.GroupSeq == 0:
		return fmt.Errorf("record %d without file or group", r.next)
	}
	if r.keep {
		rec.Buf.Retain()
		r.bufs = append(r.bufs, rec.Buf)
	}
	r.next++
	return nil
}

func (r *replayed) release() {
	for _, b := range r.bufs {
		b.Release()
	}
	r.bufs = nil
}

// check demands invariants 7 and 8: every acknowledged record is there, no record that was never added, and everything
// before the checkpoint was stored elsewhere.
func (r *replayed) check() error {
	m := r.m
	switch {
	case r.next < m.acked && !(r.start == 0 && m.acked == 0):
		return fmt.Errorf("%d records recovered, %d were acknowledged", r.next, m.acked)
	case r.next > m.added:
		return fmt.Errorf("%d records recovered, %d were added", r.next, m.added)
	case r.start > m.stored:
		return fmt.Errorf("replay begins at record %d, %d were stored elsewhere", r.start, m.stored)
	case r.begun && r.chunks != m.chunksAt(r.start):
		return fmt.Errorf("%d chunks of %d", r.chunks, m.chunksAt(r.start))
	}
	return nil
}

// testArena makes an arena that lives as long as the test.
func testArena(t testing.TB, bufBytes, count int) *aio.Arena {
	t.Helper()
	a, err := aio.NewArena(bufBytes, count)
	if err != nil {
		t.Fatal(err)
	}
	a.SetPoison(true)
	t.Cleanup(func() {
		if err := a.Close(); err != nil {
			t.Error(err)
		}
	})
	return a
}
