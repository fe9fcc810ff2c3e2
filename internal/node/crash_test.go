package node_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"penstock/internal/node"
	"penstock/internal/node/errs"
	"penstock/segment/aio"
	"penstock/tests/support/faultaio"
)

// smallOptions returns options so small that files rotate, checkpoints are written, tails are flushed and segments are
// trimmed hundreds of times in a short run.
func smallOptions(d aio.Disk) node.Options {
	return node.Options{
		Disk: d, Logger: slog.New(slog.NewTextHandler(io.Discard, nil)),
		BufferBytes: 4 << 20, CommitFileBytes: 256 << 10, CommitLiveBytes: 1 << 20,
		MinSegmentBytes: 16 << 10, MaxSegmentBytes: 64 << 10, RetentionInterval: 20 * time.Millisecond,
		MaxMessageBytes: 16 << 10, MaxBatchBytes: 64 << 10, ConfirmInterval: time.Millisecond,
		PublishTimeout: 5 * time.Second,
	}
}

// history records what clients saw in one run, over all lives of the engine. mu guards the maps.
type history struct {
	mu      sync.Mutex
	tried   map[string]bool    // topic/body of every publish that was started
	acked   map[string]node.ID // of those that were answered OK
	handled map[string]bool    // those for which a handler returned nil
	acks    atomic.Int64
}

func newHistory() *history {
	return &history{tried: map[string]bool{}, acked: map[string]node.ID{}, handled: map[string]bool{}}
}

func seedCount(t *testing.T, name string, normal int) int {
	if s := os.Getenv(name); s != "" {
		n, err := strconv.Atoi(s)
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	if testing.Short() {
		return normal / 4
	}
	return normal
}

// TestPowerCutAnywhere cuts the power at a random operation of a running engine, restarts the engine on what is left of
// the disk, and so on. Every message that was answered OK and not confirmed must come, once or more. No message may
// come that was never published, and the messages of a producer must keep their order.
//
// B17 (one node), B22, B24, B29, B43; invariants 7, 8, 9.
func TestPowerCutAnywhere(t *testing.T) {
	t.Parallel()
	w := &workload{
		options: smallOptions, lives: 3, operations: []int{1500}, sizes: []int{1, 40, 300, 3000},
		refusedEvery: 7, attempts: 3,
	}
	w.cutPower(t, seedCount(t, "TEST_CRASH_SEEDS", 60))
}

// TestPowerCutAtSegmentEnds is TestPowerCutAnywhere with segments of one batch: nearly all checkpoints end where a
// segment ends. The consumer keeps up with the producers, so that retention removes whatever recovery does not need,
// and the power is often cut again soon after a start.
func TestPowerCutAtSegmentEnds(t *testing.T) {
	t.Parallel()
	w := &workload{
		options: func(d aio.Disk) node.Options {
			o := smallOptions(d)
			o.MinSegmentBytes, o.MaxSegmentBytes, o.RetentionInterval = 4<<10, 4<<10, 2*time.Millisecond
			return o
		},
		lives: 12, operations: []int{100, 400, 1500}, sizes: []int{3000, 3500}, pause: time.Millisecond,
		refusedEvery: 50, attempts: 2,
	}
	w.cutPower(t, seedCount(t, "TEST_CRASH_SEEDS", 40))
}

// workload is what runs in the lives of an engine whose power is cut.
type workload struct {
	options      func(aio.Disk) node.Options
	lives        int           // at most
	operations   []int         // of the disk in a life, at most; life n takes the entry n modulo their number
	sizes        []int         // of bodies; each producer of a life draws one
	pause        time.Duration // of a producer after each batch
	refusedEvery node.ID       // a message with a multiple of this id is given back ...
	attempts     uint16        // ... until this attempt
}

func (w *workload) cutPower(t *testing.T, seeds int) {
	for seed := range uint64(seeds) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			rng := rand.New(rand.NewPCG(seed, 7))
			disk := faultaio.New(faultaio.Options{Seed: seed})
			h := newHistory()
			for life := range 1 + rng.IntN(w.lives) {
				disk.CrashAt(disk.Ops() + 20 + rng.IntN(w.operations[life%len(w.operations)]))
				w.runLife(t, disk, h, life, rng)
				if rng.IntN(4) == 0 {
					disk = disk.Kill(rng.Uint64())
				} else {
					disk = disk.Crash(rng.Uint64())
				}
			}
			h.check(t, disk, w.options)
		})
	}
}

