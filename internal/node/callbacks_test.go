package node_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"penstock/internal/node"
	"penstock/internal/node/errs"
	"penstock/internal/node/health"
	"penstock/internal/node/message"
	"penstock/tests/support/faultaio"
)

// gate is a callback that never returns, until the test ends.
type gate struct {
	came, open chan struct{}
}

func newGate() *gate { return &gate{make(chan struct{}, 16), make(chan struct{})} }

func (g *gate) block() {
	select {
	case g.came <- struct{}{}:
	default:
	}
	<-g.open
}

// blockedSink is a Sink of which one method blocks.
type blockedSink struct{ deliver, flush, closed func() }

func (s blockedSink) Deliver(*node.Delivery) bool { s.deliver(); return true }
func (s blockedSink) Flush()                      { s.flush() }
func (s blockedSink) Closed(error)                { s.closed() }

type blockedRecorder struct{ g *gate }

func (r blockedRecorder) Record(int64) { r.g.block() }

// callbacks are all functions of a program that the engine calls, and how each is made to block. Options.Logger has
// tests of its own. That of a put is the one that keeps others waiting: it is to return at once.
var callbacks = []struct {
	name  string
	set   func(o *node.Options, g *gate)
	call  func(t *testing.T, e *node.Engine, own *node.Topic, g *gate)
	stops bool // commits wait until it returns
}{
	{name: "Sink.Deliver", call: func(t *testing.T, _ *node.Engine, own *node.Topic, g *gate) {
		attachStuck(t, own, blockedSink{g.block, func() {}, func() {}})
	}},
	{name: "Sink.Flush", call: func(t *testing.T, _ *node.Engine, own *node.Topic, g *gate) {
		attachStuck(t, own, blockedSink{func() {}, g.block, func() {}})
	}},
	{name: "Sink.Closed", call: func(t *testing.T, _ *node.Engine, own *node.Topic, g *gate) {
		attachStuck(t, own, blockedSink{func() {}, func() {}, g.block})
		go func() { _ = own.DeleteChannel(context.Background(), "c") }()
	}},
	{name: "handler of Consume", call: func(t *testing.T, _ *node.Engine, own *node.Topic, g *gate) {
		ch := channelOf(t, own, "c")
		go func() {
			_ = ch.Consume(t.Context(), node.ConsumeOptions{}, func(context.Context, *node.Message) error {
				g.block()
				return nil
			})
		}()
	}},
	{name: "done of Sync", call: func(t *testing.T, _ *node.Engine, own *node.Topic, g *gate) {
		k := subscribe(t, channelOf(t, own, "c"), 1)
		k.finish(k.next())
		k.local().Sync(func(error) { g.block() })
	}},
	{
		name: "Options.Latencies",
		set: func(o *node.Options, g *gate) {
			o.Latencies = func() message.LatencyRecorder { g.block(); return blockedRecorder{g} }
		},
		call: func(t *testing.T, e *node.Engine, own *node.Topic, _ *gate) {
			channelOf(t, own, "c")
			go e.Stats("own", "")
		},
	},
	{
		name: "LatencyRecorder.Record",
		set: func(o *node.Options, g *gate) {
			o.Latencies = func() message.LatencyRecorder { return blockedRecorder{g} }
		},
		call: func(t *testing.T, _ *node.Engine, own *node.Topic, _ *gate) {
			k := subscribe(t, channelOf(t, own, "c"), 1)
			m := k.next()
			go func() { _ = k.Finish(m.id) }()
		},
	},
	{
		name: "Options.Certificates",
		set: func(o *node.Options, g *gate) {
			o.Certificates = func() []health.Certificate { g.block(); return nil }
		},
		call: func(_ *testing.T, e *node.Engine, _ *node.Topic, _ *gate) { go e.Certificates() },
	},
	{name: "WatchAuth", call: func(_ *testing.T, e *node.Engine, _ *node.Topic, g *gate) {
		e.WatchAuth(func() (time.Duration, string) { g.block(); return 0, "" })
		go e.Warnings()
	}},
	{name: "Put.Done", stops: true, call: func(t *testing.T, _ *node.Engine, own *node.Topic, g *gate) {
		put := &node.Put{Messages: [][]byte{[]byte("x")}, Done: func(*node.Put) { g.block() }}
		if err := own.Submit(put); err != nil {
			t.Error(err)
		}
	}},
	{name: "done of PublishAsync", stops: true, call: func(t *testing.T, _ *node.Engine, own *node.Topic, g *gate) {
		if err := own.PublishAsync(node.Outgoing{Body: []byte("x")}, func(node.ID, error) { g.block() }); err != nil {
			t.Error(err)
		}
	}},
}

