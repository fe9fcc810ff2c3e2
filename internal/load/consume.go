package load

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// idleAfter is how long no message has to arrive until a consumption without a fixed number of messages ends.
const idleAfter = 2 * time.Second

// Consume measures how fast a channel's backlog is consumed with one FIN per message.
func Consume(ctx context.Context, cfg Config) (*Report, error) {
	if err := cfg.check(); err != nil {
		return nil, err
	}
	if cfg.Native != nil {
		return consumeNative(ctx, cfg)
	}
	if cfg.Fill {
		if err := fill(ctx, cfg); err != nil {
			return nil, err
		}
	}
	r, frames, err := open(ctx, &cfg)
	if err != nil {
		return nil, err
	}
	defer r.close()
	report := newReport(&cfg, "sub")
	var wg sync.WaitGroup
	var stop atomic.Bool
	consumers := make([]*consumer, len(r.conns))
	for i, conn := range r.conns {
		consumers[i] = &consumer{r: r, conn: conn, frames: frames[i], meter: r.meters[i], stop: &stop}
		if err := consumers[i].subscribe(); err != nil {
			return nil, err
		}
	}
	r.start()
	for _, c := range consumers {
		wg.Go(func() {
			if err := c.loop(); err != nil {
				r.faults.add(err)
			}
		})
	}
	go r.endConsumption(&stop, &wg)
	r.await(ctx, &wg)
	report.finish(r, r.meters)
	for _, c := range consumers {
		report.Redelivered += c.redelivered
	}
	return report, r.failure()
}

// fill creates the channel, so that the channel gets all later messages, and publishes the messages that the run
// consumes.
func fill(ctx context.Context, cfg Config) error {
	conn, frames, err := dial(&cfg)
	if err != nil {
		return err
	}
	defer conn.Close()
	if err := command(conn, frames, []byte("SUB "+cfg.Topic+" "+cfg.Channel+"\n")); err != nil {
		return err
	}
	f := cfg
	f.Connections, f.InFlight, f.WarmUp, f.Duration, f.Rate, f.Fill = 1, 16, 0, 0, 0, false
	f.Batch = 1
	for _, b := range []int{100, 50, 10} {
		if cfg.Messages%int64(b) == 0 {
			f.Batch = b
			break
		}
	}
	if _, err := Publish(ctx, f); err != nil {
		return fmt.Errorf("filling the topic: %w", err)
	}
	return nil
}

// endConsumption stops the consumers when all messages have arrived, when the time is over, or when no more messages
// arrive.
func (r *run) endConsumption(stop *atomic.Bool, wg *sync.WaitGroup) {
	finished := make(chan struct{})
	go func() { wg.Wait(); close(finished) }()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	moved, before := time.Now(), int64(-1)
	for {
		select {
		case <-finished:
			return
		case <-tick.C:
		}
		done := r.done()
		if done != before {
			moved, before = time.Now(), done
		}
		all := r.cfg.Messages > 0 && done >= r.cfg.Messages
		if all || r.clock.over(r.clock.now()) || time.Since(moved) > idleAfter {
			stop.Store(true)
			for _, c := range r.conns {
				_ = c.SetReadDeadline(time.Now())
			}
			return
		}
	}
}

// consumer is one subscribed connection.
type consumer struct {
	r           *run
	conn        net.Conn
	frames      *frameReader
	meter       *meter
	out         []byte // the FINs for the messages of one read
	stop        *atomic.Bool
	redelivered int64
	last        int64
	arrivals    *arrivals // of an end-to-end run; nil: of none
}

func (c *consumer) subscribe() error {
	return command(c.conn, c.frames, []byte("SUB "+c.r.cfg.Topic+" "+c.r.cfg.Channel+"\n"))
}

// loop asks for messages and answers each with a FIN. All FINs for one read go out in one write. Closing the connection
// at the end gives messages back that were delivered but not read.
func (c *consumer) loop() error {
	if _, err := fmt.Fprintf(c.conn, "RDY %d\n", c.r.cfg.Ready); err != nil {
		return err
	}
	for {
		if err := c.frames.fill(); err != nil {
			var timeout net.Error
			if errors.As(err, &timeout) && timeout.Timeout() && c.stop.Load() {
				return c.leave()
			}
			return err
		}
		now := c.r.clock.now()
		if err := c.take(now); err != nil {
			return err
		}
		if len(c.out) > 0 {
			if _, err := c.conn.Write(c.out); err != nil {
				return err
			}
			c.out = c.out[:0]
		}
		if c.stop.Load() {
			return c.leave()
		}
	}
}

// take handles every frame that has been read.
func (c *consumer) take(now int64) error {
	messages := 0
	for {
		typ, data, ok, err := c.frames.next()
		if err != nil {
			return err
		}
		if !ok {
			break
		}
		switch {
		case typ == frameMessage && len(data) >= messageHeaderBytes:
			messages++
			c.message(now, data)
		case typ == frameResponse && string(data) == string(heartbeat):
			c.out = append(c.out, nop...)
		case typ == frameResponse && string(data) == "CLOSE_WAIT":
		default:
			return fmt.Errorf("the server answered: %s", data)
		}
	}
	if messages > 0 {
		c.last = now
		c.meter.done.Store(c.meter.done.Load() + int64(messages))
		if now >= c.r.clock.warmUp {
			c.meter.measured += int64(messages)
			c.meter.last = now
		}
	}
	return nil
}

func (c *consumer) message(now int64, data []byte) {
	if binary.BigEndian.Uint16(data[8:]) > 1 {
		c.redelivered++
	}
	c.out = appendFin(c.out, data[10:10+idBytes])
	if c.arrivals != nil {
		c.arrivals.add(now, data[messageHeaderBytes:])
	}
}

// leave waits until the server has handled every FIN, since it answers CLS only after them.
func (c *consumer) leave() error {
	if err := c.conn.SetDeadline(time.Now().Add(10 * time.Second)); err != nil {
		return err
	}
	if _, err := c.conn.Write([]byte("CLS\n")); err != nil {
		return err
	}
	for {
		for {
			_, data, ok, err := c.frames.next()
			if err != nil {
				return err
			}
			if !ok {
				break
			}
			if string(data) == "CLOSE_WAIT" {
				return nil
			}
		}
		if err := c.frames.fill(); err != nil {
			return fmt.Errorf("waiting for CLOSE_WAIT: %w", err)
		}
	}
}
