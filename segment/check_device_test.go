package segment

import (
	"errors"
	"fmt"
	"testing"

	"penstock/tests/support/faultaio"
)

// Check finds what the device has lost even if memory still shows what it once had.
func TestCheckReadsTheDevice(t *testing.T) {
	w := newWorld(t, memoryDisk())
	w.fill(newRand(21), 40)
	w.settle()
	m := &w.model[17]
	var v View
	if err := w.log.View(&v, m.slice.Offset, 1); err != nil { // now it is in memory
		t.Fatal(err)
	}
	v.Release()
	name, at := fmt.Sprintf("%s/%010d.seg", w.dir, m.slice.Segment),
		SegmentHeaderBytes+int64(m.slice.Offset-m.slice.SegmentBase)+HeaderBytes
	if !w.disk.(*faultaio.Disk).CorruptUnseen(name, []byte{^m.data[HeaderBytes]}, at) {
		t.Fatal("nothing was damaged")
	}
	c := NewChecker()
	defer c.Close()
	if _, bad := w.checkAll(c, CheckBytes); len(bad) != 1 || bad[0] != m.slice.Offset {
		t.Errorf("damage at %d was found at %v", m.slice.Offset, bad)
	}
	w.log.Close()
}

// A run ends where a batch does not continue the one before it: a write that went to another place leaves batches that
// are each whole.
func TestCheckFollowsTheChain(t *testing.T) {
	w := newWorld(t, memoryDisk())
	w.fill(newRand(22), 5)
	defer w.log.Close()
	var first Header
	run := append([]byte(nil), w.model[0].data...)
	run = append(run, w.model[1].data...)
	if n, _, err := verifyWhole(run, &first); n != len(run) || err != nil {
		t.Errorf("%d of %d bytes, %v", n, len(run), err)
	}
	run = append(run[:len(w.model[0].data)], w.model[2].data...)
	if n, _, err := verifyWhole(run, &first); n != len(w.model[0].data) || !errors.Is(err, errChain) {
		t.Errorf("%d of %d bytes, %v", n, len(run), err)
	}
}
