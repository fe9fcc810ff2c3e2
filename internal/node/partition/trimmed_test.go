package partition

import (
	"runtime"
	"testing"

	"penstock/internal/node/datadir"
	"penstock/internal/node/logread"
	"penstock/internal/node/machine"
	"penstock/segment"
	"penstock/tests/support/faultaio"
	"penstock/tests/support/logtest"
)

// When retention has removed the front of a log, the machine learns the state in front of the batch that is now the
// first one. That batch is read from the device without Replica.mu: puts to every partition of the node wait for that
// lock, and a device may hang.
//
// F6.
func TestTrimmedReadsWithoutTheLock(t *testing.T) {
	log := logtest.New(t, segment.Sizes{MinSegmentBytes: 16 << 10, MaxSegmentBytes: 16 << 10})
	var before []uint32 // the checksum in front of each batch
	for range 4 {
		before = append(before, log.State.LastCRC)
		log.Put(1, 12<<10, 1)
	}
	log.Flush()
	if err := log.Sync(); err != nil {
		t.Fatal(err)
	}
	r := bareReplica()
	r.node.Shortened = datadir.NewShortened(log.Disk)
	pt := r.pt
	pt.log, pt.machine = log.Log, machine.NewPartition(log.State, segment.Sizes{})
	if err := r.open(log.State.Next); err != nil {
		t.Fatal(err)
	}
	trim := func(batches segment.Offset) {
		if n, err := log.Trim(log.State.End / 4 * batches); err != nil || n == 0 {
			t.Fatalf("%d bytes are trimmed, %v", n, err)
		}
	}
	startsAt := func(first segment.Position) {
		if start := r.follower.Log().Start; start.Next != first || start.LastCRC != before[first] {
			t.Errorf("the log begins behind %+v, want position %d and checksum %x", start, first, before[first])
		}
	}

	trim(1)
	pt.Trimmed(true, false)
	startsAt(1)

	trim(3)
	if _, err := pt.startState(); err != logread.ErrFirstUnread {
		t.Errorf("the state of a start that was not read: %v", err)
	}
	log.Disk.Inject(faultaio.Rule{Kind: faultaio.KindRead, Name: logtest.Dir + "/*", Hold: true, Count: -1})
	done := make(chan struct{})
	go func() {
		defer close(done)
		pt.Trimmed(true, false)
	}()
	for log.Disk.Blocked() == 0 {
		select {
		case <-done:
			t.Fatal("nothing was read")
		default:
			runtime.Gosched()
		}
	}
	if !r.mu.TryLock() {
		t.Error("the read that hangs holds the replica's lock")
	} else {
		r.mu.Unlock()
	}
	log.Disk.ClearRules()
	log.Disk.ReleaseHeld()
	<-done
	startsAt(3)
}
