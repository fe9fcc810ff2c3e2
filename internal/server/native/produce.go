package native

import (
	"errors"
	"fmt"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"penstock/batch"
	"penstock/internal/node"
	"penstock/internal/server/auth"
	"penstock/internal/server/native/wire"
	"penstock/netproto"
)

// errBatch is wrapped by errors of batches that the engine refuses to take.
var errBatch = errors.New("native: the batch is refused")

// maxOpeningCount bounds the producers that one connection opens at a time. A further one is answered StatusFull.
const maxOpeningCount = 256

// serveOpenProducer opens a producer, on a goroutine of its own: that waits for a commit, which may take long in one
// partition and must not hold up the others.
func (s *session) serveOpenProducer(t task, m *wire.OpenProducer) {
	topic, status, why := s.use(wire.TypeOpenProducer, m.Topic, auth.Publish)
	if topic != nil && s.opening.Add(1) > maxOpeningCount {
		s.opening.Add(-1)
		topic, status, why = nil, netproto.StatusFull, "too many producers are being opened; repeat it later"
	}
	if topic == nil {
		_ = s.fail(wire.TypeOpenProducer, t.request, status, why)
		s.done(&t)
		return
	}
	name := node.OwnedName(s.owner(), m.Name)
	s.srv.workers.Go(func() {
		defer s.done(&t)
		var p node.Producer
		var err error
		if at := int(min(m.Partition, math.MaxInt32)); m.Tenure != 0 {
			p, err = topic.HoldProducer(s.ctx, at, name, m.Tenure)
		} else {
			p, err = topic.OpenProducer(s.ctx, at, name)
		}
		s.opening.Add(-1) // before the answer, so that a client which has it can open the next one
		if err != nil {
			s.failed(wire.TypeOpenProducer, t.request, topic, m.Partition, err)
			return
		}
		out := wire.Producer(p)
		_ = s.answer(wire.TypeOpenProducer, t.request, netproto.StatusOK, wire.Append(nil, &out))
	})
}

// produce is a batch on its way through the engine.
type produce struct {
	s       *session
	task    task
	topic   *node.Topic
	count   *atomic.Uint64 // see session.published
	alone   bool           // see serveProduce
	payload [16]byte
	done    func(node.Produced)
}

var produces = sync.Pool{New: func() any { return new(produce) }}

// lone takes the only request of the connection out of the inbox, if it is a Produce and work is idle: its client waits
// for this answer and for nothing else. The caller has the session's turn then, and calls serveLone.
func (s *session) lone() (t task, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.serving || s.load.count != 1 || len(s.inbox) != 1 || s.inbox[0].message != nil {
		return t, false
	}
	t = s.inbox[0]
	s.inbox[0] = task{}
	s.inbox = s.inbox[:0]
	s.serving = true
	return t, true
}

// serveLone serves a Produce on the connection's reader, which saves the switch to work. On an idle single node the
// reader also writes the batch, as that of an NSQ client does; if the disk hangs, so do both.
func (s *session) serveLone(t *task) {
	s.serveProduce(t, true)
	s.mu.Lock()
	s.serving = false
	more := len(s.inbox) > 0
	s.mu.Unlock()
	if more || s.stale.Load() {
		s.rouse()
	}
}

// serveProduce passes a batch to the engine, which answers later: see produce.stored. alone: the client waits for this
// answer and for nothing else.
func (s *session) serveProduce(t *task, alone bool) {
	topic, status, why := s.use(wire.TypeProduce, t.produce.Topic, auth.Publish)
	if topic == nil {
		_ = s.fail(wire.TypeProduce, t.request, status, why)
		s.done(t)
		return
	}
	if s.produced.topic != topic {
		s.produced.topic, s.produced.count = topic, s.publishes(topic.Name())
	}
	p := produces.Get().(*produce)
	if p.done == nil {
		p.done = p.stored
	}
	p.s, p.task, p.topic, p.count, p.alone = s, *t, topic, s.produced.count, alone
	at := int(min(t.produce.Partition, math.MaxInt32))
	if err := topic.ProduceSealed(s.sender(), at, t.batch, alone, p.done); err != nil {
		if statusOf(err) == netproto.StatusInternal { // it is not a batch as it must be; nothing was stored
			err = fmt.Errorf("%w: %w", errBatch, err)
		}
		p.stored(node.Produced{Err: err})
	}
}

// publishes returns the number of a topic in published.
func (s *session) publishes(topic string) *atomic.Uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := s.published[topic]
	if n == nil {
		n = new(atomic.Uint64)
		s.published[topic] = n
	}
	return n
}

// stored answers a batch. It runs on any goroutine of the engine, which may hold locks, and does not wait.
func (p *produce) stored(a node.Produced) {
	s, t := p.s, &p.task
	if a.Err != nil {
		s.failed(wire.TypeProduce, t.request, p.topic, t.produce.Partition, a.Err)
	} else {
		out := wire.Produced{First: uint64(a.First), Duplicate: a.Duplicate}
		s.srv.meter.count(wire.TypeProduce, netproto.StatusOK)
		_, _, n, _, _ := batch.Peek(t.batch) // it was verified
		p.count.Add(uint64(n))
		if t.arrived != 0 {
			s.srv.opts.Stored(time.Since(s.srv.started) - time.Duration(t.arrived))
		}
		s.postSoon(&netproto.Frame{
			Type: wire.TypeProduced, Request: t.request, Head: wire.Append(p.payload[:0], &out),
		}, p.alone && a.Lone)
	}
	s.done(t)
	p.s, p.task, p.topic, p.count = nil, task{}, nil, nil
	produces.Put(p)
}
