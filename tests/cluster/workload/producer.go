package workload

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
	"time"

	"penstock/tests/cluster/history"
)

// Producer publishes until it is stopped, over one connection at a time. When that ends or does not answer, what is
// open is unknown and the next address is tried.
type Producer struct {
	Name          string
	Addresses     []string      // the first one is tried first
	Window        int           // publishes under way at once; default 1
	Batch         int           // values in one MPUB; default 1: PUB
	PerSecond     int           // publishes; default 500
	BodyBytes     int           // default 100
	AnswerTimeout time.Duration // default 5 s
}

func (p *Producer) setDefaults() {
	for _, d := range []struct {
		field  *int
		preset int
	}{{&p.Window, 1}, {&p.Batch, 1}, {&p.PerSecond, 500}, {&p.BodyBytes, 100}} {
		if *d.field == 0 {
			*d.field = d.preset
		}
	}
	if p.AnswerTimeout == 0 {
		p.AnswerTimeout = 5 * time.Second
	}
}

// Pauses between attempts to connect.
const (
	firstPause = 10 * time.Millisecond
	lastPause  = 200 * time.Millisecond
)

// Produce starts a producer.
func (r *Run) Produce(p Producer) {
	p.setDefaults()
	r.producers.run(func(ctx context.Context) {
		s := &sender{Run: r, Producer: p, pace: pace{next: time.Now(), interval: time.Second / time.Duration(p.PerSecond)}}
		s.run(ctx)
	})
}

// pace spreads publishes over time. What could not be sent in time is left out, not caught up with.
type pace struct {
	next     time.Time
	interval time.Duration
}

func (p *pace) wait(ctx context.Context) bool {
	if late := time.Since(p.next); late > 50*time.Millisecond {
		p.next = time.Now()
	}
	d := time.Until(p.next)
	p.next = p.next.Add(p.interval)
	if d <= 0 {
		return ctx.Err() == nil
	}
	return pause(ctx, d)
}

func pause(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}

// sender is a running producer.
type sender struct {
	*Run
	Producer
	pace pace
	seq  uint64
	conn uint64
}

// sent is a publish whose answer is open.
type sent struct {
	seq uint64
	at  time.Time
}

func (s *sender) run(ctx context.Context) {
	wait := firstPause
	for at := 0; ctx.Err() == nil; at++ {
		address := s.Addresses[at%len(s.Addresses)]
		c, err := dial(ctx, address)
		if err != nil {
			if ctx.Err() != nil {
				return
			}
			// The attempt is recorded as a publish that failed for certain, so that the history shows who was not served.
			seq := s.begin(0, address)
			s.end(seq, history.Fail, NoConnection)
			pause(ctx, wait)
			wait = min(2*wait, lastPause)
			continue
		}
		wait = firstPause
		s.conn++
		s.add(history.Event{Client: s.Name, Op: history.Open, Conn: s.conn, Node: address})
		s.serve(ctx, c, address)
		s.add(history.Event{Client: s.Name, Op: history.Close, Conn: s.conn, Node: address})
	}
}

// begin records a publish and returns its number.
func (s *sender) begin(conn uint64, address string) uint64 {
	seq := s.seq + 1
	s.seq += uint64(s.Batch)
	s.tally.send(s.Name, seq, uint64(s.Batch))
	s.add(history.Event{
		Client: s.Name, Op: history.Publish, Topic: s.Topic, Seq: seq, Count: uint64(s.Batch), Conn: conn, Node: address,
	})
	return seq
}

func (s *sender) end(seq uint64, op history.Op, class string) {
	s.tally.answer(s.Name, seq, uint64(s.Batch), op == history.OK)
	s.add(history.Event{Client: s.Name, Op: op, Seq: seq, Detail: class})
}

// serve publishes over one connection until it fails or ctx ends, and gives every publish its outcome.
func (s *sender) serve(ctx context.Context, c *conn, address string) {
	open := make(chan sent, s.Window)
	slots := make(chan struct{}, s.Window)
	failed := make(chan struct{})
	var writing sync.WaitGroup
	writing.Go(func() {
		defer close(open)
		s.write(ctx, c, address, open, slots, failed)
	})
	err := s.read(c, open, slots)
	close(failed)
	_ = c.Close() // whoever writes sees it
	for o := range open {
		s.end(o.seq, history.Unknown, classOf(err))
	}
	writing.Wait()
}

// write sends while there is room in the window.
func (s *sender) write(
	ctx context.Context, c *conn, address string, open chan<- sent, slots chan<- struct{}, failed <-chan struct{},
) {
	for s.pace.wait(ctx) {
		select {
		case slots <- struct{}{}:
		case <-failed:
			return
		case <-ctx.Done():
			return
		}
		seq := s.begin(s.conn, address)
		open <- sent{seq, time.Now()} // before it is on its way: the answer must find it
		c.mu.Lock()
		s.command(c, seq)
		_ = c.SetWriteDeadline(time.Now().Add(s.AnswerTimeout))
		err := c.flush()
		c.mu.Unlock()
		if err != nil {
			_ = c.Close() // the reader gives the open ones their outcome
			return
		}
	}
}

func (s *sender) command(c *conn, seq uint64) {
	if s.Batch == 1 {
		c.command("PUB "+s.Topic, history.Body(s.Name, seq, s.BodyBytes))
		return
	}
	body := binary.BigEndian.AppendUint32(nil, uint32(s.Batch))
	for i := range uint64(s.Batch) {
		b := history.Body(s.Name, seq+i, s.BodyBytes)
		body = binary.BigEndian.AppendUint32(body, uint32(len(b)))
		body = append(body, b...)
	}
	c.command("MPUB "+s.Topic, body)
}

// errAnswer says that the server answered with an error, behind which it closes the connection.
var errAnswer = errors.New("an error was answered")

// read takes the answers in order. It returns why it ended: nil when the writer is done and everything was answered.
func (s *sender) read(c *conn, open <-chan sent, slots <-chan struct{}) error {
	for o := range open {
		err := s.answer(c, o)
		if err != nil {
			if !errors.Is(err, errAnswer) {
				s.end(o.seq, history.Unknown, classOf(err))
			}
			return err
		}
		<-slots
	}
	return nil
}

func (s *sender) answer(c *conn, o sent) error {
	for {
		if err := c.SetReadDeadline(o.at.Add(s.AnswerTimeout)); err != nil {
			return err
		}
		kind, data, err := c.frame()
		if err != nil {
			return err
		}
		switch {
		case kind == frameResponse && string(data) == heartbeat:
			c.mu.Lock()
			c.command("NOP", nil)
			err := c.flush()
			c.mu.Unlock()
			if err != nil {
				return err
			}
		case kind == frameResponse && string(data) == "OK":
			s.end(o.seq, history.OK, "")
			return nil
		case kind == frameError && definite(string(data)):
			s.end(o.seq, history.Fail, string(data))
			return errAnswer
		default:
			s.end(o.seq, history.Unknown, fmt.Sprintf("frame %d %q", kind, data))
			return errAnswer
		}
	}
}
