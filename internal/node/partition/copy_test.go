package partition

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
	"time"

	"penstock/internal/meta"
	"penstock/internal/node/datadir"
	"penstock/internal/node/machine"
	"penstock/replicate"
	"penstock/segment"
	"penstock/tests/support/faultaio"
)

// That a copy is contested is an ERROR, which says what to do and does not call the copy damaged. The store hears of it
// as contested.
func TestContestedCopyIsLogged(t *testing.T) {
	r := bareReplica()
	var log bytes.Buffer
	r.node.Log = slog.New(slog.NewTextHandler(&log, nil))
	s := &damageStore{came: make(chan bool), answer: make(chan error)}
	r.node.Rows, r.pt.machine = s, new(machine.Partition)
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

// The time for which a node has shortened copies begins when the list gets one, and ends with the last.
func TestShortenedFor(t *testing.T) {
	r := bareReplica()
	r.node.Shortened = datadir.NewShortened(faultaio.New(faultaio.Options{}))
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
