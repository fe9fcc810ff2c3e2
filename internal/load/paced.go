package load

import (
	"context"
	"errors"
	"io"
	"net"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// pacedRing holds the intended times of the unanswered commands on one connection. The pacer writes it, and the
// connection's receiver reads it.
type pacedRing struct {
	intended   [1 << 14]int64
	call       [1 << 14]int64
	head, tail atomic.Int64 // number of commands answered, and number sent
}

// paced is one connection of an open loop.
type paced struct {
	conn   net.Conn
	frames *frameReader
	meter  *meter
	ring   *pacedRing
	due    int // number of commands in block that are not written yet
	block  []byte
	broken atomic.Bool
}

// pacer sends commands at their intended times, even if answers are late.
type pacer struct {
	r            *run
	conns        []*paced
	commandBytes int
	perBlock     int
	bodyAt       int       // offset of the body in a command
	arrivals     *arrivals // of an end-to-end run, whose bodies are stamped; nil: of none
	sent         int64     // number of commands sent
	finished     atomic.Bool
}

func newPacer(r *run, frames []*frameReader, arrivals *arrivals) *pacer {
	p := &pacer{r: r, arrivals: arrivals}
	b := body(r.cfg.SizeBytes)
	cmd := appendPub(nil, r.cfg.Topic, headersJSON(r.cfg.Headers), b, r.cfg.Batch)
	p.commandBytes = len(cmd)
	p.bodyAt = len(cmd) - len(b)
	p.perBlock = max(maxBlockBytes/len(cmd), 1)
	for i, conn := range r.conns {
		c := &paced{conn: conn, frames: frames[i], meter: r.meters[i], ring: new(pacedRing)}
		for range p.perBlock {
			c.block = append(c.block, cmd...)
		}
		p.conns = append(p.conns, c)
	}
	return p
}

func (r *run) publishOpen(ctx context.Context, frames []*frameReader) {
	p := newPacer(r, frames, nil)
	var wg sync.WaitGroup
	p.goAll(&wg)
	r.await(ctx, &wg)
}

// goAll starts the pacer and the receivers of its connections.
func (p *pacer) goAll(wg *sync.WaitGroup) {
	for _, c := range p.conns {
		wg.Go(func() {
			if err := p.receive(c); err != nil && !(p.finished.Load() && errors.Is(err, io.EOF)) {
				c.broken.Store(true)
				p.r.faults.add(err)
			}
		})
	}
	wg.Go(func() {
		err := p.pace()
		if err != nil {
			p.r.faults.add(err)
		}
		p.finished.Store(true)
		// A receiver waits for answers. If no answers are outstanding, it has to be told that none will come.
		for _, c := range p.conns {
			if err != nil {
				c.conn.Close()
			} else if c.ring.head.Load() == c.ring.tail.Load() {
				_ = c.conn.SetReadDeadline(time.Now())
			}
		}
	})
}

// pace runs the schedule: command i is meant for start + i × interval, on connection i mod n. It sleeps in the kernel
// on its own thread, because Go's timers are up to a millisecond late.
func (p *pacer) pace() error {
	release := preciseSleep()
	defer release()
	interval := float64(time.Second) * float64(p.r.cfg.Batch) / p.r.cfg.Rate
	for next := 0; ; {
		now := p.r.clock.now()
		if p.r.clock.over(now) {
			return nil
		}
		for {
			intended := int64(float64(p.sent) * interval)
			if intended > now {
				break
			}
			if p.r.budget.take(p.r.cfg.Batch) < p.r.cfg.Batch {
				return p.flush()
			}
			c := p.conns[next]
			next = (next + 1) % len(p.conns)
			if err := p.put(c, now, intended); err != nil {
				return err
			}
			p.sent++
		}
		if err := p.flush(); err != nil {
			return err
		}
		sleep(int64(float64(p.sent)*interval) - p.r.clock.now())
	}
}

// put adds one command to its connection's block. If the connection's ring is full, the schedule waits, but the
// intended times do not change.
func (p *pacer) put(c *paced, now, intended int64) error {
	tail := c.ring.tail.Load()
	for tail-c.ring.head.Load() >= int64(len(c.ring.intended)) {
		if c.broken.Load() {
			return errors.New("a connection broke while the schedule ran")
		}
		if err := p.flush(); err != nil {
			return err
		}
		sleep(int64(50 * time.Microsecond))
	}
	if c.due == p.perBlock {
		if err := c.write(p.commandBytes); err != nil {
			return err
		}
	}
	i := tail % int64(len(c.ring.intended))
	c.ring.intended[i] = intended
	c.ring.call[i] = now
	if p.arrivals != nil {
		p.arrivals.stamp(c.block[c.due*p.commandBytes+p.bodyAt:], intended)
	}
	c.ring.tail.Store(tail + 1)
	c.due++
	return nil
}

func (p *pacer) flush() error {
	for _, c := range p.conns {
		if c.due > 0 {
			if err := c.write(p.commandBytes); err != nil {
				return err
			}
		}
	}
	return nil
}

func (c *paced) write(commandBytes int) error {
	n := c.due * commandBytes
	c.due = 0
	_, err := c.conn.Write(c.block[:n])
	return err
}

// receive matches answers with intended times until the schedule is over and every command is answered.
func (p *pacer) receive(c *paced) error {
	for {
		if p.finished.Load() && c.ring.head.Load() == c.ring.tail.Load() {
			return nil
		}
		if err := c.frames.fill(); err != nil {
			var timeout net.Error
			if errors.As(err, &timeout) && timeout.Timeout() && p.finished.Load() {
				continue
			}
			return err
		}
		now := p.r.clock.now()
		for {
			ok, more, err := answer(c.conn, c.frames)
			if err != nil {
				return err
			}
			if ok {
				if err := c.answered(&p.r.clock, now, p.r.cfg.Batch); err != nil {
					return err
				}
			}
			if !more {
				break
			}
		}
	}
}

func (c *paced) answered(clock *clock, now int64, batch int) error {
	head := c.ring.head.Load()
	if head == c.ring.tail.Load() {
		return errors.New("the server sent more answers than there were commands")
	}
	c.meter.record(clock, now, c.ring.intended[head%int64(len(c.ring.intended))], 1, batch)
	c.ring.head.Store(head + 1)
	return nil
}

// preciseSleep gives the calling goroutine a thread whose sleeps end in time, until release is called.
func preciseSleep() (release func()) {
	runtime.LockOSThread()
	// The default slack of a sleep is 50 µs. If it cannot be changed, sleeps are slightly late.
	_ = unix.Prctl(unix.PR_SET_TIMERSLACK, 1, 0, 0, 0)
	return runtime.UnlockOSThread
}

// sleep blocks the calling thread for ns nanoseconds.
func sleep(ns int64) {
	if ns <= 0 {
		return
	}
	t := unix.NsecToTimespec(ns)
	_ = unix.Nanosleep(&t, nil) // may return early because of a signal: the caller checks the clock again
}
