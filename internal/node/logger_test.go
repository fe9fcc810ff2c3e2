package node_test

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"sync/atomic"
	"testing"
	"time"

	"penstock/internal/node"
	"penstock/internal/node/errs"
	"penstock/tests/support/faultaio"
)

// publishingHandler is the logger of a program that publishes its warnings.
type publishingHandler struct {
	slog.Handler
	to    *atomic.Pointer[node.Topic]
	ended *atomic.Int64 // publishes that failed
}

func (h publishingHandler) Handle(ctx context.Context, r slog.Record) error {
	if t := h.to.Load(); t != nil && r.Level >= slog.LevelWarn {
		if _, err := t.PublishMessage(ctx, node.Outgoing{Body: []byte(r.Message)}); err != nil {
			h.ended.Add(1)
		}
	}
	return nil
}

// A logger that publishes into the engine keeps nobody from finding that the disk hangs, and its own wait ends.
func TestLoggerThatPublishes(t *testing.T) {
	d := newDisk()
	h := publishingHandler{slog.NewTextHandler(io.Discard, nil), new(atomic.Pointer[node.Topic]), new(atomic.Int64)}
	e := openOnDisk(t, d, shortPatience, func(o *node.Options) {
		o.Logger, o.PublishTimeout = slog.New(h), time.Second
	})
	topic := topicOf(t, e, "log")
	publish(t, topic, "before")
	h.to.Store(topic)
	d.Inject(faultaio.Rule{Kind: faultaio.KindAny, Hold: true, Count: -1})
	done := make(chan error, 1)
	go func() { // it writes itself, so it comes back with the disk
		_, err := topic.PublishMessage(ctxBg, node.Outgoing{Body: []byte("hangs")})
		done <- err
	}()
	defer func() {
		d.ClearRules()
		d.ReleaseHeld()
		<-done
	}()
	eventually(t, "the disk is found to hang", func() bool { return errors.Is(e.Health(), errs.ErrDiskHung) })
	eventually(t, "the logger's publish ends", func() bool { return h.ended.Load() > 0 })
}
