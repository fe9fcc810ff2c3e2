package nsq

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"penstock/engine"
)

// postWith posts with headers, given as alternating names and values.
func (n *node) postWith(t testing.TB, path, body string, headers ...string) (int, string) {
	t.Helper()
	r, err := http.NewRequest("POST", n.base+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(headers); i += 2 {
		r.Header.Add(headers[i], headers[i+1])
	}
	reply, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer reply.Body.Close()
	text, err := io.ReadAll(reply.Body)
	if err != nil {
		t.Fatal(err)
	}
	return reply.StatusCode, string(text)
}

// /pub and /mpub store headers and a key with each message; NSQ's consumers get the bodies alone.
//
// B61.
func TestHTTPHeaders(t *testing.T) {
	n := startNode(t, engine.Options{DefaultPartitions: 4}, Options{})
	n.post(t, "/topic/create?topic=t", "")
	n.post(t, "/channel/create?topic=t&channel=nsq", "")
	n.post(t, "/channel/create?topic=t&channel=c", "")
	for _, x := range []struct {
		path, body string
		headers    []string
		status     int
		reply      string
	}{
		{"/pub?topic=t&key=order-7", "one", []string{"X-Penstock-Header-Trace-Id", "AbC", "x-penstock-header-colour", "red", "X-Other", "no"}, 200, "OK"},
		{"/mpub?topic=t&key=order-7", "two\nthree\n", []string{"X-Penstock-Header-Many", "1", "X-Penstock-Header-Many", "2"}, 200, "OK"},
		{"/mpub?topic=t", "four\n", []string{"X-Penstock-Header-Key", "order-7"}, 200, "OK"},
		{"/pub?topic=t", "five", nil, 200, "OK"},
		{"/pub?topic=t", "bad", []string{"X-Penstock-Header-Penstock-Channel", "c"}, 400, "the engine's own"},
		{"/pub?topic=t&key=x", "bad", []string{"X-Penstock-Header-Key", "x"}, 400, "headers are refused"},
		{"/pub?topic=t", "bad", []string{"X-Penstock-Header-Big", strings.Repeat("x", 33<<10)}, 400, "MaxHeaderBytes"},
	} {
		if status, text := n.postWith(t, x.path, x.body, x.headers...); status != x.status || !strings.Contains(text, x.reply) {
			t.Errorf("%s %q %.60q: %d %s, want %d %s", x.path, x.body, x.headers, status, text, x.status, x.reply)
		}
	}
	topic, _ := n.e.LookupTopic("t")
	ch, ok := topic.LookupChannel("c")
	if !ok {
		t.Fatal("no channel")
	}
	keyed := fmt.Sprint(topic.PartitionFor([]byte("order-7")))
	want := map[string]string{
		"one": keyed + " colour=red trace-id=AbC key=order-7", "two": keyed + " many=1 many=2 key=order-7",
		"three": keyed + " many=1 many=2 key=order-7", "four": keyed + " key=order-7", "five": "",
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	left := len(want)
	err := ch.Consume(ctx, engine.ConsumeOptions{}, func(_ context.Context, m *engine.Message) error {
		got := ""
		for _, h := range m.Headers {
			got += fmt.Sprintf(" %s=%s", h.Key, h.Value)
		}
		if got != "" {
			got = fmt.Sprint(m.ID.Partition()) + got
		}
		if w, ok := want[string(m.Body)]; !ok || got != w {
			t.Errorf("%q has %q, want %q", m.Body, got, w)
		}
		if left--; left == 0 {
			cancel()
		}
		return nil
	})
	if err != nil || left != 0 {
		t.Errorf("%d messages did not come: %v", left, err)
	}

	c := n.dial(t)
	c.sub("t", "nsq")
	c.send("RDY 10\n")
	for range want {
		m := c.message()
		if _, ok := want[m.body]; !ok {
			t.Errorf("an NSQ consumer got %q", m.body)
		}
	}
}
