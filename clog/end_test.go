package clog

import (
	"slices"
	"testing"

	"penstock/segment/aio"
)

// The end that is read before recovery is the one that recovery finds. A log that lacks what its mark says, or that is
// damaged where it ends, has no known end.
func TestEnd(t *testing.T) {
	arena := testArena(t, 4*aio.BlockBytes, 3)
	d, m := written(t, arena)
	seq, known, err := End(d, testStore)
	if err != nil || !known {
		t.Fatalf("end %d, known %v, %v", seq, known, err)
	}
	report, err := judged(t, d, arena, marked(), m)
	if err != nil || report.LastSeq != seq {
		t.Errorf("recovery finds group %d, not %d: %v", report.LastSeq, seq, err)
	}
	if _, known, err := End(d, [16]byte{9}); known || err != nil {
		t.Errorf("the log of another store has an end: %v", err)
	}
	var groups []GroupInfo
	newest := ""
	if err := Scan(d, func(file FileInfo, g GroupInfo, _ []RecordInfo) error {
		if file.Name != newest {
			newest, groups = file.Name, nil
		}
		groups = append(groups, g)
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	last := groups[len(groups)-1]
	if !slices.ContainsFunc(groups, func(g GroupInfo) bool { return g.Bytes > GroupHeaderBytes }) ||
		!d.Corrupt(newest, []byte{0xee}, last.Offset+GroupHeaderBytes) {
		t.Fatal("nothing was damaged")
	}
	if _, known, err := End(d, testStore); known || err != nil {
		t.Errorf("a damaged log has an end: %v", err)
	}
	if err := d.Remove(newest); err != nil {
		t.Fatal(err)
	}
	if seq, known, err := End(d, testStore); known || err != nil {
		t.Errorf("without its newest file it ends at %d: %v", seq, err)
	}
	if err := d.RemoveAll(dirName); err != nil {
		t.Fatal(err)
	}
	if _, known, err := End(d, testStore); known || err != nil {
		t.Errorf("without files it has an end: %v", err)
	}
}
