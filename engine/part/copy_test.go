package part

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"penstock/engine/core"
	"penstock/engine/dir"
	"penstock/engine/meta"
	"penstock/replicate"
	"penstock/segment"
	"penstock/segment/aio/faultaio"
)

// That a copy is contested is an ERROR, which says what to do and does not call the copy damaged. The store hears of it
// as contested.
func TestContestedCopyIsLogged(t *testing.T) {
	r := bareReplica()
	var log bytes.Buffer
	r.node.Log = slog.New(slog.NewTextHandler(&log, nil))
	s := &damageStore{came: make(chan bool), answer: make(chan error)}
	r.node.Rows, r.pt.machine = s, new(core.Partition)
	r.run(func() { r.perform(&replicate.Action{Kind: replicate.ActDamaged, Err: replicate.ErrContested}) })
	<-s.came
	s.answer <- nil
	r.node.wg.Wait()
	if text := log.String(); !strings.Contains(text, "level=ERROR") || !strings.Contains(text, "contested") ||
		!strings.Contains(text, "force-leader") || strings.Contains(text, "damaged") {
		t.Errorf("it logs %q", text)
	}
	if r.run(func() { r.damaged = replicate.ErrContested }); r.copyState() != meta.CopyContested {
		t.Errorf("the store would hear state %d", r.copyState())
	}
}

// A copy that is split from its leader is logged once, counted while it lasts, and listed with its node.
func TestSplitCopyIsCounted(t *testing.T) {
	r := bareReplica()
	var log bytes.Buffer
	r.node.Log = slog.New(slog.NewTextHandler(&log, nil))
	r.node.Shortened = dir.NewShortened(faultaio.New(faultaio.Options{}))
	self, other := r.node.member(), replicate.Member{Node: 2, Store: uuid.UUID{2}}
	l := replicate.NewLeader(replicate.Config{}, self, r.node.Self.Boot, replicate.Log{Generation: 1}, &replicate.State{
		Epoch: 1, Version: 1, Leader: 1, Boot: r.node.Self.Boot, MinISR: 1, Replicas: []replicate.NodeID{1, 2},
		ISR: []replicate.Member{self, other},
	}, 0)
	for _, step := range []struct {
		leads, split bool
		count, logs  int
	}{{true, false, 0, 0}, {true, true, 1, 1}, {true, true, 1, 1}, {true, false, 0, 1}, {true, true, 1, 2}, {false, true, 0, 2}} {
		r.run(func() {
			if r.leader = nil; step.leads {
				r.leader = l
				l.Progress()[0].Split = step.split
			}
			r.noteSplit()
		})
		if n := r.node.Counts().Split; n != step.count || len(r.split) != step.count {
			t.Errorf("%+v: %d are counted, %v", step, n, r.split)
		}
		if n := strings.Count(log.String(), "contested"); n != step.logs || strings.Contains(log.String(), "damaged") {
			t.Errorf("%+v: it logs %q", step, log.String())
		}
	}
}

// The time for which a node has shortened copies begins when the list gets one, and ends with the last.
func TestShortenedFor(t *testing.T) {
	r := bareReplica()
	r.node.Shortened = dir.NewShortened(faultaio.New(faultaio.Options{}))
	if d := r.node.ShortenedFor(); d != 0 {
		t.Errorf("without shortened copies: %v", d)
	}
	if err := r.node.Shortened.Add([]segment.Identity{{Partition: 1}}); err != nil {
		t.Fatal(err)
	}
	first := r.node.ShortenedFor()
	time.Sleep(time.Millisecond) // the clock is real: time has to pass
	if second := r.node.ShortenedFor(); second <= first {
		t.Errorf("%v, and later %v", first, second)
	}
	r.node.Shortened.Remove(segment.Identity{Partition: 1})
	if d := r.node.ShortenedFor(); d != 0 || r.node.shortenedAt.Load() != 0 {
		t.Errorf("all are whole again: %v", d)
	}
}
