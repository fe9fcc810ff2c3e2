// Package load drives a node over NSQ's TCP protocol, or over the native one with package client, and measures it. It
// measures publishing in a closed or an open loop, the consumption of a backlog, the latency from the publish call to
// the handler and, with the native protocol, reading what a topic keeps.
//
// One goroutine serves one connection, or many in a crowd. It allocates nothing per message, so that one core can drive
// more than a million messages per second, and the node is the bottleneck rather than the generator. Latencies in an
// open loop are measured from the time at which a message should have been sent, so that a stalled node cannot hide its
// stall.
package load

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"penstock/client"
)

// Limits of a run.
const (
	MaxConnections = 10_000
	// MaxInFlight keeps the answers of one connection within its socket buffers: the generator does not read while it
	// writes, and a node that cannot write its answers stops reading.
	MaxInFlight  = 10_000
	MaxBatch     = 100_000
	MaxSizeBytes = 16 << 20
	MaxHeaders   = 256 // per message, the limit of our nodes

	// MaxIntervals bounds the rows of a report with intervals; the last row takes the rest.
	MaxIntervals = 1000

	minEndToEndBytes = 24 // the run, the call time and the intended time are in the body
	stallTimeout     = 30 * time.Second
	progressEvery    = 100 * time.Millisecond
)

// Config describes one run. Its zero values are not defaults: the command line sets every field.
type Config struct {
	Address string      // HOST:PORT of the NSQ protocol
	TLS     *tls.Config // nil: the connections are in clear
	Token   string      // to log in with, if the node asks for it; empty: none
	// Native, if set, is used instead of the NSQ protocol and of the three fields above.
	Native *Native
	// Info returns the answer to the node's /info, for the report's header, or nothing. nil: the node is not asked.
	Info        func() []byte
	Topic       string
	Channel     string
	Connections int
	InFlight    int  // unanswered commands per connection; native: messages
	Batch       int  // messages per command: 1 sends PUB, more send MPUB
	SizeBytes   int  // size of a body
	JSON        bool // native: bodies are JSON, which compresses; otherwise they hardly do
	// Headers is the number of headers of every message. Above 0, PUB and MPUB become PUB_EXT and MPUB_EXT, which a
	// stock nsqd does not know.
	Headers  int
	Ready    int           // RDY of a consumer
	Duration time.Duration // length of the measured part; 0: until Messages
	WarmUp   time.Duration // time before the measured part
	Rate     float64       // messages per second over all connections; 0: closed loop
	Messages int64         // in total, warm-up included; 0: until Duration
	Fill     bool          // Consume publishes Messages first
	// Interval, if set, splits the latencies from publish call to handler of an end-to-end run: one row for each interval.
	Interval time.Duration
	// Progress, if set, is called a few times per second with the fraction that is done, 0 to 1, and the number of
	// messages so far.
	Progress func(part float64, messages int64)
}

// ErrConfig is wrapped by the errors of a Config that no run can have; nothing was sent.
var ErrConfig = errors.New("the benchmark cannot run so")

// check returns an error that wraps ErrConfig if no run can have this configuration.
func (c *Config) check() error {
	if err := c.invalid(); err != nil {
		return fmt.Errorf("%w: %w", ErrConfig, err)
	}
	return nil
}

func (c *Config) invalid() error {
	switch {
	case c.Topic == "":
		return errors.New("the topic has no name")
	case c.Connections < 1 || c.Connections > MaxConnections:
		return fmt.Errorf("connections must be 1 to %d", MaxConnections)
	case c.Native != nil && c.Batch != 1:
		return errors.New("batch must be 1: native producers make batches themselves")
	case c.InFlight < 1 || c.InFlight > c.maxInFlight():
		return fmt.Errorf("in-flight must be 1 to %d", c.maxInFlight())
	case c.Batch < 1 || c.Batch > MaxBatch:
		return fmt.Errorf("batch must be 1 to %d", MaxBatch)
	case c.SizeBytes < 1 || c.SizeBytes > MaxSizeBytes:
		return fmt.Errorf("size must be 1 to %d bytes", MaxSizeBytes)
	case c.Headers < 0 || c.Headers > MaxHeaders:
		return fmt.Errorf("headers must be 0 to %d", MaxHeaders)
	case c.Ready < 1:
		return errors.New("rdy must be at least 1")
	case c.Messages%int64(c.Batch) != 0:
		return fmt.Errorf("messages (%d) must be a multiple of batch (%d)", c.Messages, c.Batch)
	case c.Rate < 0:
		return errors.New("rate must not be negative")
	case c.Interval < 0:
		return errors.New("interval must not be negative")
	case c.Duration <= 0 && c.Messages <= 0:
		return errors.New("a run needs a duration or a number of messages")
	}
	return nil
}

