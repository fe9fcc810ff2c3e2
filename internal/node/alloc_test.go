package node_test

import (
	"io"
	"log/slog"
	"os"
	"slices"
	"testing"
	"time"

	"penstock/internal/node"
)

// fastDir returns a directory in memory if there is one: the test counts allocations, not the time of the disk.
func fastDir(t *testing.T) string {
	t.Helper()
	if dir, err := os.MkdirTemp("/dev/shm", "penstock"); err == nil {
		t.Cleanup(func() { os.RemoveAll(dir) })
		return dir
	}
	return t.TempDir()
}

// In the steady state a message costs no allocation on its way from Submit to its answer, nor on its way from the log
// to a consumer and its confirmation to the log, with headers as without. The average may hold what happens rarely (a
// segment, a file of the commit log), but not one allocation per hundred messages.
func TestHotPathsDoNotAllocate(t *testing.T) {
	const puts, perPut, maxPerMessage = 100, 10, 0.01
	e := openWith(t, node.Options{
		DataPath: fastDir(t), Logger: slog.New(slog.NewTextHandler(io.Discard, nil)), RetentionInterval: time.Hour,
	})
	topic := topicOf(t, e, "t")
	bodies := make([][]byte, perPut)
	for i := range bodies {
		bodies[i] = make([]byte, 100)
	}
	done := make(chan error, puts)
	all := make([]node.Put, puts)
	for i := range all {
		all[i].Messages = bodies
		all[i].Done = func(p *node.Put) { done <- p.Err }
	}
	appendRun := func() {
		for i := range all {
			if err := topic.Submit(&all[i]); err != nil {
				t.Fatal(err)
			}
		}
		for range all {
			if err := <-done; err != nil {
				t.Fatal(err)
			}
		}
	}
	check := func(what string, run func()) {
		t.Helper()
		for range 20 {
			run() // pools and slices grow to their size
		}
		perMessage := allocations(maxPerMessage*puts*perPut, run) / (puts * perPut)
		t.Logf("%s: %.4f allocations per message", what, perMessage)
		if perMessage > maxPerMessage {
			t.Errorf("%s: %.4f allocations per message, at most %v", what, perMessage, maxPerMessage)
		}
	}
	check("append", appendRun)
	giveHeaders(all, headers("header-000", "000000000001", "header-001", "000000000002", "header-002", "000000000003"))
	check("append with headers", appendRun)
	giveHeaders(all, nil)

	s := &countSink{ids: make([]node.ID, 0, puts*perPut), full: make(chan struct{}, 1)}
	ch := channelOf(t, topicOf(t, e, "u"), "c")
	topic = ch.Topic()
	k, err := ch.Attach(node.ConsumerOptions{}, s)
	if err != nil {
		t.Fatal(err)
	}
	if err := k.Ready(puts * perPut); err != nil {
		t.Fatal(err)
	}
	k.Pump()
	consume := func() {
		appendRun()
		<-s.full
		for _, id := range s.ids {
			if err := k.Finish(id); err != nil {
				t.Fatal(err)
			}
		}
		s.ids = s.ids[:0]
		k.Pump()
	}
	check("append, deliver and confirm", consume)
	giveHeaders(all, headers("header-000", "000000000001", "header-001", "000000000002", "header-002", "000000000003"))
	check("append, deliver and confirm with headers", consume)
}

// giveHeaders gives every message of the puts these headers; nil: none.
func giveHeaders(puts []node.Put, headers []node.Header) {
	for i := range puts {
		if puts[i].Headers = nil; headers != nil {
			puts[i].Headers = slices.Repeat([][]node.Header{headers}, len(puts[i].Messages))
		}
	}
}

// countSink says when all messages of a run have come. From then on only the test uses ids, until they are finished.
type countSink struct {
	ids  []node.ID
	full chan struct{}
}

func (s *countSink) Deliver(d *node.Delivery) bool {
	s.ids = append(s.ids, d.ID)
	if len(s.ids) == cap(s.ids) {
		s.full <- struct{}{}
	}
	return true
}

func (s *countSink) Flush()       {}
func (s *countSink) Closed(error) {}
