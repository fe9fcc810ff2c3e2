package node_test

import (
	"bytes"
	"fmt"
	"slices"
	"time"

	"penstock/internal/node"
	"penstock/segment"
)

// awaitEqualCopies waits until the copies of a partition on all running nodes are equal byte by byte, from the start of
// the shorter of each two, and returns the copy of the first node.
//
// B1, B94.
func (tc *testCluster) awaitEqualCopies(name string, n int) node.Copy {
	tc.t.Helper()
	var all []node.Copy
	var err error
	get := func(of func(*node.Engine, string, int) (node.Copy, error)) bool {
		all = all[:0]
		for _, m := range tc.running() {
			c, cerr := of(m.e, name, n)
			if cerr != nil {
				err = fmt.Errorf("%s: %w", m.name, cerr)
				return false
			}
			all = append(all, c)
		}
		return true
	}
	same := func() bool {
		err = nil
		// Without the first half, this loop would read all bytes on and on.
		return get(node.StateOf) && sameStates(all) && get(node.CopyOf) && sameStates(all) && sameBytes(all)
	}
	for end := time.Now().Add(patience); !same(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(end) {
			for i, c := range all {
				tc.t.Logf("%s: [%d, %d) batches %d, committed %d, ids %d, epochs %v, %d bytes of cursors",
					tc.running()[i].name, c.Start, c.End, c.Next, c.Committed, c.NextID, c.Epochs, len(c.Cursors))
			}
			tc.t.Fatalf("the copies of %s/%d do not become equal: %v", name, n, err)
		}
	}
	return all[0]
}

// sameStates says whether copies end at the same place, with the same channels, and one of them knows that all is
// committed. A restarted follower may have an older committed mark, until the leader has a reason to send it a message.
func sameStates(all []node.Copy) bool {
	for i := range all {
		if a, b := &all[0], &all[i]; a.End != b.End || !bytes.Equal(a.Cursors, b.Cursors) {
			return false
		}
	}
	return slices.ContainsFunc(all, func(c node.Copy) bool { return c.Committed == c.Next })
}

// sameBytes says whether copies are equal from the start of the shorter of each two on.
func sameBytes(all []node.Copy) bool {
	for i := range all {
		if a, b := &all[0], &all[i]; !sameFrom(max(a.Start, b.Start), a, b) {
			return false
		}
	}
	return true
}

// sameFrom says whether two copies are equal from start on. Their starts may differ, because each node removes
// confirmed segments in its own time.
func sameFrom(start segment.Offset, a, b *node.Copy) bool {
	if !bytes.Equal(a.Bytes[start-a.Start:], b.Bytes[start-b.Start:]) {
		return false
	}
	n := min(len(a.Epochs), len(b.Epochs)) // older epochs are forgotten together with their batches
	return slices.Equal(a.Epochs[len(a.Epochs)-n:], b.Epochs[len(b.Epochs)-n:])
}
