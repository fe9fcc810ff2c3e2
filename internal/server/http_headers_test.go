package server

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"

	"penstock/internal/node"
	"penstock/tests/support/nsqtest"
)

// postWith sends a POST with headers, given as alternating names and values.
func (n *testNode) postWith(t testing.TB, path, body string, headers ...string) (int, string) {
	t.Helper()
	reply, text := request(t, "POST", n.base+path, body, headers...)
	return reply.StatusCode, text
}

// /pub and /mpub store headers and a key with each message, at any node; NSQ's consumers get the bodies alone.
//
// B61.
func TestHTTPHeaders(t *testing.T) {
	onOneAndThree(t, func(t *testing.T, nodes []*testNode) {
		makeChannel(t, nodes, "t", "c", 4)
		makeChannel(t, nodes, "t", "nsq", 4)
		topic, _ := nodes[0].e.Catalog().LookupTopic("t")
		keyed := fmt.Sprint(topic.PartitionFor([]byte("order-7")))
		want := map[string]string{}
		for i, n := range nodes {
			for _, x := range []struct {
				path, body string
				headers    []string
				status     int
				reply      string
			}{
				{
					"/pub?topic=t&key=order-7", "one",
					[]string{"X-Penstock-Header-Trace-Id", "AbC", "x-penstock-header-colour", "red", "X-Other", "no"},
					200, "OK",
				},
				{
					"/mpub?topic=t&key=order-7", "two\nthree\n",
					[]string{"X-Penstock-Header-Many", "1", "X-Penstock-Header-Many", "2"},
					200, "OK",
				},
				{"/mpub?topic=t", "four\n", []string{"X-Penstock-Header-Key", "order-7"}, 200, "OK"},
				{"/pub?topic=t", "five", nil, 200, "OK"},
				{"/pub?topic=t", "bad", []string{"X-Penstock-Header-Penstock-Channel", "c"}, 400, "the engine's own"},
				{"/pub?topic=t&key=x", "bad", []string{"X-Penstock-Header-Key", "x"}, 400, "headers are refused"},
				{"/pub?topic=t", "bad", []string{"X-Penstock-Header-Big", strings.Repeat("x", 33<<10)}, 400, "max-header-bytes"},
			} {
				body := strings.ReplaceAll(x.body, "\n", fmt.Sprint(i, "\n"))
				if body == x.body {
					body += fmt.Sprint(i)
				}
				status, text := n.postWith(t, x.path, body, x.headers...)
				if status != x.status || !strings.Contains(text, x.reply) {
					t.Errorf("%s %q %.60q: %d %s, want %d %s", x.path, body, x.headers, status, text, x.status, x.reply)
				}
			}
			for body, w := range map[string]string{
				"one": keyed + " colour=red trace-id=AbC key=order-7", "two": keyed + " many=1 many=2 key=order-7",
				"three": keyed + " many=1 many=2 key=order-7", "four": keyed + " key=order-7", "five": "",
			} {
				want[body+fmt.Sprint(i)] = w
			}
		}
		got := consumeHeaders(t, nodes, "c", len(want))
		for body, w := range want {
			if got[body] != w {
				t.Errorf("%q has %q, want %q", body, got[body], w)
			}
		}
		bodies := readBy(t, nodes, "nsq", "FIN %s\n")
		for range want {
			body := <-bodies
			if _, ok := want[body]; !ok {
				t.Errorf("an NSQ consumer got %q", body)
			}
			delete(want, body)
		}
	})
}

// consumeHeaders consumes a channel of topic t through the engines of all nodes. It returns for each body the partition
// and the headers, if any, with which it arrived.
func consumeHeaders(t *testing.T, nodes []*testNode, channel string, count int) map[string]string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), nsqtest.Patience)
	defer cancel()
	var mu sync.Mutex
	var all sync.WaitGroup
	out := map[string]string{}
	for _, n := range nodes {
		topic, _ := n.e.Catalog().LookupTopic("t")
		ch, ok := topic.LookupChannel(channel)
		if !ok {
			continue // this node leads no partition of the topic
		}
		all.Go(func() {
			err := ch.Consume(ctx, node.ConsumeOptions{}, func(_ context.Context, m *node.Message) error {
				text := ""
				for _, h := range m.Headers {
					text += fmt.Sprintf(" %s=%s", h.Key, h.Value)
				}
				if text != "" {
					text = fmt.Sprint(m.ID.Partition()) + text
				}
				mu.Lock()
				defer mu.Unlock()
				if out[string(m.Body)] = text; len(out) == count {
					cancel()
				}
				return nil
			})
			if err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if len(out) != count {
		t.Errorf("%d of %d messages came", len(out), count)
	}
	return out
}
