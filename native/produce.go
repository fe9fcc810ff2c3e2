package native

import (
	"errors"
	"fmt"
	"math"
	"sync"

	"penstock/engine"
	"penstock/native/wire"
	"penstock/netproto"
	"penstock/nsq/auth"
)

// errBatch is wrapped by errors of batches that the engine refuses to take.
var errBatch = errors.New("native: the batch is refused")

// serveOpenProducer opens a producer. It may wait for a commit.
func (s *session) serveOpenProducer(request uint64, m *wire.OpenProducer) {
	topic, status, why := s.use(wire.TypeOpenProducer, m.Topic, auth.Publish)
	if topic == nil {
		_ = s.fail(wire.TypeOpenProducer, request, status, why)
		return
	}
	p, err := topic.OpenProducer(s.ctx, int(min(m.Partition, math.MaxInt32)), m.Name)
	if err != nil {
		s.failed(wire.TypeOpenProducer, request, topic, m.Partition, err)
		return
	}
	out := wire.Producer(p)
	_ = s.answer(wire.TypeOpenProducer, request, netproto.StatusOK, out.AppendTo(nil))
}

// produce is a batch on its way through the engine.
type produce struct {
	s       *session
	task    task
	topic   *engine.Topic
	payload [16]byte
	done    func(engine.ID, bool, error)
}

var produces = sync.Pool{New: func() any { return new(produce) }}

// serveProduce passes a batch to the engine, which answers later: see produce.stored.
func (s *session) serveProduce(t *task) {
	topic, status, why := s.use(wire.TypeProduce, t.produce.Topic, auth.Publish)
	if topic == nil {
		_ = s.fail(wire.TypeProduce, t.request, status, why)
		s.done(t)
		return
	}
	p := produces.Get().(*produce)
	if p.done == nil {
		p.done = p.stored
	}
	p.s, p.task, p.topic = s, *t, topic
	if err := topic.ProduceSealed(int(min(t.produce.Partition, math.MaxInt32)), t.batch, p.done); err != nil {
		if statusOf(err) == netproto.StatusInternal { // it is not a batch as it must be; nothing was stored
			err = fmt.Errorf("%w: %w", errBatch, err)
		}
		p.stored(0, false, err)
	}
}

// stored answers a batch. It runs on any goroutine of the engine, which may hold locks, and does not wait.
func (p *produce) stored(first engine.ID, duplicate bool, err error) {
	s, t := p.s, &p.task
	if err != nil {
		s.failed(wire.TypeProduce, t.request, p.topic, t.produce.Partition, err)
	} else {
		out := wire.Produced{First: uint64(first), Duplicate: duplicate}
		_ = s.answer(wire.TypeProduce, t.request, netproto.StatusOK, out.AppendTo(p.payload[:0]))
	}
	s.done(t)
	p.s, p.task, p.topic = nil, task{}, nil
	produces.Put(p)
}
