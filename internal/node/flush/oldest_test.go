package flush

import (
	"errors"
	"syscall"
	"testing"
	"time"

	"penstock/clog"
	"penstock/segment"
	"penstock/tests/support/faultaio"
)

// Partitions of deleted topics, and those whose files take nothing more, have the oldest unflushed bytes. The flusher
// goes on with the next partition at once: a node that is short of buffers waits for it. It forgets deleted ones.
func TestFlushPassesOverWhatTakesNothing(t *testing.T) {
	f, _ := newTestPart(t, nil)
	part := func() *testPart {
		_, p := newTestPart(t, nil)
		p.log.Put(1, 100, time.Unix(1_700_000_000, 0).UnixNano())
		f.enqueue(&p.Part)
		return p
	}
	for range 20 {
		if err := part().log.Close(); err != nil {
			t.Fatal(err)
		}
	}
	broken, whole := part(), part()
	broken.log.Disk.Inject(faultaio.Rule{Kind: faultaio.KindWrite, Err: syscall.EIO, Count: -1})
	f.Use(new(clog.Log))
	f.checked, f.reserved = f.n.Host.Instant(), f.n.Host.Instant() // that commit log cannot be asked about its sizes
	if !f.flushOldest() || whole.log.Unflushed() != 0 {
		t.Errorf("%d bytes of a partition that can be flushed are left", whole.log.Unflushed())
	}
	if err := broken.log.Poisoned(); !errors.Is(err, segment.ErrPoisoned) {
		t.Fatal("its file takes batches", err)
	}
	if n := f.Backlog(); n != 1 || f.flushOldest() {
		t.Errorf("%d partitions are queued, want that whose file takes nothing more", n)
	}
}
