package partition

import (
	"errors"
	"testing"
	"time"

	"penstock/internal/node/logread"
	"penstock/segment"
	"penstock/tests/support/faultaio"
)

// A cut reads the segment that ends where the log is cut, and this segment is removed meanwhile. The cut finds that the
// log now begins where it is cut, and that nothing says any more into which segment the next batch goes.
func TestRefoldBesideRetention(t *testing.T) {
	disk := faultaio.New(faultaio.Options{})
	s := runStore(t, disk)
	log := s.part.log
	s.publish(t, 60, 1000)
	w := segment.NewWriter()
	defer w.Close()
	if _, err := log.Flush(w, 1<<30); err != nil {
		t.Fatal(err)
	}
	if err := log.Sync(); err != nil {
		t.Fatal(err)
	}
	end, _, _ := log.End()
	log.Evict(end)
	segments := log.Segments()
	if len(segments) < 3 || log.Unflushed() != 0 {
		t.Fatalf("%d segments, and %d bytes in memory", len(segments), log.Unflushed())
	}
	next := segments[1]

	disk.Inject(faultaio.Rule{Kind: faultaio.KindRead, Name: segments[0].Path, Hold: true, Count: -1})
	done := make(chan error, 1)
	go func() {
		_, err := s.part.pastAt(next.FirstPosition)
		done <- err
	}()
	for limit := time.Now().Add(30 * time.Second); log.Segments()[0].Pins == 0; time.Sleep(time.Millisecond) {
		if time.Now().After(limit) {
			t.Fatal("the segment is not read")
		}
	}
	if _, err := log.Trim(next.Start); err != nil {
		t.Fatal(err)
	}
	disk.ClearRules()
	disk.ReleaseHeld()
	if err := <-done; !errors.Is(err, logread.ErrNothingLeft) {
		t.Errorf("a cut that leaves nothing behind a removed segment: %v", err)
	}
}
