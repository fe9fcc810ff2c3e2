package partition

import (
	"encoding/binary"

	"penstock/batch"
	"penstock/internal/node/errs"
	"penstock/internal/node/fold"
	"penstock/internal/node/inbox"
	"penstock/internal/node/seal"
	"penstock/segment"
)

// The fold decides about the batches of producers (fold.Cursors.JudgeBatch), at the place where they would be
// appended: it knows everything in the log by then, committed or not. After a crash, and on every other node, the fold
// of the same log gives the same answers.

// judge asks the fold about the first put of l, which becomes a batch of a producer. It returns true if the batch must
// be appended. Otherwise it takes the put out of l, and the put is answered: with the reason for which it is refused;
// or, if it repeats a batch in the log, with the id of that batch, once that batch is committed. Replica.mu is held.
func (c *committer) judge(pt *Partition, l *inbox.List) (wanted bool) {
	p := l.First()
	h := &p.Special.Header
	var first segment.MsgID
	var repeat bool
	var err error
	if p.Kind == inbox.Numbered {
		h.Count, h.BodyCRC = uint32(len(p.Messages)), 0
		first, repeat, err = pt.fold.JudgeNamed(p.Special.Producer, p.Special.Tenure, h)
		if repeat {
			h.BodyCRC = seal.SumOf(p)
			first, repeat, err = pt.fold.JudgeBatch(h)
		}
	} else if err = fold.ErrProducerOwner; pt.fold.OwnsProducer(h.ProducerID, p.Special.Owner) {
		first, repeat, err = pt.fold.JudgeBatch(h)
	}
	switch {
	case err != nil:
		inbox.Answer(l.Pop(), err)
	case repeat:
		l.Pop()
		p.First, p.Special.Repeat = batch.MakeID(pt.number, first), true
		switch end := first + segment.MsgID(h.Count); {
		case uint64(end) <= pt.visible.Load():
			pt.replica.out.done.Push(p)
		case !pt.replica.pending.Join(end, p):
			inbox.Answer(p, errs.ErrUnknown)
		}
	default:
		return true
	}
	return false
}

// refusesProducer returns why the entry that opens a producer must not be stored, or nil. The entry is alone in its
// batch. A producer that is known by its name adds nothing to the state, so the state's limits do not refuse it.
func (c *committer) refusesProducer(pt *Partition, controls []fold.Control) error {
	if len(controls) != 1 || controls[0].Kind != fold.ProducerOpened && controls[0].Kind != fold.ProducerTaken {
		return nil
	}
	name := controls[0].Producer.Name
	if pt.fold.KnowsProducer(name) {
		return pt.fold.RefusesTenure(&controls[0].Producer)
	}
	if pt.fold.IsForeignProducer(name) {
		return fold.ErrProducerOwner
	}
	if n := pt.fold.OwnedProducers(name, c.stampNs(pt)); n >= fold.MaxOwnedProducers {
		return &errs.LimitError{
			Err: errs.ErrProducerShare, Value: n + 1, Most: fold.MaxOwnedProducers,
			What: "with this one the number of producers' names of this token in the partition",
		}
	}
	if !pt.fold.HasRoomForProducer(name, c.stampNs(pt)) {
		return &errs.LimitError{
			Err: fold.ErrTooManyProducers, Value: pt.fold.ProducerCount() + 1, Most: fold.MaxProducerCount,
			What: "with this one the number of producers that the partition knows",
		}
	}
	return pt.RefusesProducer(pt.fold, pt.machine.State().End)
}

// secret returns a random number for FillOpening.
func (c *committer) secret() uint64 {
	random := c.store.host.NewUUID()
	return binary.LittleEndian.Uint64(random[:8])
}

// ProducerCount returns the number of producers that the log knows. Any goroutine may call it.
func (pt *Partition) ProducerCount() int { return int(pt.producerCount.Load()) }
