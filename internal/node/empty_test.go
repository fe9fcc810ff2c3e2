package node_test

import (
	"testing"
	"time"

	"penstock/internal/node"
)

// A topic without channels has a delayed message, is paused, and gets another message. Then it is emptied: nobody waits
// for the delayed message any more, so the state of the channels in the log must not have it.
func TestEmptyPausedTopicWithoutChannels(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	e := open(t, dir)
	topic := topicOf(t, e, "t")
	if _, err := topic.PublishMessage(ctxBg, node.Outgoing{Body: []byte("later"), Delay: time.Hour}); err != nil {
		t.Fatal(err)
	}
	if err := topic.Pause(ctxBg); err != nil {
		t.Fatal(err)
	}
	publish(t, topic, "held")
	if err := topic.Empty(ctxBg); err != nil {
		t.Fatal(err)
	}
	for range 2 { // the first batch after a start has the state, and the next start reads it
		if err := e.Close(); err != nil {
			t.Fatal(err)
		}
		e = open(t, dir)
		topic = topicOf(t, e, "t")
		publish(t, topic, "new")
	}
	defer e.Close()
	ch := channelOf(t, topic, "c")
	if err := topic.Unpause(ctxBg); err != nil {
		t.Fatal(err)
	}
	if got := subscribe(t, ch, 10).take(1); got[0] != "new" {
		t.Errorf("%q is left of what was emptied", got)
	}
}
