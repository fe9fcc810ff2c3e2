package api

import (
	"bytes"
	"fmt"
	"log/slog"
	"net/url"
	"testing"
	"time"

	"penstock/internal/node"
	"penstock/internal/node/channel"
)

func topicForSearch(t *testing.T, partitions int) *node.Topic {
	t.Helper()
	e, err := node.Open(t.Context(), node.Options{
		DataPath: t.TempDir(), BufferBytes: 32 << 20, MaxMessageBytes: 5 << 20, Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = e.Close() })
	topic, err := e.CreateTopic(t.Context(), "t", partitions)
	if err != nil {
		t.Fatal(err)
	}
	return topic
}

// searchAll asks again and again, as a client does that wants all. It returns the bodies and the number of requests.
func searchAll(t *testing.T, topic *node.Topic, q url.Values) (found []string, scanned, requests int) {
	t.Helper()
	for next := ""; requests == 0 || next != ""; requests++ {
		q.Set("next", next)
		s, err := newSearch(topic, q)
		if err != nil {
			t.Fatal(err)
		}
		more, err := s.run(t.Context(), topic)
		if err != nil {
			t.Fatal(err)
		}
		for i := range s.found {
			if s.found[i].Truncated && len(s.found[i].Body) < channel.MaxPeekBytes {
				t.Errorf("message %s was cut to %d bytes", s.found[i].ID, len(s.found[i].Body))
			}
			found = append(found, string(s.found[i].Body))
		}
		if scanned += s.seen; s.seen > maxSearchCount || s.kept > 2*channel.MaxPeekBytes {
			t.Errorf("one request looked at %d messages, and kept %d bytes", s.seen, s.kept)
		}
		if next = ""; more {
			next = s.at.String()
		}
	}
	return found, scanned, requests
}

// One request looks at no more than its bound, and the next one goes on behind it.
func TestSearchGoesOn(t *testing.T) {
	topic := topicForSearch(t, 2)
	const count = maxSearchCount + 500
	for at := range 2 {
		for i := 0; i < count/2; i += 250 {
			ms := make([]node.Outgoing, 250)
			for j := range ms {
				ms[j] = node.Outgoing{Body: fmt.Appendf(nil, "message %d of %d", i+j, at), Key: []byte{byte('a' + at)}}
			}
			if _, err := topic.PublishMessages(t.Context(), ms); err != nil {
				t.Fatal(err)
			}
		}
	}
	found, scanned, requests := searchAll(t, topic, url.Values{"contains": {"message 77 of"}, "count": {"1000"}})
	if len(found) != 2 || scanned != count || requests < 2 {
		t.Errorf("%q were found among %d with %d requests", found, scanned, requests)
	}
}

// Large bodies are looked at as a whole, also those that a peek cuts because others come first.
func TestSearchLargeBodies(t *testing.T) {
	topic := topicForSearch(t, 1)
	const count, size = 10, 1 << 20
	for i := range count {
		body := append(bytes.Repeat([]byte("x"), size), fmt.Sprintf("end %d", i)...)
		if _, err := topic.PublishMessage(t.Context(), node.Outgoing{Body: body}); err != nil {
			t.Fatal(err)
		}
	}
	found, scanned, requests := searchAll(t, topic, url.Values{"contains": {"end "}, "count": {"1000"}})
	if len(found) != count || scanned != count || requests < 3 {
		t.Errorf("%d bodies were found among %d with %d requests", len(found), scanned, requests)
	}
	for i, body := range found {
		if want := fmt.Sprintf("end %d", i); len(body) < size || body[size:] != want {
			t.Errorf("body %d of %d bytes does not end with %q", i, len(body), want)
		}
	}
}

// What is older than the time asked for is not even read, if whole segments and batches are.
func TestSearchSince(t *testing.T) {
	topic := topicForSearch(t, 1)
	for i := range 20 {
		if _, err := topic.PublishMessage(t.Context(), node.Outgoing{Body: fmt.Appendf(nil, "old %d", i)}); err != nil {
			t.Fatal(err)
		}
	}
	time.Sleep(2 * time.Millisecond)
	since := time.Now()
	for i := range 5 {
		if _, err := topic.PublishMessage(t.Context(), node.Outgoing{Body: fmt.Appendf(nil, "new %d", i)}); err != nil {
			t.Fatal(err)
		}
	}
	found, scanned, _ := searchAll(t, topic, url.Values{"since": {since.Format(time.RFC3339Nano)}, "count": {"100"}})
	if len(found) != 5 || scanned != 5 {
		t.Errorf("%q were found among %d", found, scanned)
	}
}
