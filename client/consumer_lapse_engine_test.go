//go:build linux

package client_test

import (
	"errors"
	"testing"
	"time"

	"penstock/client"
)

// A message that came too late for its Requeue comes again, as the error says, also if a FinishThrough of one behind it
// is sent in the moment in which the node has not noticed yet that its time is over.
func TestRealFinishThroughBehindWhatIsOver(t *testing.T) {
	const timeout = 200 * time.Millisecond
	c := dialNodes(t, startNodes(t, 1))
	publish(t, c, 0, 0) // makes the topic
	k := consumer(t, c, client.ConsumerOptions{Timeout: timeout})
	next := func(i int) client.Delivery {
		t.Helper()
		publish(t, c, i, i+1)
		d, err := k.Next(within(t))
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
	for i, tried := 0, 0; tried < 10 && i < 100; i += 2 {
		first := next(i)
		over := time.Now().Add(timeout)
		time.Sleep(timeout / 2) // so that the second one's time is not over when the first one's is
		second := next(i + 1)
		if second.ID == first.ID { // this machine stood still, so the first one came again before there was a second one
			if err := second.Finish(); err != nil {
				t.Log(err)
			}
			continue
		}
		time.Sleep(time.Until(over))
		if err := first.Requeue(0); !errors.Is(err, client.ErrNotInFlight) {
			t.Fatalf("its time is over: %v", err)
		}
		if second.FinishThrough() == nil {
			tried++
		}
		if err := k.Sync(within(t)); errors.Is(err, client.ErrNotInFlight) {
			t.Log(err) // the second one's time is over, too
		} else if err != nil {
			t.Fatal(err)
		}
		for again := false; !again; {
			d, err := k.Next(within(t))
			if err != nil {
				t.Fatalf("message %v was neither finished nor requeued, and does not come again: %v", first.ID, err)
			}
			again = d.ID == first.ID
			if err := d.Finish(); err != nil {
				t.Log(err)
			}
		}
	}
}
