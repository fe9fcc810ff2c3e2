package partition

import (
	"context"
	"errors"
	"testing"
	"time"

	"penstock/internal/meta"
	"penstock/replicate"
	"penstock/tests/support/patience"
)

// damageStore takes reports of damage, one at a time and only when the test lets it.
type damageStore struct {
	meta.Store
	came   chan bool
	answer chan error
}

func (s *damageStore) ReportCopy(
	_ context.Context, _ meta.PartitionID, _ replicate.Member, state meta.CopyState,
) error {
	s.came <- state != meta.CopyWhole
	return <-s.answer
}

func (s *damageStore) Snapshot() *meta.Snapshot { return &meta.Snapshot{} }

// The last report that the store gets is true, however often the state of the copy changes while a report is on its
// way: a report never overtakes the one before. A row that contradicts the state of the copy causes another report.
//
// Seed 3968522.
func TestLastReportOfDamageIsTrue(t *testing.T) {
	r := bareReplica()
	s := &damageStore{came: make(chan bool), answer: make(chan error)}
	r.node.Rows = s
	report := func(damaged bool) {
		r.run(func() {
			if r.damaged = nil; damaged {
				r.damaged = errors.New("it does not read back")
			}
			r.reportDamage()
		})
	}
	next := func(want bool) {
		t.Helper()
		select {
		case damaged := <-s.came:
			if damaged != want {
				t.Fatalf("the store hears that the copy is damaged: %v", damaged)
			}
		case <-time.After(patience.Or(10 * time.Second)):
			t.Fatal("the store hears nothing")
		}
	}
	end := func() {
		t.Helper()
		ended := make(chan struct{})
		go func() {
			r.node.wg.Wait()
			close(ended)
		}()
		select {
		case <-ended:
		case damaged := <-s.came:
			t.Fatalf("the store hears once more that the copy is damaged: %v", damaged)
		}
	}
	report(false)
	next(false)
	report(true) // while the first one is on its way
	report(false)
	report(true)
	select {
	case damaged := <-s.came:
		t.Fatalf("a second report, damaged %v, is on its way beside the first", damaged)
	case s.answer <- nil:
	}
	next(true)
	s.answer <- meta.ErrUnavailable
	next(true)
	s.answer <- nil
	end()

	row := &meta.Partition{State: replicate.State{Replicas: []replicate.NodeID{r.node.Self.ID}}}
	r.run(func() { r.correctDamaged(row) }) // the row says that the copy is whole
	next(true)
	s.answer <- nil
	end()
	row.Damaged = []replicate.Member{r.node.member()}
	r.run(func() { r.correctDamaged(row) })
	end()
}
