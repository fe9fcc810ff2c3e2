package clog

import (
	"errors"
	"slices"
	"testing"

	"penstock/segment"
	"penstock/segment/aio"
	"penstock/tests/support/faultaio"
)

// TestScan shows groups in order, including those that recovery would refuse.
func TestScan(t *testing.T) {
	f := newForge()
	f.checkpoint(1)
	f.records(1, 3)
	f.checkpoint(2)
	f.records(2, 2)
	f.damage(2, aio.BlockBytes+200)
	f.mark(2)
	var seqs []uint64
	broken, records := 0, 0
	err := Scan(f.disk(t), func(file FileInfo, g GroupInfo, recs []RecordInfo) error {
		seqs = append(seqs, g.Seq)
		records += len(recs)
		if g.Store != testStore || !g.Continues && g.Seq > 1 || g.Durable != g.Seq-1 || g.Offset%aio.BlockBytes != 0 {
			t.Errorf("%+v", g)
		}
		var c *segment.CorruptError
		if errors.As(g.Err, &c) {
			broken++
			if c.Path != file.Name || g.Seq != 4 {
				t.Errorf("%v in %s", c, file.Name)
			}
		}
		return nil
	})
	if err != nil || broken != 1 || records != 5 || !slices.Equal(seqs, []uint64{1, 2, 3, 4, 5}) {
		t.Errorf("%v: groups %d, %d broken, %d records", err, seqs, broken, records)
	}
	if err := Scan(faultaio.New(faultaio.Options{}), nil); err != nil {
		t.Errorf("no log at all: %v", err)
	}
	stop := errors.New("stop")
	if err := Scan(f.disk(t), func(FileInfo, GroupInfo, []RecordInfo) error { return stop }); !errors.Is(err, stop) {
		t.Errorf("%v", err)
	}
}
