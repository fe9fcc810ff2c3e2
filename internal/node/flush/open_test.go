package flush

import (
	"syscall"
	"testing"
	"time"

	"penstock/tests/support/faultaio"
)

// Beyond MaxOpenSegments, the partitions whose files were opened first are synced and their files closed. When the
// system refuses a descriptor, all are. Nothing is lost: the refused partition is flushed by the next try.
func TestOpenSegmentsAreBounded(t *testing.T) {
	const most = 4
	f, _ := newTestPart(t, nil)
	f.Change(time.Hour, most)
	parts := make([]*testPart, 3*most)
	for i := range parts {
		_, parts[i] = newTestPart(t, nil)
		parts[i].log.Put(1, 100, time.Unix(1_700_000_000, 0).UnixNano())
	}
	flush := func(p *testPart) error {
		f.checked, f.reserved = f.n.Host.Instant(), f.n.Host.Instant() // there is no commit log to ask about space
		_, err := f.flush(&p.Part, 1<<20)
		return err
	}
	for i, p := range parts {
		if err := flush(p); err != nil {
			t.Fatal(err)
		}
		if n := f.OpenSegments(); n > most {
			t.Fatalf("%d partitions have files open after %d flushes", n, i+1)
		}
	}
	if l := parts[0].log; l.Synced() != l.State.End {
		t.Error("the partition that was opened first is not synced")
	}
	if l := parts[len(parts)-1].log; l.Synced() == l.State.End {
		t.Error("the partition that was opened last is synced already")
	}
	p := parts[0]
	p.log.Put(1, 100, time.Unix(1_700_000_001, 0).UnixNano())
	p.log.Put(1, 20_000, time.Unix(1_700_000_001, 0).UnixNano()) // needs another file
	p.log.Disk.Inject(faultaio.Rule{Kind: faultaio.KindCreate, Err: syscall.EMFILE})
	if err := flush(p); err == nil {
		t.Fatal("the file was made")
	}
	if n := f.OpenSegments(); n != 0 {
		t.Errorf("%d partitions have files open after a descriptor was refused", n)
	}
	if err := flush(p); err != nil || p.log.Unflushed() != 0 {
		t.Errorf("the next flush: %v, %d bytes are left", err, p.log.Unflushed())
	}
	f.closeOldest(0)
	if p.log.Synced() != p.log.State.End {
		t.Error("closing the files did not sync them")
	}
}
