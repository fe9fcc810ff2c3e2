package partition

import (
	"sync"
	"testing"
	"time"

	"penstock/batch"
	"penstock/internal/node/inbox"
	"penstock/segment"
	"penstock/segment/aio/faultaio"
)

// blockedCalls is a Blocker that counts its calls.
type blockedCalls int

func (b *blockedCalls) MayBlock() { *b++ }

// A put that comes alone over a connection to another node is written on that connection's goroutine, which says before
// the write that it may hang. If the last write was slow, the put is left to writeGathered. The next fast write ends
// that.
//
// F6.
func TestLonePutOfAConnection(t *testing.T) {
	s := runStore(t, faultaio.New(faultaio.Options{}))
	c := &s.committer
	c.gathered, s.replicas = make(chan struct{}, 1), bareReplica().node
	limits := inbox.NewLimits(1<<20, 1<<20, 1<<10, time.Hour)
	// announce submits puts, one at a time, until one arrives while the log is idle. It returns where that put is
	// answered.
	announce := func(b Blocker, taken func() bool) chan error {
		for range 10_000 {
			answer := make(chan error, 1)
			p := &inbox.Put{Messages: [][]byte{[]byte("m")}, Done: func(p *inbox.Put) { answer <- p.Err }}
			if err := limits.Measure(p); err != nil {
				t.Fatal(err)
			}
			if err := s.part.TryEnter(p); err != nil {
				t.Fatal(err)
			}
			if s.part.AnnounceLast(b); taken() {
				return answer
			}
			if err := <-answer; err != nil {
				t.Fatal(err)
			}
		}
		t.Fatal("the log was never idle")
		return nil
	}
	var fast blockedCalls
	answer := announce(&fast, func() bool { return fast > 0 })
	if err := <-answer; err != nil || len(c.gathered) != 0 {
		t.Errorf("%v, and %d groups are left to another goroutine", err, len(c.gathered))
	}
	if took := c.lastWrite.Load(); took <= 0 || took > int64(time.Minute) {
		t.Errorf("the write took %v", time.Duration(took))
	}

	c.lastWrite.Store(int64(maxSpotWrite))
	var slow blockedCalls
	answer = announce(&slow, func() bool { return len(c.gathered) == 1 })
	if slow != 0 {
		t.Error("the goroutine of a connection writes to a slow disk")
	}
	c.lastWrite.Store(int64(maxSpotWrite)) // the next write must replace this value, however long it takes
	c.writeHere()
	if err := <-answer; err != nil || c.lastWrite.Load() == int64(maxSpotWrite) {
		t.Errorf("%v, the last write took %v", err, time.Duration(c.lastWrite.Load()))
	}
}

// While groups are small and goroutines wait for them, the commit log's goroutine leaves them to stepBeside, also when
// the puts never stop for long enough to let it sleep.
func TestSmallGroupsAreWrittenBeside(t *testing.T) {
	s := runStore(t, faultaio.New(faultaio.Options{}))
	c := &s.committer
	limits := inbox.NewLimits(1<<20, 1<<20, 1<<10, time.Hour)
	const together, rounds = 4, 100
	var ended sync.WaitGroup
	put := func() *inbox.Put {
		p, left := &inbox.Put{Messages: [][]byte{[]byte("m")}}, rounds
		p.Waits = true
		if err := limits.Measure(p); err != nil {
			t.Fatal(err)
		}
		p.Done = func(p *inbox.Put) { // it puts again at once, so that the log always finds something to do
			if left--; left == 0 || p.Err != nil {
				ended.Done()
			} else if err := s.part.TryEnter(p); err != nil {
				t.Error(err)
				ended.Done()
			} else if s.part.StayReady() {
				c.readyMu.Lock()
				c.ready = append(c.ready, s.part)
				c.readyMu.Unlock()
			}
		}
		return p
	}
	for range together {
		ended.Add(1)
		if err := s.part.TryEnter(put()); err != nil {
			t.Fatal(err)
		}
	}
	s.part.StayReady()
	c.readyMu.Lock()
	c.ready = append(c.ready, s.part)
	c.readyMu.Unlock()
	s.clog.Wake() // the log's own goroutine begins
	ended.Wait()
	stats := s.clog.Stats()
	if own := stats.Groups - stats.SoloGroups; stats.Groups < rounds || own > maxSmall+rounds/4 {
		t.Errorf("of %d small groups the commit log's goroutine wrote %d itself", stats.Groups, own)
	}
}

// Small batches of a leader came in one frame, and one leader waits for them. So their group is not taken for one of
// several puts, after which the next group would be left to the commit log's goroutine (committer.push).
func TestSmallBatchesOfALeaderAreOnePut(t *testing.T) {
	for _, c := range []struct {
		count, size int
		shared      bool
	}{{1, 100, false}, {20, 100, false}, {20, 10_000, true}} {
		s := runStore(t, faultaio.New(faultaio.Options{}))
		pt, err := s.NewSolo(s.part.topic, 1)
		if err != nil {
			t.Fatal(err)
		}
		r := bareReplica() // it follows
		r.pt, pt.replica = pt, r
		var incoming []incomingBatch
		var end segment.State
		for range c.count {
			var b segment.Builder
			if err := b.Add(&segment.Record{Body: make([]byte, c.size)}); err != nil {
				t.Fatal(err)
			}
			data, err := b.Seal(1)
			if err != nil {
				t.Fatal(err)
			}
			crc := batch.Stamp(data, end.Next, end.NextID, 1, 1, end.LastCRC)
			incoming = append(incoming, incomingBatch{data: data, offset: end.End, capacity: 1 << 20})
			end.Next, end.NextID, end.End, end.LastCRC = end.Next+1, end.NextID+1, end.End+segment.Offset(len(data)), crc
		}
		r.run(func() { r.incoming, r.out.work = incoming, true })
		for durable := segment.Position(0); durable < end.Next; {
			news := r.changed.Next()
			if r.mu.Lock(); r.durable == durable {
				r.mu.Unlock()
				<-news
				continue
			}
			durable = r.durable
			r.mu.Unlock()
		}
		if shared := s.committer.lastGroupShared.Load(); shared != c.shared {
			t.Errorf("%d batches of %d bytes: the group has several puts: %v", c.count, c.size, shared)
		}
	}
}
