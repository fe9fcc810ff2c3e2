package node_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"penstock/internal/node"
	"penstock/internal/node/fold"
)

// A partition has several segments, and an entry of a newer version is in the first of them; the commit log has
// released it. An older version that cannot read the folds at the beginnings of the later segments does not serve the
// partition, and retention removes nothing of it. A version that can read these folds knows everything that the entry
// did, because the folds have that. It serves the partition, and the channel is as the newer version left it.
func TestUnknownControlBeforeTheLastSegment(t *testing.T) {
	t.Parallel()
	dir, ctx := t.TempDir(), context.Background()
	e := openWith(t, inDir(dir))
	top := topicOf(t, e, "t")
	c := channelOf(t, top, "c")
	const count = 40 // some segments, and not one file of the commit log
	body := func(i int) []byte {
		return append(fmt.Appendf(nil, "acked %d ", i), bytes.Repeat([]byte{'x'}, 3000)...)
	}
	publish := func(top *node.Topic, i int) {
		t.Helper()
		if _, err := top.PublishMessage(ctx, node.Outgoing{Body: body(i)}); err != nil {
			t.Fatal(err)
		}
	}
	for i := range count {
		if i == 2 {
			if err := c.Pause(ctx); err != nil {
				t.Fatal(err)
			}
		}
		publish(top, i)
	}
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
	older := func(unknown fold.ControlKind) *node.Engine {
		o := inDir(dir)
		node.SetUnknownKind(&o, unknown)
		return openWith(t, o)
	}
	for round := range 2 { // the second start finds nothing of it in the commit log any more
		o := inDir(dir)
		node.SetUnknownKind(&o, fold.Checkpoint)
		o.RetentionBytes, o.RetentionInterval = 1, 10*time.Millisecond // remove as much as possible
		old := openWith(t, o)
		if err := old.Health(); !errors.Is(err, fold.ErrNewerControl) ||
			!strings.Contains(err.Error(), "topic t, partition 0") {
			t.Errorf("round %d: health: %v", round, err)
		}
		for i, other := 0, topicOf(t, old, fmt.Sprint("u", round)); i < 600; i++ {
			publish(other, i) // with folds of its own, which the next start cannot read, either
		}
		if err := old.Close(); err != nil {
			t.Fatal(err)
		}
	}
	check := func(e *node.Engine, count int) {
		t.Helper()
		if err := e.Health(); err != nil {
			t.Errorf("health: %v", err)
		}
		all, err := topicOf(t, e, "t").Peek(ctx, 0, 0, 2*count)
		if err != nil || len(all) != count {
			t.Fatalf("%d of %d acknowledged messages are left: %v", len(all), count, err)
		}
		for i, m := range all {
			if !bytes.Equal(m.Body, body(i)) {
				t.Fatalf("message %d is %.20q", i, m.Body)
			}
		}
		s := e.Stats("t", "c")
		if len(s) != 1 || len(s[0].Channels) != 1 || !s[0].Channels[0].Paused || s[0].Channels[0].Depth != int64(count) {
			t.Errorf("the channel is %+v, want it paused with %d messages", s, count)
		}
	}
	old := older(fold.ChannelPaused)
	check(old, count)
	publish(topicOf(t, old, "t"), count)
	if err := old.Close(); err != nil {
		t.Fatal(err)
	}
	check(openWith(t, inDir(dir)), count+1)
}
