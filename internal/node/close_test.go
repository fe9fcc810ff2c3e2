package node_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"penstock/internal/node"
	"penstock/internal/node/errs"
)

// engineGoroutines returns the stacks of goroutines that run the project's code, except tests.
func engineGoroutines() []string {
	buf := make([]byte, 1<<20)
	for n := runtime.Stack(buf, true); n == len(buf); n = runtime.Stack(buf, true) {
		buf = make([]byte, 2*len(buf))
	}
	var out []string
	for _, g := range strings.Split(string(buf[:runtime.Stack(buf, true)]), "\n\n") {
		if strings.Contains(g, "penstock/") && !strings.Contains(g, "_test.go") {
			out = append(out, g)
		}
	}
	return out
}

// awaitNoGoroutines fails if goroutines that were not there before outlive the engine. The last instructions of a
// goroutine may still run when Close returns, hence the wait.
func awaitNoGoroutines(t *testing.T, before int) {
	t.Helper()
	for deadline := time.Now().Add(patience); ; runtime.Gosched() {
		left := engineGoroutines()
		if len(left) <= before {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%d goroutines left, %d before:\n%s", len(left), before, strings.Join(left, "\n\n"))
		}
	}
}

// Close leaves no goroutine and answers every call, whatever the engine is doing.
func TestCloseLeavesNothing(t *testing.T) {
	cases := []struct {
		name string
		busy func(t *testing.T, e *node.Engine, wg *sync.WaitGroup)
	}{
		{"idle", func(*testing.T, *node.Engine, *sync.WaitGroup) {}},
		{"topics and channels", func(t *testing.T, e *node.Engine, _ *sync.WaitGroup) {
			for i := range 20 {
				channelOf(t, topicOf(t, e, fmt.Sprint(i)), "c")
				channelOf(t, topicOf(t, e, fmt.Sprint(i)), "e#ephemeral")
			}
		}},
		{"consumers with messages in flight and deferred", busyConsumers},
		{"handlers running", busyHandlers},
		{"during publishes", busyPublishers},
		{"while topics and channels come and go", busyAdmin},
	}
	for _, tc := range cases {
		t.Run(tc.name, func(t *testing.T) {
			before := len(engineGoroutines())
			o := inDir(t.TempDir())
			e := openWith(t, o)
			var wg sync.WaitGroup
			tc.busy(t, e, &wg)
			if err := e.Close(); err != nil {
				t.Errorf("Close: %v", err)
			}
			done := make(chan struct{})
			go func() { wg.Wait(); close(done) }()
			select {
			case <-done:
			case <-time.After(patience):
				t.Fatalf("callers hang after Close:\n%s", strings.Join(engineGoroutines(), "\n\n"))
			}
			awaitNoGoroutines(t, before)
		})
	}
}

func busyConsumers(t *testing.T, e *node.Engine, _ *sync.WaitGroup) {
	topic := topicOf(t, e, "t")
	c := channelOf(t, topic, "c")
	publish(t, topic, numbered("m", 50, 100)...)
	s := subscribe(t, c, 10)
	m := s.next()
	if err := s.Requeue(m.id, time.Hour); err != nil {
		t.Fatal(err)
	}
	if _, err := topic.PublishMessage(context.Background(), node.Outgoing{
		Body: []byte("later"), Delay: time.Hour,
	}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if s.closes != 1 || !errors.Is(s.ended, errs.ErrClosed) {
			t.Errorf("the sink was closed %d times with %v", s.closes, s.ended)
		}
		if err := s.Finish(m.id); !errors.Is(err, errs.ErrNotInFlight) {
			t.Errorf("finish after Close: %v", err)
		}
		s.Pump()
		s.Unblock()
		s.Consumer.Close()
	})
}

func busyHandlers(t *testing.T, e *node.Engine, wg *sync.WaitGroup) {
	topic := topicOf(t, e, "t")
	c := channelOf(t, topic, "c")
	publish(t, topic, numbered("m", 200, 100)...)
	started := make(chan struct{}, 1)
	for range 2 {
		wg.Go(func() {
			o := node.ConsumeOptions{Workers: 3}
			err := c.Consume(context.Background(), o, func(_ context.Context, m *node.Message) error {
				select {
				case started <- struct{}{}:
				default:
				}
				return nil
			})
			if !errors.Is(err, errs.ErrClosed) {
				t.Errorf("Consume ended with %v", err)
			}
		})
	}
	<-started
}

func busyPublishers(t *testing.T, e *node.Engine, wg *sync.WaitGroup) {
	topic := topicOf(t, e, "t")
	var once sync.Once
	started := make(chan struct{})
	for range 8 {
		wg.Go(func() {
			for {
				_, err := topic.PublishMessage(context.Background(), node.Outgoing{Body: make([]byte, 500)})
				once.Do(func() { close(started) })
				if errors.Is(err, errs.ErrClosed) {
					return
				}
				if err != nil {
					t.Errorf("publish: %v", err)
					return
				}
			}
		})
	}
	<-started
}