// runLife opens an engine and runs a workload until the disk's power is cut.
func (w *workload) runLife(t *testing.T, disk *faultaio.Disk, h *history, life int, rng *rand.Rand) {
	e, err := node.Open(context.Background(), w.options(disk))
	if err != nil {
		if disk.Crashed() {
			return
		}
		t.Fatalf("life %d: open: %v", life, err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	for p := range 3 {
		size := w.sizes[rng.IntN(len(w.sizes))]
		wg.Go(func() { w.produce(e, h, fmt.Sprintf("t%d", p%2), fmt.Sprintf("%d.%d", life, p), size) })
	}
	wg.Go(func() { w.handle(ctx, e, h, "t0") })
	done := make(chan struct{})
	go func() { wg.Wait(); close(done) }()
	limit := time.After(30 * time.Second)
	for !disk.Crashed() {
		select {
		case <-limit:
			t.Errorf("life %d: the workload did not reach the power cut: %d operations, %d acks",
				life, disk.Ops(), h.acks.Load())
			disk.CrashAt(disk.Ops())
		case <-time.After(time.Millisecond):
		}
	}
	cancel()
	<-done
	e.Close() // fails, of course; it must not hang or panic
}

func (w *workload) produce(e *node.Engine, h *history, topic, producer string, size int) {
	ctx := context.Background()
	pad := make([]byte, size)
	for i := 0; ; i++ {
		t, err := e.Topic(ctx, topic)
		if err != nil {
			return
		}
		var bodies [][]byte
		for j := range 1 + i%3 {
			bodies = append(bodies, fmt.Appendf(nil, "%s/%s/%d.%d/%s", topic, producer, i, j, pad))
		}
		h.mu.Lock()
		for _, b := range bodies {
			h.tried[string(b)] = true
		}
		h.mu.Unlock()
		id, err := t.PublishBatch(ctx, bodies)
		if err != nil {
			if errors.Is(err, errs.ErrDisk) || errors.Is(err, errs.ErrClosed) {
				return
			}
			continue
		}
		h.acks.Add(1)
		h.mu.Lock()
		for j, b := range bodies {
			h.acked[string(b)] = id + node.ID(j)
		}
		h.mu.Unlock()
		time.Sleep(w.pause)
	}
}

func (w *workload) handle(ctx context.Context, e *node.Engine, h *history, topic string) {
	t, err := e.Topic(ctx, topic)
	if err != nil {
		return
	}
	c, err := t.Channel(ctx, "c")
	if err != nil {
		return
	}
	o := node.ConsumeOptions{MaxInFlight: 20, RequeueDelay: time.Millisecond}
	_ = c.Consume(ctx, o, func(_ context.Context, m *node.Message) error {
		if m.ID%w.refusedEvery == 0 && m.Attempts < w.attempts {
			return errors.New("again")
		}
		h.mu.Lock()
		h.handled[string(m.Body)] = true
		h.mu.Unlock()
		return nil
	})
}

// check opens the disk twice, because recovering what recovery has left must change nothing, and reads all messages.
func (h *history) check(t *testing.T, disk *faultaio.Disk, options func(aio.Disk) node.Options) {
	t.Helper()
	e, err := node.Open(context.Background(), options(disk))
	if err != nil {
		t.Fatalf("open after the cut: %v", err)
	}
	if err := e.Health(); err != nil {
		t.Errorf("health after the cut: %v", err)
	}
	e.Close()
	e, err = node.Open(context.Background(), options(disk.Kill(1)))
	if err != nil {
		t.Fatalf("second open: %v", err)
	}
	defer e.Close()
	got := map[string]node.ID{}
	for _, topic := range e.Catalog().Topics() {
		drain(t, topic, got)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	for body := range got {
		if !h.tried[body] {
			t.Errorf("a message came that was never published: %.60q", body)
		}
	}
	lost := 0
	for body, id := range h.acked {
		gotID, ok := got[body]
		if !ok && !h.handled[body] {
			if lost++; lost < 5 {
				t.Errorf("lost: %s %.60q was answered OK and never confirmed", id, body)
			}
		}
		if ok && gotID != id {
			t.Errorf("%.60q was answered with id %s and has %s now", body, id, gotID)
		}
	}
	if lost > 0 {
		t.Errorf("%d of %d acknowledged messages lost", lost, len(h.acked))
	}
}

// drain reads all messages of a topic and adds them to got.
func drain(t *testing.T, topic *node.Topic, got map[string]node.ID) {
	t.Helper()
	c, err := topic.Channel(context.Background(), "c")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	var mu sync.Mutex
	go func() {
		for deadline := time.Now().Add(20 * time.Second); time.Now().Before(deadline); time.Sleep(2 * time.Millisecond) {
			s := node.EngineOf(topic).Stats(topic.Name(), "c")
			if len(s) == 1 && len(s[0].Channels) == 1 {
				if ch := s[0].Channels[0]; ch.Depth == 0 && ch.InFlightCount == 0 && ch.DeferredCount == 0 {
					break
				}
			}
		}
		cancel()
	}()
	err = c.Consume(ctx, node.ConsumeOptions{MaxInFlight: 500}, func(_ context.Context, m *node.Message) error {
		mu.Lock()
		defer mu.Unlock()
		got[string(m.Body)] = m.ID
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}
