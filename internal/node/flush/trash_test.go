package flush

import (
	"fmt"
	"path"
	"syscall"
	"testing"
	"time"

	"penstock/internal/node/datadir"
	"penstock/internal/node/platform"
	"penstock/tests/support/faultaio"
)

// slowHost is a machine on which a call takes longer than emptyTrash may take.
type slowHost struct{ platform.Host }

func (slowHost) Since(time.Time) time.Duration { return 2 * maxTrashDuration }

// However long it takes to list the trash, each call removes something; and what cannot be removed keeps nothing else
// there.
func TestTrashGetsEmpty(t *testing.T) {
	f, p := newTestPart(t, nil)
	f.n.Host = slowHost{f.n.Host}
	const count = 5
	for i := range count {
		if err := p.log.Disk.MkdirAll(path.Join(datadir.Trash, fmt.Sprint(i))); err != nil {
			t.Fatal(err)
		}
	}
	left := func() int {
		t.Helper()
		entries, err := p.log.Disk.ReadDir(datadir.Trash)
		if err != nil {
			t.Fatal(err)
		}
		return len(entries)
	}
	for i := range count - 1 {
		if f.emptyTrash(); left() != count-1-i || f.TrashEntries() != left() {
			t.Fatalf("after %d calls %d entries are left, and it says %d", i+1, left(), f.TrashEntries())
		}
	}
	if err := p.log.Disk.MkdirAll(path.Join(datadir.Trash, "another")); err != nil {
		t.Fatal(err)
	}
	p.log.Disk.Inject(faultaio.Rule{
		Kind: faultaio.KindRemove, Name: path.Join(datadir.Trash, fmt.Sprint(count-1)), Err: syscall.EIO, Count: -1,
	})
	for range 4 {
		f.emptyTrash()
	}
	if isLeft := left(); isLeft != 1 {
		t.Errorf("%d entries are left; only one cannot be removed", isLeft)
	}
}
