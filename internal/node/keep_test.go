package node_test

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"penstock/internal/meta"
	"penstock/internal/node"
)

// oldest returns the id of the oldest message that partition 0 has.
func oldest(t testing.TB, topic *node.Topic) node.ID {
	t.Helper()
	r, err := topic.OpenReader(0, node.Start{Kind: node.StartAtID})
	var gone *node.TrimmedError
	switch {
	case errors.As(err, &gone):
		return gone.First
	case err != nil:
		t.Fatal(err)
	}
	r.Close()
	return 0
}

// What is confirmed stays for as long as the settings keep it, also after a restart, and goes when they do not any
// more. Readers and a channel that seeks back find all of it.
func TestKeepConfirmed(t *testing.T) {
	t.Parallel()
	const body, batch = 1500, 100
	for name, c := range map[string]struct {
		keep, less func(*meta.TopicSettings) // less keeps less, so that the segments go
		kept       int                       // messages that stay at least
		all        bool                      // all messages stay
	}{
		"bytes": {
			keep: func(s *meta.TopicSettings) { s.KeepBytes = 1 << 20 },
			less: func(s *meta.TopicSettings) { s.KeepBytes = 100 << 10 }, kept: 1 << 20 / (body + 150),
		},
		"age": {
			keep: func(s *meta.TopicSettings) { s.KeepAgeMs = time.Hour.Milliseconds() },
			less: func(s *meta.TopicSettings) { s.KeepAgeMs = 1 }, all: true,
		},
		"bytes of any age": {
			keep: func(s *meta.TopicSettings) { s.KeepAgeMs, s.KeepBytes = -1, 1<<20 },
			less: func(s *meta.TopicSettings) { s.KeepAgeMs, s.KeepBytes = 1, 1<<20 }, kept: 1 << 20 / (body + 150),
		},
		"for ever": {
			keep: func(s *meta.TopicSettings) { s.KeepBytes = -1 },
			less: func(s *meta.TopicSettings) { s.KeepBytes = 0 }, all: true,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			disk := newDisk()
			e := openOnDisk(t, disk)
			topic := topicOf(t, e, "t")
			ch := channelOf(t, topic, "c")
			other := topicOf(t, e, "other") // keeps nothing, and is filled alike
			otherCh := channelOf(t, other, "c")
			configure(t, topic, c.keep)
			var all []string
			fill := func() {
				t.Helper()
				all = append(all, publishInBatches(t, topic, fmt.Sprintf("m%d-", len(all)), batch, body)...)
				publishInBatches(t, other, "o", batch, body)
				for _, ch := range []*node.Channel{ch, otherCh} {
					if got := readAll(t, ch); len(got) != batch {
						t.Fatalf("a channel got %d", len(got))
					}
				}
			}
			for len(all) < 3000 || oldest(t, other) < 2000 {
				fill()
			}
			if !c.all {
				eventually(t, "what lies behind the bound goes", func() bool { return oldest(t, topic) > 1000 })
			}
			for range 2 {
				first := int(oldest(t, topic))
				if left := len(all) - first; left < c.kept || c.all && first != 0 {
					t.Fatalf("%d of %d messages are left, at least %d should be", left, len(all), c.kept)
				}
				from := len(all) - max(c.kept-batch, 0)
				if c.all {
					from = 0
				}
				r := openReader(t, topic, 0, node.Start{Kind: node.StartAtID, ID: node.ID(from)})
				if got := replay(t, r, node.ID(from), len(all)-from, 1<<20); !slices.Equal(got, all[from:]) {
					t.Fatal("what is kept differs")
				}
				if err := ch.Seek(ctxBg, node.SeekTo{Kind: node.SeekID, ID: node.ID(from)}); err != nil {
					t.Fatal(err)
				}
				if got := readAll(t, ch); len(got) != len(all)-from {
					t.Fatalf("after a seek back the channel got %d of %d", len(got), len(all)-from)
				}
				if err := e.Close(); err != nil { // and the same after a restart
					t.Fatal(err)
				}
				e = openOnDisk(t, disk.Kill(1))
				topic, _ = e.Catalog().LookupTopic("t")
				ch, _ = topic.LookupChannel("c")
				other, _ = e.Catalog().LookupTopic("other")
				otherCh, _ = other.LookupChannel("c")
			}
			configure(t, topic, c.less)
			before := oldest(t, topic)
			eventually(t, "it goes when less is kept", func() bool {
				fill()
				return oldest(t, topic) > before+500 && len(all)-int(oldest(t, topic)) < 1000
			})
		})
	}
}

// A topic keeps confirmed messages only once no older version can come that would remove them.
func TestKeepNeedsItsLevel(t *testing.T) {
	e := openOnDisk(t, newDisk(), func(o *node.Options) { o.MaxLevel = 2 })
	topic := topicOf(t, e, "t")
	for _, keep := range []meta.TopicSettings{{KeepAgeMs: 1000}, {KeepBytes: -1}} {
		if s, err := topic.ConfigureAs(t.Context(), "", keep); !errors.Is(err, meta.ErrSettings) || s.Version != 0 {
			t.Errorf("%+v: %+v, %v", keep, s, err)
		}
	}
	configure(t, topic, func(s *meta.TopicSettings) { s.QuotaCount = 7 })
}
