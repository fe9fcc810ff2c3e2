package inbox

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"
)

// An inbox that is empty again counts nothing at its node, however it was emptied: while a partition has no quorum, the
// oldest puts run out of time, and the others are stored later. If each empty inbox kept some bytes in the node's sum,
// the node would refuse all puts once it had had enough partitions.
func TestEmptyInboxCountsNothing(t *testing.T) {
	n := new(Shared)
	n.Limit(Bounds{MaxInboxBytes: 1 << 20, MaxNodeInboxBytes: 1 << 20, PublishTimeout: time.Second, AdmitTimeout: -1})
	n.Tell(new(atomic.Uint64), func() {})
	b := new(Inbox)
	b.Use(n)
	b.SetLeads(true)
	put := func(bytes int, deadline int64) {
		t.Helper()
		p := &Put{Done: func(*Put) {}}
		p.Bytes, p.DeadlineNs = bytes, deadline
		if _, _, err := b.Enter(context.Background(), p); err != nil {
			t.Fatal(err)
		}
	}
	put(2*reportBytes, 10)
	put(reportBytes-1, 30)
	late, _ := b.Expire(20)
	if late.Count() != 1 {
		t.Fatalf("%d puts are late", late.Count())
	}
	late.Answer(errors.New("late"))
	stored := b.Drain()
	stored.Answer(nil)
	if got := n.Waiting(); got != 0 {
		t.Errorf("nothing waits, and %d bytes are counted", got)
	}
}