func busyAdmin(t *testing.T, e *node.Engine, wg *sync.WaitGroup) {
	ctx := context.Background()
	started := make(chan struct{}, 16)
	for i := range 4 {
		wg.Go(func() {
			for {
				topic, err := e.Topic(ctx, fmt.Sprint(i))
				if err == nil {
					_, err = topic.Channel(ctx, "c")
				}
				if err == nil {
					err = e.DeleteTopic(ctx, fmt.Sprint(i))
				}
				select {
				case started <- struct{}{}:
				default:
				}
				if errors.Is(err, errs.ErrClosed) {
					return
				}
				if err != nil {
					t.Errorf("%v", err)
					return
				}
			}
		})
	}
	for range 8 {
		<-started
	}
}

// endedContext is a context that has ended: a call returns as soon as it would wait.
var endedContext = func() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}()

// Puts that wait for the disk or for room when Close is called are answered: stored or refused.
func TestCloseAnswersWaitingPuts(t *testing.T) {
	before := len(engineGoroutines())
	disk := newDisk()
	e := openOnDisk(t, disk, func(o *node.Options) { o.MaxInboxBytes, o.AdmitTimeout = 8<<10, 10*time.Second })
	topic := topicOf(t, e, "t")
	begun, release := holdCommits(t, disk)
	var mu sync.Mutex
	stored := map[node.ID]bool{}
	var wg sync.WaitGroup
	for range 50 {
		wg.Go(func() {
			id, err := topic.PublishMessage(context.Background(), node.Outgoing{Body: make([]byte, 1000)})
			mu.Lock()
			defer mu.Unlock()
			if err == nil {
				stored[id] = true
			} else if !errors.Is(err, errs.ErrClosed) {
				t.Errorf("publish: %v", err)
			}
		})
	}
	begun()
	closed := make(chan error, 1)
	go func() { closed <- e.Close() }()
	eventually(t, "the engine takes no more", func() bool {
		_, err := topic.PublishMessage(endedContext, node.Outgoing{Body: []byte("x")})
		return errors.Is(err, errs.ErrClosed)
	})
	release()
	if err := <-closed; err != nil {
		t.Error(err)
	}
	wg.Wait()
	awaitNoGoroutines(t, before)
	e = openOnDisk(t, disk.Kill(1))
	topic, _ = e.Catalog().LookupTopic("t")
	got := readAll(t, channelOf(t, topic, "c"))
	for id := range stored {
		if _, ok := got[id]; !ok {
			t.Errorf("%s was answered OK during Close and is gone", id)
		}
	}
}

// After Close, every call returns ErrClosed, and none panics.
func TestUseAfterClose(t *testing.T) {
	ctx := context.Background()
	e := openWith(t, inDir(t.TempDir()))
	topic := topicOf(t, e, "t")
	c := channelOf(t, topic, "c")
	publish(t, topic, "m")
	s := subscribe(t, c, 1)
	s.next()
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
	calls := map[string]func() error{
		"Close":        e.Close,
		"Topic":        func() error { _, err := e.Topic(ctx, "new"); return err },
		"CreateTopic":  func() error { _, err := e.CreateTopic(ctx, "new", 2); return err },
		"DeleteTopic":  func() error { return e.DeleteTopic(ctx, "t") },
		"Publish":      func() error { _, err := topic.PublishMessage(ctx, node.Outgoing{Body: []byte("m")}); return err },
		"PublishBatch": func() error { _, err := topic.PublishBatch(ctx, [][]byte{[]byte("m")}); return err },
		"PublishAsync": func() error {
			return topic.PublishAsync(node.Outgoing{Body: []byte("m")}, func(node.ID, error) {})
		},
		"Submit":        func() error { _, err := submit(topic, time.Time{}, "m"); return err },
		"Channel":       func() error { _, err := topic.Channel(ctx, "new"); return err },
		"DeleteChannel": func() error { return topic.DeleteChannel(ctx, "c") },
		"Topic.Pause":   func() error { return topic.Pause(ctx) },
		"Topic.Empty":   func() error { return topic.Empty(ctx) },
		"Pause":         func() error { return c.Pause(ctx) },
		"Empty":         func() error { return c.Empty(ctx) },
		"Skip":          func() error { return c.Skip(ctx, true) },
		"ResetToID":     func() error { return c.Seek(ctx, node.SeekTo{Kind: node.SeekID, ID: 0}) },
		"ResetToTime":   func() error { return c.Seek(ctx, node.SeekTo{Kind: node.SeekTime, Time: time.Unix(0, 0)}) },
		"Attach":        func() error { _, err := c.Attach(node.ConsumerOptions{}, s); return err },
		"Ready":         func() error { return s.Ready(3) },
		"Consume": func() error {
			return c.Consume(ctx, node.ConsumeOptions{}, func(context.Context, *node.Message) error { return nil })
		},
	}
	for name, call := range calls {
		t.Run(name, func(t *testing.T) {
			done := make(chan error, 1)
			go func() { done <- call() }()
			select {
			case err := <-done:
				if !errors.Is(err, errs.ErrClosed) {
					t.Errorf("%v, want ErrClosed", err)
				}
			case <-time.After(5 * time.Second):
				t.Error("hangs")
			}
		})
	}
	e.Stats("", "")
	e.Info()
	e.Catalog().Topics()
	e.CommitStats()
}
