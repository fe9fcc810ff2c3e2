package load

import (
	"context"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// drainTimeout is how long an end-to-end run waits for its last messages.
const drainTimeout = 10 * time.Second

// EndToEnd publishes at a steady rate and consumes in the same process. It measures the latency to the handler, both
// from the publish call and from the time at which the message should have been sent.
func EndToEnd(ctx context.Context, cfg Config) (*Report, error) {
	if err := cfg.check(); err != nil {
		return nil, err
	}
	switch {
	case cfg.SizeBytes < minEndToEndBytes:
		return nil, fmt.Errorf("%w: size must be at least %d bytes: the body carries times", ErrConfig, minEndToEndBytes)
	case cfg.Rate <= 0:
		return nil, fmt.Errorf("%w: an end to end run needs a rate", ErrConfig)
	case cfg.Batch != 1:
		return nil, fmt.Errorf("%w: an end to end run publishes single messages", ErrConfig)
	}
	if cfg.Native != nil {
		return endToEndNative(ctx, cfg)
	}
	conn, frames, err := dial(&cfg)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	r, publishers, err := open(ctx, &cfg)
	if err != nil {
		return nil, err
	}
	defer r.close()
	var stop atomic.Bool
	c := &consumer{
		r: r, conn: conn, frames: frames, meter: newMeter(1), stop: &stop, arrivals: newArrivals(r),
	}
	if err := c.subscribe(); err != nil {
		return nil, err
	}
	report := newReport(&cfg, "e2e")
	r.start()
	p := newPacer(r, publishers, c.arrivals)
	r.endToEnd(ctx, p, c)
	report.finish(r, []*meter{c.meter})
	report.Redelivered = c.redelivered
	report.arrived(r, c.arrivals)
	return report, r.failure()
}

// arrivals measures the messages of an end-to-end run that arrive. The goroutine of the consumer uses it.
type arrivals struct {
	r                *run
	runID            uint64 // tells the messages of this run from older ones
	call, fromIntent *hdrhistogram.Histogram
	intervals        []*hdrhistogram.Histogram // of call, by arrival: see Config.Interval
	foreign          int64
}

func newArrivals(r *run) *arrivals {
	return &arrivals{
		r: r, runID: rand.Uint64() | 1,
		call:       hdrhistogram.New(1, maxLatency, precisionFew),
		fromIntent: hdrhistogram.New(1, maxLatency, precisionFew),
	}
}

// stamp writes into a body what add reads of it.
func (a *arrivals) stamp(body []byte, intended int64) {
	binary.LittleEndian.PutUint64(body, a.runID)
	binary.LittleEndian.PutUint64(body[8:], uint64(a.r.clock.now()))
	binary.LittleEndian.PutUint64(body[16:], uint64(intended))
}

// arrived reports the latencies of an end-to-end run.
func (r *Report) arrived(of *run, a *arrivals) {
	r.Foreign = a.foreign
	r.histogram("publish call to handler", a.call)
	r.histogram("intended time to handler", a.fromIntent)
	r.latency("intended time to ack", of.meters)
	for i, h := range a.intervals {
		from := time.Duration(i) * of.cfg.Interval
		r.histogram(fmt.Sprintf("call to handler, %v to %v", from, from+of.cfg.Interval), h)
	}
}

// endToEnd runs both sides. The consumer runs until it has received every message that was answered OK.
func (r *run) endToEnd(ctx context.Context, p *pacer, c *consumer) {
	var publishing, consuming sync.WaitGroup
	consuming.Go(func() {
		if err := c.loop(); err != nil {
			r.faults.add(err)
		}
	})
	p.goAll(&publishing)
	r.await(ctx, &publishing)
	r.drain(ctx, c.meter)
	c.stop.Store(true)
	_ = c.conn.SetReadDeadline(time.Now())
	consuming.Wait()
}

// drain waits until got has counted every message that was answered OK.
func (r *run) drain(ctx context.Context, got *meter) {
	published := r.done()
	deadline := time.Now().Add(drainTimeout)
	for got.done.Load() < published && time.Now().Before(deadline) && ctx.Err() == nil {
		sleep(int64(time.Millisecond))
	}
	if got := got.done.Load(); got < published && ctx.Err() == nil {
		r.faults.add(fmt.Errorf("%d of %d messages that were answered OK did not arrive within %s",
			published-got, published, drainTimeout))
	}
}

// add measures one message of this run. Messages of other runs are only finished.
func (a *arrivals) add(now int64, body []byte) {
	if len(body) < minEndToEndBytes || binary.LittleEndian.Uint64(body) != a.runID {
		a.foreign++
		return
	}
	if now < a.r.clock.warmUp {
		return
	}
	call := now - int64(binary.LittleEndian.Uint64(body[8:]))
	record(a.call, call)
	if every := int64(a.r.cfg.Interval); every > 0 {
		i := min(int((now-a.r.clock.warmUp)/every), MaxIntervals-1)
		for len(a.intervals) <= i {
			a.intervals = append(a.intervals, hdrhistogram.New(1, maxLatency, precisionMany))
		}
		record(a.intervals[i], call)
	}
	record(a.fromIntent, now-int64(binary.LittleEndian.Uint64(body[16:])))
}

func record(h *hdrhistogram.Histogram, latency int64) {
	v := min(max(latency/int64(unit), 1), maxLatency)
	if err := h.RecordValue(v); err != nil {
		panic("BUG: a latency does not fit the histogram: " + err.Error())
	}
}
