package node_test

import (
	"testing"
	"time"

	"penstock/internal/node"
	"penstock/internal/node/fold"
	"penstock/internal/node/message"
)

// The lag of a channel is told by partition, with the message that holds up the most others of an ordered channel.
func TestLags(t *testing.T) {
	e := openWith(t, inDir(t.TempDir()))
	topic := topicOf(t, e, "t")
	ch := channelOf(t, topic, "c")
	configureChannel(t, ch, func(s *fold.ChannelSettings) { s.Order = fold.OrderKey })
	var ids []node.ID
	for _, key := range []string{"slow", "quick", "slow", "slow"} {
		id, err := topic.PublishMessage(ctxBg, node.Outgoing{
			Body: []byte("m"), Headers: []node.Header{{Key: []byte(message.KeyHeader), Value: []byte(key)}},
		})
		if err != nil {
			t.Fatal(err)
		}
		ids = append(ids, id)
	}
	s := subscribe(t, ch, 10)
	for range 2 {
		s.next()
	}
	eventually(t, "two wait behind the first", func() bool {
		all := ch.Lags()
		return len(all) == 1 && all[0].InFlightCount == 2 && all[0].Depth == 2 && all[0].Blocker == ids[0] &&
			all[0].Behind == 2 && all[0].OldestNs > 0
	})
	// Whoever finishes it by its id lets the others go on, and the consumer that has it hears nothing of it.
	if err := ch.Finish(ctxBg, ids[0], ids[0]+1000); err != nil {
		t.Fatal(err)
	}
	if m := s.next(); m.id != ids[2] {
		t.Errorf("message %v came", m.id)
	}
	if err := s.Requeue(ids[1], time.Hour); err != nil {
		t.Fatal(err)
	}
	if all := ch.Lags(); all[0].DeferredCount != 1 || all[0].Blocker != ids[2] || all[0].Behind != 1 {
		t.Errorf("then: %+v", all[0])
	}
}
