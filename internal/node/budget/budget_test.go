package budget

import (
	"errors"
	"log/slog"
	"maps"
	"slices"
	"testing"

	"penstock/internal/node/errs"
)

// What the partitions of a topic take counts for the node and for the token that has made the topic. It moves with the
// topic, and a recount drops partitions that are gone.
func TestShares(t *testing.T) {
	b := new(Budget)
	b.Limit(Limits{MaxStateBytes: 1000, MaxRanges: 10, TokenShare: 50})
	x, y := b.Share("x"), b.Share("y")
	var topic Topic
	topic.Share.Store(x)
	var one, two Account
	one.Open(b, &topic)
	two.Open(b, &topic)
	one.stored.Store(10)
	one.memory.Store(100)
	one.add(10, 100)
	takes := func(when string, node, ofX, ofY int64) {
		t.Helper()
		if n := b.StateMemory(); n != node || x.StateBytes() != ofX || y.StateBytes() != ofY {
			t.Errorf("%s: the node has %d, x %d, y %d", when, n, x.StateBytes(), y.StateBytes())
		}
	}
	takes("at first", 100, 100, 0)
	topic.Share.Store(y)
	for _, a := range []*Account{&one, &two} {
		a.Moved(x, y)
	}
	takes("moved", 100, 0, 100)
	b.Recount(slices.Values([]*Account{&two}))
	takes("without the first partition", 0, 0, 0)
	if b.Share("") != nil || b.Share("x") != x {
		t.Error("shares are made anew")
	}

	if err := one.exceeds(0, 501); !errors.Is(err, errs.ErrStateShare) {
		t.Errorf("more than the share: %v", err)
	}
	if err := one.exceeds(0, 1001); !errors.Is(err, errs.ErrStateFull) || errors.Is(err, errs.ErrStateShare) {
		t.Errorf("more than the node has: %v", err)
	}
	if err := one.exceeds(maxPartitionBytes, 0); !errors.Is(err, errs.ErrStateFull) {
		t.Errorf("more than a partition may have: %v", err)
	}
	if err := one.StateFull(0); err != nil {
		t.Error(err)
	}
}

// On a disk that is nearly full, a token with more than its share stores nothing more until it has less.
func TestDivideDisk(t *testing.T) {
	b := new(Budget)
	b.Limit(Limits{TokenShare: 50})
	x := b.Share("x")
	var topic Topic
	topic.Share.Store(x)
	a := &Account{budget: b, topic: &topic}
	for _, c := range []struct {
		free, ofX, others int64
		soon, over        bool
	}{
		{900, 100, 0, false, false},
		{150, 850, 0, true, false},
		{90, 600, 310, true, true},
		{90, 400, 510, true, false},
		{20, 600, 380, true, true},
		{500, 300, 200, false, false},
	} {
		soon := b.DivideDisk(c.free, 0, maps.All(map[*Share]int64{x: c.ofX, nil: c.others}), slog.New(slog.DiscardHandler))
		over := a.OverDisk()
		if soon != c.soon || (over != nil) != c.over || over != nil && !errors.Is(over, errs.ErrStoredShare) {
			t.Errorf("%+v: soon %v, %v", c, soon, over)
		}
	}
}

// A quota refuses what would exceed it, and tells by how much.
func TestRoom(t *testing.T) {
	room := Room{bytes: 100, count: 3, mostBytes: 1000, mostCount: 10}
	for _, c := range []struct {
		count, bytes int64
		value, most  int64
	}{{3, 100, 0, 0}, {4, 1, 11, 10}, {1, 150, 1050, 1000}} {
		var over *errs.LimitError
		if err := room.Refuses(c.count, c.bytes); errors.As(err, &over) != (c.most != 0) ||
			over != nil && (over.Value != c.value || over.Most != c.most) {
			t.Errorf("%d messages, %d bytes: %v", c.count, c.bytes, err)
		}
	}
}
