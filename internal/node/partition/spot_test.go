package partition

import (
	"testing"
	"time"

	"penstock/batch"
	"penstock/internal/node/driver"
	"penstock/internal/node/inbox"
	"penstock/segment"
	"penstock/tests/support/faultaio"
)

// blockedCalls is a Blocker that counts its calls.
type blockedCalls int

func (b *blockedCalls) MayBlock() { *b++ }

// A put that comes alone over a connection to another node is written on that connection's goroutine, which says before
// the write that it may hang. See also the test of the same name in package driver.
//
// F6.
func TestLonePutOfAConnection(t *testing.T) {
	s := runStore(t, faultaio.New(faultaio.Options{}))
	s.committer.Use(s.clog, true)
	s.replicas = bareReplica().node
	limits := inbox.NewLimits(inbox.Sizes{
		MaxBatchBytes: 1 << 20, MaxMessageBytes: 1 << 20, MaxHeaderBytes: 1 << 10, MaxDefer: time.Hour,
	})
	// announce submits puts, one at a time, until one arrives while the log is idle. It returns where that put is
	// answered.
	announce := func(b driver.Blocker, taken func() bool) chan error {
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
	if err := <-answer; err != nil {
		t.Error(err)
	}
}

// Small batches of a leader came in one frame, and one leader waits for them. So their group is not taken for one of
// several puts, after which the next group would be left to the commit log's goroutine (driver.Driver.Push).
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
			var b batch.Builder
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
		puts := 0   // in the largest group
		_ = s.end() // how the store ends does not matter here
		for i := range s.committer.slots {
			puts = max(puts, s.committer.slots[i].sealed)
		}
		if shared := puts > 1; shared != c.shared {
			t.Errorf("%d batches of %d bytes: the group has several puts: %v", c.count, c.size, shared)
		}
	}
}
