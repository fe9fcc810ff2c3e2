package partition

import (
	"context"
	"errors"
	"testing"

	"penstock/internal/meta"
	"penstock/internal/node/fold"
	"penstock/internal/node/machine"
	"penstock/internal/node/replay"
	"penstock/segment"
)

// A copy begins anew at a segment of its leader that has no fold, because the fold was too large for a batch. The copy
// does not know which channels exist, so it must not lead, until its leader sends the fold. It is the same for a copy
// that replays its commit log, or reads its segments.
func TestCopyThatBeginsWithoutAFold(t *testing.T) {
	r := bareReplica()
	var cancel context.CancelFunc
	r.node.Ctx, cancel = context.WithCancel(context.Background())
	cancel() // there is no store that could be told
	pt, c := r.pt, &committer{store: r.node.store}
	pt.fold, pt.machine = new(fold.Cursors), machine.NewPartition(segment.State{Next: 90, NextID: 700}, segment.Sizes{})

	whole := new(fold.Cursors)
	whole.Publish(0, 710)
	if err := whole.ApplyAt(&fold.Control{Kind: fold.ChannelCreated, Channel: "c", ID: 3}, 710, 0); err != nil {
		t.Fatal(err)
	}
	receive := func(h segment.Header, controls ...fold.Control) {
		var body []byte
		for i := range controls {
			body = fold.AppendControl(body, &controls[i])
		}
		h.Epoch = 2
		r.run(func() { c.foldIncoming(pt, &h, body, 5000) })
	}
	unread := func(when string, want bool) {
		t.Helper()
		damaged := r.copyState() == meta.CopyDamaged
		if err := pt.WhyUnread(); errors.Is(err, replay.ErrNoFold) != want || err != nil != want || damaged != want {
			t.Errorf("%s: the fold is unknown because of %v, the copy is %d", when, err, r.copyState())
		}
	}
	start := fold.Control{Kind: fold.EpochStart, Epoch: 2}
	unread("empty", false)
	receive(segment.Header{Flags: segment.FlagControl, FirstID: 700}, start)
	unread("behind a segment's first batch without a fold", true)
	receive(segment.Header{FirstID: 700, Count: 10})
	receive(segment.Header{Flags: segment.FlagControl, FirstID: 710}, fold.Control{
		Kind: fold.ChannelCreated, Channel: "later", ID: 710,
	})
	unread("behind messages and another channel", true)
	receive(segment.Header{Flags: segment.FlagControl, FirstID: 710}, start,
		fold.Control{Kind: fold.Checkpoint, Cursors: whole})
	unread("behind the fold", false)
	if pt.fold.Channel("c") == nil || pt.fold.Len() != 1 || pt.fold.End() != 710 {
		t.Errorf("%d channels, messages below %d", pt.fold.Len(), pt.fold.End())
	}
	receive(segment.Header{FirstID: 710, Count: 1})
	unread("behind more messages", false)
}