func attachStuck(t *testing.T, own *node.Topic, s blockedSink) {
	t.Helper()
	k, err := channelOf(t, own, "c").Attach(node.ConsumerOptions{}, s)
	if err != nil {
		t.Fatal(err)
	}
	if err := k.Ready(1); err != nil {
		t.Fatal(err)
	}
	go k.Pump()
}

// A callback that never returns holds up no commit, of its own topic or of others, no deliveries of others, and not the
// watch of the disk. The answer of a put is the exception, which its documentation says: then the log names the cause.
func TestCallbacksThatBlock(t *testing.T) {
	t.Parallel()
	for _, c := range callbacks {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			d, g, log := newDisk(), newGate(), new(logged)
			e := openOnDisk(t, d, shortPatience, func(o *node.Options) {
				o.Logger = log.logger()
				if c.set != nil {
					c.set(o, g)
				}
			})
			t.Cleanup(func() {
				close(g.open)
				d.ClearRules()
				d.ReleaseHeld()
			})
			own, other := topicOf(t, e, "own"), topicOf(t, e, "other")
			publish(t, own, "first")
			c.call(t, e, own, g)
			eventually(t, "the callback is called", func() bool { return len(g.came) > 0 })
			if c.stops {
				go func() { // again and again: on a busy machine one put may be refused, as the disk seems to hang
					for t.Context().Err() == nil {
						_, _ = other.PublishMessage(t.Context(), node.Outgoing{Body: []byte("waits")})
					}
				}()
				eventually(t, "the log names the cause", func() bool {
					return strings.Contains(log.String(), "The program that embeds the engine blocks it")
				})
			} else {
				publish(t, own, "second")
				publish(t, other, "third")
				if c.set == nil { // else its channels, too, call what blocks
					if got := readAll(t, channelOf(t, other, "c")); len(got) != 1 {
						t.Errorf("another topic's channel got %v", got)
					}
				}
			}
			d.Inject(faultaio.Rule{Kind: faultaio.KindAny, Hold: true, Count: -1})
			go func() { _, _ = other.PublishMessage(ctxBg, node.Outgoing{Body: []byte("hangs")}) }()
			eventually(t, "the disk is found to hang", func() bool { return errors.Is(e.Health(), errs.ErrDiskHung) })
		})
	}
}

// A node of a cluster makes channels with locks held on which commits depend, so it asks for no recorder then.
func TestClusterRecorderThatIsNeverMade(t *testing.T) {
	t.Parallel()
	g := newGate()
	tc := newTestCluster(t, 3, func(o *node.Options) {
		o.Latencies = func() message.LatencyRecorder { g.block(); return blockedRecorder{g} }
	})
	release := sync.OnceFunc(func() { close(g.open) })
	t.Cleanup(release)
	late := time.AfterFunc(patience, func() {
		t.Error("commits wait for the function that makes recorders")
		release()
	})
	defer late.Stop()
	tc.create("t", 1)
	tc.channel("t", "c")
	old := tc.leader("t", 0)
	tc.moveLeadership("t", 0, tc.others(old)[0])
	if err := node.PutTo(t.Context(), tc.topic(tc.leader("t", 0), "t"), 0, &node.Put{
		Messages: [][]byte{[]byte("x")},
	}); err != nil {
		t.Error(err)
	}
}
