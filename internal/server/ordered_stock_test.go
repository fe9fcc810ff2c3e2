package server

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	gonsq "github.com/nsqio/go-nsq"
)

// B57. Two stock consumers, one of them at a node that leads nothing, have room for many messages and four handlers
// each. An ordered channel still delivers one message at a time, in order, whatever they requeue. Only a channel with
// declared order requires SUB_ORDERED of its consumers (B58).
func TestGoNSQOrdered(t *testing.T) {
	t.Parallel()
	onOneAndThree(t, func(t *testing.T, nodes []*testNode) {
		q := makeChannel(t, nodes, "t", "billing", 1)
		nodes[0].ask(t, "POST", "/channel/settings"+q, `{"version":0,"order":"partition"}`, new(any))
		const count = 300
		for i := range count {
			nodes[i%len(nodes)].post(t, "/pub?topic=t", fmt.Sprint(i))
		}
		var mu sync.Mutex
		var finished []string
		busy, most := 0, 0
		done := make(chan struct{})
		handle := func(m *gonsq.Message) error {
			mu.Lock()
			busy++
			most = max(most, busy)
			mu.Unlock()
			time.Sleep(100 * time.Microsecond) // a second message would arrive now
			mu.Lock()
			defer mu.Unlock()
			busy--
			if m.Attempts == 1 && strings.HasSuffix(string(m.Body), "3") {
				m.RequeueWithoutBackoff(time.Millisecond)
				return nil
			}
			if finished = append(finished, string(m.Body)); len(finished) == count {
				close(done)
			}
			return nil
		}
		fixed(t, nodes[0], "t", 20, handle)
		fixed(t, nodes[len(nodes)-1], "t", 20, handle)
		select {
		case <-done:
		case <-time.After(30 * time.Second):
			t.Fatalf("%d of %d messages were finished in 30 s", len(finished), count)
		}
		mu.Lock()
		defer mu.Unlock()
		var want []string
		for i := range count {
			want = append(want, fmt.Sprint(i))
		}
		if !slices.Equal(finished, want) {
			t.Errorf("finished in the order %v", finished)
		}
		if most != 1 {
			t.Errorf("%d messages were with handlers at once", most)
		}
	})
}