func (c *Config) maxInFlight() int {
	if c.Native != nil {
		return MaxNativeInFlight
	}
	return MaxInFlight
}

// run is the state that the goroutines of one run share.
type run struct {
	cfg    *Config
	clock  clock
	budget *budget
	faults faults
	meters []*meter
	conns  []net.Conn
	ended  atomic.Bool // close was called

	// Of a native run.
	cancel  context.CancelFunc
	clients []*client.Client

	cpu time.Duration // CPU time of this process at the start of the run
}

// open dials every connection before the clock starts.
func open(ctx context.Context, cfg *Config) (*run, []*frameReader, error) {
	r := &run{cfg: cfg, budget: newBudget(cfg.Messages)}
	frames := make([]*frameReader, 0, cfg.Connections)
	for range cfg.Connections {
		if err := ctx.Err(); err != nil {
			r.close()
			return nil, nil, err
		}
		conn, f, err := dial(cfg)
		if err != nil {
			r.close()
			return nil, nil, err
		}
		r.conns = append(r.conns, conn)
		r.meters = append(r.meters, newMeter(cfg.Connections))
		frames = append(frames, f)
	}
	return r, frames, nil
}

func (r *run) close() {
	r.ended.Store(true)
	for _, c := range r.conns {
		c.Close()
	}
	if r.cancel != nil {
		r.cancel()
	}
	for _, c := range r.clients {
		c.Close() // returns when none of its goroutines is left
	}
}

// start begins the clock.
func (r *run) start() {
	r.cpu = cpuTime()
	r.clock = clock{base: time.Now(), warmUp: int64(r.cfg.WarmUp)}
	if r.cfg.Duration > 0 {
		r.clock.stop = int64(r.cfg.WarmUp + r.cfg.Duration)
	}
}

func (r *run) done() (n int64) {
	for _, m := range r.meters {
		n += m.done.Load()
	}
	return n
}

// await waits for the goroutines and shows progress. It closes the connections when ctx ends, or when there has been no
// progress for stallTimeout.
func (r *run) await(ctx context.Context, wg *sync.WaitGroup) {
	finished := make(chan struct{})
	go func() { wg.Wait(); close(finished) }()
	tick := time.NewTicker(progressEvery)
	defer tick.Stop()
	moved, before := time.Now(), int64(-1)
	for {
		select {
		case <-finished:
			r.show(r.done())
			return
		case <-ctx.Done():
			r.faults.add(fmt.Errorf("the run was interrupted: %w", ctx.Err()))
			r.close()
			<-finished
			return
		case <-tick.C:
		}
		done := r.done()
		r.show(done)
		if done != before {
			moved, before = time.Now(), done
		}
		if time.Since(moved) > stallTimeout {
			r.faults.add(fmt.Errorf("the node stopped answering: nothing moved for %s", stallTimeout))
			r.close()
			<-finished
			return
		}
	}
}

func (r *run) show(done int64) {
	if r.cfg.Progress == nil {
		return
	}
	part := 0.0
	if r.clock.stop > 0 {
		part = float64(r.clock.now()) / float64(r.clock.stop)
	}
	if r.cfg.Messages > 0 {
		part = max(part, float64(done)/float64(r.cfg.Messages))
	}
	r.cfg.Progress(min(part, 1), done)
}

// body returns printable bytes that do not compress well. It always returns the same bytes for the same size.
func body(sizeBytes int) []byte {
	return appendRandom(make([]byte, 0, sizeBytes), rand.New(rand.NewPCG(1, uint64(sizeBytes))), sizeBytes)
}

func cpuTime() time.Duration {
	var u syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &u) != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
