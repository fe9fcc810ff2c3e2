package node_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"sync/atomic"
	"testing"
	"time"

	"penstock/internal/node"
	"penstock/internal/node/errs"
	"penstock/internal/node/message"
)

// PublishAsync stores headers, the key as a header and in its partition, and the delay, and refuses what PublishMessage
// refuses. Puts that were refused, or used for other messages before, leave nothing behind.
func TestPublishAsyncWithKeyAndHeaders(t *testing.T) {
	e := openOnDisk(t, newDisk())
	topic, err := e.CreateTopic(t.Context(), "t", 8)
	if err != nil {
		t.Fatal(err)
	}
	c := channelOf(t, topic, "c")
	key := []byte("customer 7")
	hs := headers("a", "1", "b", "2")
	for range 3 {
		for _, m := range []node.Outgoing{
			{Body: []byte("x"), Key: key, Headers: headers(message.KeyHeader, "other")},
			{Body: []byte("x"), Headers: headers("", "no name")},
			{Headers: hs, Key: key},
			{Body: []byte("x"), Delay: -1},
		} {
			err := topic.PublishAsync(m, func(node.ID, error) { t.Error("done is called for a refused message") })
			if !errors.Is(err, errs.ErrHeaders) && !errors.Is(err, errs.ErrEmptyMessage) &&
				!errors.Is(err, errs.ErrDeferTooLong) {
				t.Errorf("%+v: %v", m, err)
			}
		}
	}
	type answer struct {
		id  node.ID
		err error
	}
	answers := make(chan answer, 1)
	publish := func(m node.Outgoing) node.ID {
		t.Helper()
		if err := topic.PublishAsync(m, func(id node.ID, err error) { answers <- answer{id, err} }); err != nil {
			t.Fatal(err)
		}
		a := <-answers
		if a.err != nil {
			t.Fatal(a.err)
		}
		return a.id
	}
	want := map[string]string{"keyed": "a=1,b=2,key=customer 7", "header": "key=customer 7", "plain": ""}
	for _, m := range []node.Outgoing{
		{Body: []byte("keyed"), Key: key, Headers: hs},
		{Body: []byte("header"), Headers: headers(message.KeyHeader, string(key))},
	} {
		if id := publish(m); int(id.Partition()) != topic.PartitionFor(key) {
			t.Errorf("%s has the id %v; its key belongs to partition %d", m.Body, id, topic.PartitionFor(key))
		}
	}
	publish(node.Outgoing{Body: []byte("plain")})
	publish(node.Outgoing{Body: []byte("late"), Delay: time.Hour})
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	err = c.Consume(ctx, node.ConsumeOptions{}, func(_ context.Context, m *node.Message) error {
		if hs, ok := want[string(m.Body)]; !ok || headerText(m.Headers) != hs {
			t.Errorf("%s has the headers %s, want %s", m.Body, headerText(m.Headers), hs)
		}
		if delete(want, string(m.Body)); len(want) == 0 {
			cancel()
		}
		return nil
	})
	if err != nil || len(want) != 0 {
		t.Errorf("%v, without %v", err, want)
	}
}

// A message of PublishAsync costs no allocation, with a key and headers as without.
func TestPublishAsyncDoesNotAllocate(t *testing.T) {
	const n, maxPerMessage = 1000, 0.01
	e := openWith(t, node.Options{
		DataPath: fastDir(t), Logger: slog.New(slog.NewTextHandler(io.Discard, nil)), RetentionInterval: time.Hour,
	})
	topic := topicOf(t, e, "t")
	body := bytes.Repeat([]byte("x"), 100)
	var answered atomic.Int64
	all := make(chan struct{}, 1)
	done := func(_ node.ID, err error) {
		if err != nil {
			t.Error(err)
		}
		if answered.Add(1)%n == 0 {
			all <- struct{}{}
		}
	}
	for what, m := range map[string]node.Outgoing{
		"plain": {Body: body},
		"keyed": {Body: body, Key: []byte("customer 7"), Headers: headers("a", "1", "b", "2")},
	} {
		run := func() {
			for range n {
				if err := topic.PublishAsync(m, done); err != nil {
					t.Fatal(err)
				}
			}
			<-all
		}
		for range 20 {
			run() // pools and slices grow to their size
		}
		if per := allocations(maxPerMessage*n, run) / n; per > maxPerMessage {
			t.Errorf("%s: %.4f allocations per message, at most %v", what, per, maxPerMessage)
		}
	}
}
