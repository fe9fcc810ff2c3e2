package node_test

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"

	"penstock/internal/node"
	"penstock/internal/node/errs"
	"penstock/internal/node/fold"
	"penstock/internal/node/topic"
)

// makeDead lets a channel give messages up, and waits until its dead-letter topic has count.
func makeDead(t *testing.T, ch *node.Channel, into string, count int, bodies ...string) {
	t.Helper()
	ids := publish(t, ch.Topic(), bodies...)
	s := subscribe(t, ch, len(ids))
	defer s.Close()
	failMessages(t, s, ids...)
	deadLetters(t, ch.Topic(), into, count)
}

// Of several redrives of a channel one works, and no dead letter is sent back twice.
//
// B64.
func TestRedriveOneAtATime(t *testing.T) {
	e := openWith(t, inDir(t.TempDir()))
	ch := channelOf(t, topicOf(t, e, "t"), "c")
	configureChannel(t, ch, func(s *fold.ChannelSettings) { s.MaxAttempts = 1 })
	const n = 500
	makeDead(t, ch, "t.DLQ", n, numbered("m", n, 0)...)
	var wg sync.WaitGroup
	var moved [4]int
	for i := range moved {
		wg.Go(func() {
			for moved[i] < n {
				got, err := ch.Redrive(ctxBg, 100)
				moved[i] += got
				switch {
				case errors.Is(err, topic.ErrRedriving):
				case err != nil:
					t.Error(err)
					return
				case got == 0:
					return
				}
			}
		})
	}
	wg.Wait()
	total := 0
	for _, got := range moved {
		total += got
	}
	if got := readAll(t, ch); total != n || len(got) != n {
		t.Errorf("%d dead letters: %d were sent back (%v), %d came", n, total, moved, len(got))
	}
}

// A redrive finds dead letters in a topic that the settings named before, and goes on past those that cannot be
// published. A channel that skips gets none back.
//
// B64.
func TestRedriveFindsAll(t *testing.T) {
	dir := t.TempDir()
	o := inDir(dir)
	e := openWith(t, o)
	ch := channelOf(t, topicOf(t, e, "t"), "c")
	configureChannel(t, ch, func(s *fold.ChannelSettings) { s.MaxAttempts, s.DeadLetter = 1, "old" })
	makeDead(t, ch, "old", 3, strings.Repeat("x", 2000), "a", "b")
	configureChannel(t, ch, func(s *fold.ChannelSettings) { s.DeadLetter = "new" })
	makeDead(t, ch, "new", 1, "c")
	if err := ch.Skip(ctxBg, true); err != nil {
		t.Fatal(err)
	}
	if n, err := ch.Redrive(ctxBg, 10); n != 0 || !errors.Is(err, topic.ErrRedriveSkips) {
		t.Fatalf("into a channel that skips: %d, %v", n, err)
	}
	if err := ch.Skip(ctxBg, false); err != nil {
		t.Fatal(err)
	}
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
	o.MaxMessageBytes = 1000
	e = openWith(t, o)
	topic, _ := e.Catalog().LookupTopic("t")
	ch, _ = topic.LookupChannel("c")
	n, err := ch.Redrive(ctxBg, 10)
	if n != 3 || !errors.Is(err, errs.ErrMessageTooBig) || !strings.Contains(err.Error(), "sent back: 1;") {
		t.Errorf("with one that cannot be published: %d, %v", n, err)
	}
	if got := fmt.Sprint(len(values(readAll(t, ch)))); got != "3" {
		t.Errorf("%s came back", got)
	}
}

// A redrive of single dead letters sends back these and no others, once.
func TestRedriveOnly(t *testing.T) {
	e := openWith(t, inDir(t.TempDir()))
	ch := channelOf(t, topicOf(t, e, "t"), "c")
	configureChannel(t, ch, func(s *fold.ChannelSettings) { s.MaxAttempts = 1 })
	publish(t, ch.Topic(), "before") // so that the ids of letters and of their messages differ
	if got := readAll(t, ch); len(got) != 1 {
		t.Fatal(got)
	}
	ids := publish(t, ch.Topic(), "a", "b", "c")
	s := subscribe(t, ch, len(ids))
	failMessages(t, s, ids...)
	s.Close()
	deadLetters(t, ch.Topic(), "t.DLQ", len(ids))
	for _, want := range []int{1, 0} {
		if n, err := ch.RedriveOnly(ctxBg, ids[1]); err != nil || n != want {
			t.Fatalf("%d were sent back, %v; want %d", n, err, want)
		}
	}
	if got := slices.Collect(maps.Values(readAll(t, ch))); len(got) != 1 || got[0] != "b" {
		t.Errorf("%q came", got)
	}
	if n, err := ch.Redrive(ctxBg, 100); err != nil || n != 2 {
		t.Errorf("%d are left, %v", n, err)
	}
}

// A redrive by headers sends back the dead letters that a filter wants, up to the number, and no others.
func TestRedriveWanted(t *testing.T) {
	e := openWith(t, inDir(t.TempDir()))
	ch := channelOf(t, topicOf(t, e, "t"), "c")
	configureChannel(t, ch, func(s *fold.ChannelSettings) { s.MaxAttempts = 1 })
	var ids []node.ID
	for _, region := range []string{"eu", "us", "eu", "asia"} {
		id, err := ch.Topic().PublishMessage(ctxBg, node.Outgoing{
			Body: []byte("in " + region), Headers: []node.Header{{Key: []byte("region"), Value: []byte(region)}},
		})
		if err != nil {
			t.Fatal(err)
		}
		ids = append(ids, id)
	}
	s := subscribe(t, ch, len(ids))
	failMessages(t, s, ids...)
	s.Close()
	deadLetters(t, ch.Topic(), "t.DLQ", len(ids))
	eu := fold.Filter{Rules: []fold.Rule{{Header: "region", Pattern: "eu"}}}
	for _, x := range []struct{ most, want int }{{1, 1}, {10, 1}, {10, 0}} {
		if n, err := ch.RedriveWanted(ctxBg, x.most, eu); err != nil || n != x.want {
			t.Fatalf("of at most %d were sent back %d, %v; want %d", x.most, n, err, x.want)
		}
	}
	got := slices.Collect(maps.Values(readAll(t, ch)))
	if fmt.Sprint(got) != "[in eu in eu]" {
		t.Errorf("%q came", got)
	}
	if _, err := ch.RedriveWanted(ctxBg, 1, fold.Filter{Rules: []fold.Rule{{}}}); !errors.Is(err, errs.ErrSettings) {
		t.Errorf("a rule without a header: %v", err)
	}
	if n, err := ch.Redrive(ctxBg, 100); err != nil || n != 2 {
		t.Errorf("%d are left, %v", n, err)
	}
}
