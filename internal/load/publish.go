package load

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
)

// maxBlockBytes bounds the bytes of one write call of a publisher, unless a single command is larger.
const maxBlockBytes = 256 << 10

// Publish measures PUB or MPUB, or a native producer. In a closed loop the latency is the time from the write call to
// the OK, in an open loop the time from the intended time of sending to the OK.
func Publish(ctx context.Context, cfg Config) (*Report, error) {
	if err := cfg.check(); err != nil {
		return nil, err
	}
	if cfg.Native != nil {
		return publishNative(ctx, cfg)
	}
	r, frames, err := open(ctx, &cfg)
	if err != nil {
		return nil, err
	}
	defer r.close()
	report := newReport(&cfg, "pub")
	r.start()
	if cfg.Rate > 0 {
		r.publishOpen(ctx, frames)
	} else {
		r.publishClosed(ctx, frames)
	}
	report.finish(r, r.meters)
	report.latency("ack", r.meters)
	return report, r.failure()
}

// failure returns the error that determines the exit code of a run, or nil.
func (r *run) failure() error {
	if n, first := r.faults.state(); first != nil {
		return fmt.Errorf("%d errors, the first: %w", n, first)
	}
	return nil
}

func (r *run) publishClosed(ctx context.Context, frames []*frameReader) {
	var wg sync.WaitGroup
	if r.cfg.crowded() {
		r.goCrowd(&wg, frames)
		r.await(ctx, &wg)
		return
	}
	for i, conn := range r.conns {
		p := newPublisher(r, conn, frames[i], r.meters[i])
		wg.Go(func() {
			if err := p.loop(); err != nil {
				r.faults.add(err)
			}
		})
	}
	r.await(ctx, &wg)
}

// sending is one write call, with count commands that were sent at the same time.
type sending struct {
	at    int64
	count int
}

// publisher is one connection of a closed loop. Commands are encoded only once: block holds perBlock copies.
type publisher struct {
	r            *run
	conn         io.Writer
	frames       *frameReader
	meter        *meter
	block        []byte
	commandBytes int
	perBlock     int
	sent         []sending // ring of the writes that wait for answers, oldest at head
	head, used   int
	outstanding  int  // number of unanswered commands; the sum of sent
	stopped      bool // no more commands are sent
	idle         bool // stopped, and every answer has arrived
}

func newPublisher(r *run, conn io.Writer, frames *frameReader, m *meter) *publisher {
	cmd := appendPub(nil, r.cfg.Topic, headersJSON(r.cfg.Headers), body(r.cfg.SizeBytes), r.cfg.Batch)
	per := min(max(maxBlockBytes/len(cmd), 1), r.cfg.InFlight)
	p := &publisher{r: r, conn: conn, frames: frames, meter: m, commandBytes: len(cmd), perBlock: per}
	for range per {
		p.block = append(p.block, cmd...)
	}
	p.sent = make([]sending, r.cfg.InFlight)
	return p
}

// loop keeps the window full until time or messages run out, and then waits for the last answers.
func (p *publisher) loop() error {
	for {
		if err := p.refill(); err != nil || p.outstanding == 0 {
			return err
		}
		if err := p.receive(); err != nil {
			return err
		}
	}
}

// refill sends as many commands as the window has room for.
func (p *publisher) refill() error {
	for !p.stopped && p.outstanding < p.r.cfg.InFlight {
		more, err := p.send()
		if err != nil {
			return err
		}
		p.stopped = !more
	}
	return nil
}

// send writes as many commands as fit into both the window and one block. It returns false when no more may be sent.
func (p *publisher) send() (bool, error) {
	now := p.r.clock.now()
	if p.r.clock.over(now) {
		return false, nil
	}
	want := min(p.r.cfg.InFlight-p.outstanding, p.perBlock)
	n := p.r.budget.take(want*p.r.cfg.Batch) / p.r.cfg.Batch
	if n == 0 {
		return false, nil
	}
	p.sent[(p.head+p.used)%len(p.sent)] = sending{now, n}
	p.used++
	p.outstanding += n
	_, err := p.conn.Write(p.block[:n*p.commandBytes])
	return true, err
}

// receive waits for at least one answer, and takes all that have arrived.
func (p *publisher) receive() error {
	if err := p.frames.fill(); err != nil {
		return err
	}
	now := p.r.clock.now()
	answers := 0
	for {
		ok, more, err := answer(p.conn, p.frames)
		if err != nil {
			return err
		}
		if ok {
			answers++
		}
		if !more {
			break
		}
	}
	return p.settle(now, answers)
}

// settle removes answers from the ring, oldest first, because NSQ answers in order.
func (p *publisher) settle(now int64, answers int) error {
	if answers > p.outstanding {
		return errors.New("the server sent more answers than there were commands")
	}
	p.outstanding -= answers
	for answers > 0 {
		s := &p.sent[p.head]
		n := min(answers, s.count)
		p.meter.record(&p.r.clock, now, s.at, n, p.r.cfg.Batch)
		s.count -= n
		answers -= n
		if s.count == 0 {
			p.head = (p.head + 1) % len(p.sent)
			p.used--
		}
	}
	return nil
}

// answer handles the next buffered frame of a publishing connection: an OK, a heartbeat, or an error. more reports
// whether there was a frame.
func answer(conn io.Writer, f *frameReader) (ok, more bool, err error) {
	typ, data, have, err := f.next()
	switch {
	case err != nil || !have:
		return false, false, err
	case typ == frameResponse && len(data) == 2 && data[0] == 'O' && data[1] == 'K':
		return true, true, nil
	case typ == frameResponse && string(data) == string(heartbeat):
		_, err = conn.Write(nop)
		return false, true, err
	}
	return false, false, fmt.Errorf("the server answered: %s", data)
}
