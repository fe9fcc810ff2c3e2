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
		r: r, conn: conn, frames: frames, meter: newMeter(1), stop: &stop, runID: rand.Uint64() | 1,
		call:       hdrhistogram.New(1, maxLatency, precisionFew),
		fromIntent: hdrhistogram.New(1, maxLatency, precisionFew),
	}
	if err := c.subscribe(); err != nil {
		return nil, err
	}
	report := newReport(&cfg, "e2e")
	r.start()
	p := newPacer(r, publishers, true, c.runID)
	r.endToEnd(ctx, p, c)
	report.finish(r, []*meter{c.meter})
	report.Redelivered, report.Foreign = c.redelivered, c.foreign
	report.histogram("publish call to handler", c.call)
	report.histogram("intended time to handler", c.fromIntent)
	report.latency("intended time to ack", r.meters)
	for i, h := range c.intervals {
		from := time.Duration(i) * cfg.Interval
		report.histogram(fmt.Sprintf("call to handler, %v to %v", from, from+cfg.Interval), h)
	}
	return report, r.failure()
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
	published := r.done()
	deadline := time.Now().Add(drainTimeout)
	for c.meter.done.Load() < published && time.Now().Before(deadline) && ctx.Err() == nil {
		sleep(int64(time.Millisecond))
	}
	c.stop.Store(true)
	_ = c.conn.SetReadDeadline(time.Now())
	consuming.Wait()
	if got := c.meter.done.Load(); got < published && ctx.Err() == nil {
		r.faults.add(fmt.Errorf("%d of %d messages that were answered OK did not arrive within %s",
			published-got, published, drainTimeout))
	}
}

// timed measures one message of this run. Messages of other runs are only finished.
func (c *consumer) timed(now int64, body []byte) {
	if len(body) < minEndToEndBytes || binary.LittleEndian.Uint64(body) != c.runID {
		c.foreign++
		return
	}
	if now < c.r.clock.warmUp {
		return
	}
	call := now - int64(binary.LittleEndian.Uint64(body[8:]))
	record(c.call, call)
	if every := int64(c.r.cfg.Interval); every > 0 {
		i := min(int((now-c.r.clock.warmUp)/every), MaxIntervals-1)
		for len(c.intervals) <= i {
			c.intervals = append(c.intervals, hdrhistogram.New(1, maxLatency, precisionMany))
		}
		record(c.intervals[i], call)
	}
	record(c.fromIntent, now-int64(binary.LittleEndian.Uint64(body[16:])))
}

func record(h *hdrhistogram.Histogram, latency int64) {
	v := min(max(latency/int64(unit), 1), maxLatency)
	if err := h.RecordValue(v); err != nil {
		panic("BUG: a latency does not fit the histogram: " + err.Error())
	}
}
