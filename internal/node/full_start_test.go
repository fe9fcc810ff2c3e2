package node

import (
	"testing"
	"time"

	"github.com/google/uuid"

	"penstock/internal/node/platform"
	"penstock/replicate/peer"
	"penstock/tests/support/faultaio"
	"penstock/tests/support/stepped"
)

// stillHost is a stepped.World in which no time passes, so a step that happens in it has waited for no clock.
type stillHost struct{}

func (stillHost) Now() time.Time         { return time.Unix(1_700_000_000, 0) }
func (stillHost) Instant() time.Duration { return 0 }
func (stillHost) NewUUID() uuid.UUID     { return uuid.UUID{7} }
func (stillHost) Linger() time.Duration  { return 0 }
func (stillHost) Hung() bool             { return false }
func (stillHost) Slow() bool             { return false }
func (stillHost) Choose(int) int         { return 0 }

func (stillHost) Listen(peer.Node, uuid.UUID, peer.Handler) platform.Transport {
	panic("a single node")
}

// A process that finds its commit log full makes room at once, even if nothing in the log waits for segments. Until the
// log begins a new file, publishers wait, and no mark makes the last group of the earlier process count as durable.
func TestFullLogBeginsAFileAtTheStart(t *testing.T) {
	disk := faultaio.New(faultaio.Options{})
	e := openSmall(t, disk)
	release := e.store.Flusher().PinFiles()
	topic, err := e.Topic(t.Context(), "t")
	limit := uint64(e.store.CommitLog().MaxLiveBytes() / e.store.CommitLog().FileBytes())
	for err == nil && e.store.CommitLog().Current()-e.store.CommitLog().Oldest()+1 < limit {
		_, err = topic.PublishMessage(t.Context(), Outgoing{Body: make([]byte, 10<<10)})
	}
	if err == nil {
		err = e.DeleteTopic(t.Context(), "t")
	}
	if err != nil {
		t.Fatal(err)
	}
	o := e.opts
	o.Disk = disk.Kill(1)
	release()
	m := stepped.New(stillHost{}, 0)
	inside := NewInspector(m)
	var next *Engine
	m.Go(func() { next, err = inside.Open(t.Context(), o) })
	if _, stepped := m.Step(); stepped != nil || err != nil || next == nil {
		t.Fatal(stepped, err)
	}
	if s := next.CommitStats(); s.Files == 0 || s.Full {
		t.Errorf("%d files were begun, full %v", s.Files, s.Full)
	}
	if err := inside.Kill(); err != nil {
		t.Error(err)
	}
}
