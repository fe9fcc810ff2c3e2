package part

import (
	"testing"
	"time"

	"penstock/engine/inbox"
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
