package node_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"penstock/internal/node"
	"penstock/internal/node/errs"
)

// What a program does with a Message concerns that delivery alone: after a requeue, or when the message has timed out
// and was delivered again, each call says ErrNotInFlight, and the later delivery stays in flight. So it is on a single
// node, where the channel counts the deliveries, and at a node that leads no partition, which counts them itself.
func TestMessageIsOneDelivery(t *testing.T) {
	t.Parallel()
	t.Run("single node", func(t *testing.T) {
		t.Parallel()
		topic := topicOf(t, openOnDisk(t, newDisk()), "t")
		messageIsOneDelivery(t, topic, channelOf(t, topic, "c"))
	})
	t.Run("cluster", func(t *testing.T) {
		t.Parallel()
		tc := newTestCluster(t, 3)
		p, _ := tc.nodeWithoutLeadership()
		topic := tc.topic(p, "t")
		messageIsOneDelivery(t, topic, channelOf(t, topic, "c"))
	})
}

func messageIsOneDelivery(t *testing.T, topic *node.Topic, c *node.Channel) {
	t.Helper()
	s := openMessages(t, c, node.ConsumeOptions{MaxInFlight: 3, MsgTimeout: time.Second})
	refused := func(what string, m *node.Message) {
		t.Helper()
		for name, call := range map[string]func() error{
			"Finish": m.Finish, "Touch": m.Touch, "Requeue": func() error { return m.Requeue(time.Hour) },
		} {
			if err := call(); !errors.Is(err, errs.ErrNotInFlight) {
				t.Errorf("%s of %s: %v", name, what, err)
			}
		}
	}
	publish(t, topic, "m")
	first := take(t, s)
	if err := first.Requeue(0); err != nil {
		t.Fatal(err)
	}
	refused("a delivery that was requeued", first)
	second := take(t, s)
	refused("a delivery that was requeued, and came again", first)
	third := take(t, s) // the second one has timed out
	if third.ID != second.ID || third.Attempts != 3 {
		t.Fatalf("%v, attempt %d, instead of the third delivery of %v", third.ID, third.Attempts, second.ID)
	}
	refused("a delivery that timed out", second)
	refused("the first delivery", first)
	if err := third.Finish(); err != nil {
		t.Errorf("the delivery in flight: %v", err)
	}
	refused("a finished delivery", third)
}

// A handler that requeues its message and returns nil gets it again: Consume does not finish the next delivery.
func TestConsumeAfterRequeue(t *testing.T) {
	t.Parallel()
	topic := topicOf(t, openOnDisk(t, newDisk()), "t")
	c := channelOf(t, topic, "c")
	const messages = 500
	publish(t, topic, numbered("m", messages, 0)...)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	var mu sync.Mutex
	done := map[node.ID]bool{}
	o := node.ConsumeOptions{Workers: 4}
	err := c.Consume(ctx, o, func(_ context.Context, m *node.Message) error {
		if m.Attempts < 3 {
			return m.Requeue(0)
		}
		mu.Lock()
		defer mu.Unlock()
		if done[m.ID] = true; len(done) == messages {
			cancel()
		}
		return nil
	})
	if err != nil || len(done) != messages {
		t.Errorf("%d of %d messages came three times: %v", len(done), messages, err)
	}
}
