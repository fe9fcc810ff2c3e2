package cluster

import (
	"errors"
	"sync"
	"testing"

	"penstock/internal/meta"
)

// How far a node's commit log went stays in its row, whoever else writes the row, and what others wrote stays, too. It
// is only raised, until the node registers anew.
func TestReportData(t *testing.T) {
	w := newWorld(t, 2)
	n, operator := w.nodes[0], w.nodes[1]
	row := func() meta.Node { return *w.nodes[1].Snapshot().Nodes[n.node.ID] }
	report := func(seq uint64) {
		t.Helper()
		if err := n.ReportData(ctx(t), seq, 0, false); err != nil {
			t.Fatal(err)
		}
	}
	seen := func(what string, holds func(meta.Node) bool) {
		t.Helper()
		w.settle(operator, what, func(s *meta.Snapshot) bool { return holds(*s.Nodes[n.node.ID]) })
	}
	report(7)
	seen("the report", func(r meta.Node) bool { return r.Logged == 7 })
	if err := operator.Drain(ctx(t), n.node.ID, true); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(n.ReportDisk(ctx(t), meta.DiskSlow), n.Raised(ctx(t), 1)); err != nil {
		t.Fatal(err)
	}
	report(5)
	seen("the reports of others", func(r meta.Node) bool {
		return r.Draining && r.Disk == meta.DiskSlow && r.StoreLevel == 1
	})
	if r := row(); r.Logged != 7 {
		t.Errorf("it is %d after the others wrote, and after a smaller report", r.Logged)
	}
	report(9)
	seen("the second report", func(r meta.Node) bool { return r.Logged == 9 })
	if r := row(); !r.Draining || r.Disk != meta.DiskSlow || r.Boot != n.reg.Node.Boot {
		t.Errorf("the report took away what others wrote: %+v", r)
	}

	if err := n.ReportData(ctx(t), 8, 2, false); err != nil {
		t.Fatal(err)
	}
	seen("unknown topics", func(r meta.Node) bool { return r.UnknownTopics == 2 && r.Logged == 9 })
	report(9)
	seen("that there are none", func(r meta.Node) bool { return r.UnknownTopics == 0 && r.Logged == 9 })
	if err := n.ReportData(ctx(t), 9, 1, false); err != nil {
		t.Fatal(err)
	}
	seen("another one", func(r meta.Node) bool { return r.UnknownTopics == 1 && !r.ClockDiffers })
	if err := n.ReportData(ctx(t), 9, 1, true); err != nil {
		t.Fatal(err)
	}
	seen("that its clock differs", func(r meta.Node) bool { return r.ClockDiffers && r.UnknownTopics == 1 })

	next := w.prepare("n1", n.reg.Node.Store)
	next.reg.Node.Logged = 3
	next.reg.Life = func(row *meta.Node) meta.Life {
		if row.Logged != 9 {
			t.Errorf("its next process compares with %d", row.Logged)
		}
		return meta.LifeUnknown
	}
	w.join(next)
	seen("the registration", func(r meta.Node) bool { return r.Boot == next.reg.Node.Boot })
	if r := row(); r.Logged != 3 || r.UnknownTopics != 0 || r.ClockDiffers {
		t.Errorf("an older directory registered, and the row says %d, %d, %v", r.Logged, r.UnknownTopics, r.ClockDiffers)
	}
	if err := n.ReportData(ctx(t), 50, 3, true); !errors.Is(err, meta.ErrNotFound) {
		t.Errorf("a process that was replaced: %v", err)
	}
	if r := row(); r.Logged != 3 || r.UnknownTopics != 0 || r.ClockDiffers {
		t.Errorf("a process that was replaced wrote %d, %d, %v", r.Logged, r.UnknownTopics, r.ClockDiffers)
	}
}

// Two that write a node's row at the same time both get through.
func TestReportDataBesideOthers(t *testing.T) {
	w := newWorld(t, 2)
	n, operator := w.nodes[0], w.nodes[1]
	var both sync.WaitGroup
	const rounds = 20
	both.Go(func() {
		for i := range uint64(rounds) {
			if err := n.ReportData(ctx(t), i+1, 0, false); err != nil {
				t.Error(err)
			}
		}
	})
	for i := range rounds + 1 {
		if err := operator.Drain(ctx(t), n.node.ID, i%2 == 0); err != nil {
			t.Error(err)
		}
	}
	both.Wait()
	w.settle(operator, "both", func(s *meta.Snapshot) bool {
		r := s.Nodes[n.node.ID]
		return r.Logged == rounds && r.Draining
	})
}
