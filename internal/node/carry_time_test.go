package node_test

import (
	"math"
	"testing"
	"time"

	"penstock/batch"
	"penstock/internal/node"
	"penstock/segment"
)

// A producer says when its messages were created. Whatever it says, they are carried when they wait, and come with
// their bodies: a producer's clock must not end the process, here and at every later leader.
//
// B50.
func TestCarriedFromBefore1970(t *testing.T) {
	t.Parallel()
	disk := newDisk()
	e := openOnDisk(t, disk)
	topic := topicOf(t, e, "t")
	ch := channelOf(t, topic, "c")
	s := subscribe(t, ch, 1)
	waiting := map[node.ID]bool{}
	for _, created := range []int64{-1, math.MinInt64, math.MaxInt64} {
		var b batch.Builder
		b.Reset(segment.CodecNone)
		if err := b.Add(&segment.Record{Body: []byte("x")}); err != nil {
			t.Fatal(err)
		}
		batch, err := b.Seal(created)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := publishSealed(ctxBg, topic, batch); err != nil {
			t.Fatal(err)
		}
		m := s.next()
		if err := s.Requeue(m.id, time.Hour); err != nil {
			t.Fatal(err)
		}
		s.Pump()
		waiting[m.id] = true
	}
	publishFlood(t, topic, s, 150)
	awaitShrink(t, e, topic, s, 600<<10)
	logConfirms(t, ch)
	s.Close()
	e = openOnDisk(t, disk.Crash(1))
	topic, _ = e.Catalog().LookupTopic("t")
	ch, _ = topic.LookupChannel("c")
	list, err := ch.Peek(ctxBg, node.PeekOptions{Count: 10})
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range list {
		if waiting[m.ID] && string(m.Body) == "x" {
			delete(waiting, m.ID)
		}
	}
	if len(waiting) > 0 {
		t.Errorf("of the messages that wait, %v are not there: %+v", waiting, list)
	}
}
