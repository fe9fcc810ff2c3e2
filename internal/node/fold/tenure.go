package fold

import (
	"errors"
	"fmt"

	"penstock/batch"
	"penstock/segment"
)

// A tenure is the time during which one program holds a producer's name. Its number is the same in all partitions of a
// topic, is never used twice for a name, and a later program's is higher: it is made of the time and a random part
// (batch.NewTenure), and where it begins it is raised above the tenure that the partition knows. So whoever holds an
// older one is fenced wherever the newer one has come, also in a topic that was made anew and in a partition that was
// added. Within the log of a partition, the producer's epoch grows with each opening, as it does for producers without
// a tenure; only the epoch is in the headers of batches.
//
//	opening without a tenure    a new one begins, above the one that is known here
//	opening with the known one, or with a higher one
//	                            goes on: the answer has the number of the next message
//	opening with a lower one    FencedError
//
// Below feature level 5 there are no tenures. There an epoch takes the place of the tenure; it is lower than each of
// them.

// ErrProducerTenure says that something is no tenure.
var ErrProducerTenure = errors.New("engine: a producer goes on with a tenure that opening its name has told, which " +
	"needs feature level 5; nothing was changed, open the name without one")

// FencedError is ErrFenced with what is known of the holder.
type FencedError struct {
	Tenure uint64 // of the producer, or its epoch if it has no tenure
}

func (e *FencedError) Error() string        { return ErrFenced.Error() }
func (e *FencedError) Is(target error) bool { return target == ErrFenced }

// SequenceError is ErrSequence with the numbers.
type SequenceError struct {
	Want, Got uint32 // the number of the producer's next message in the partition, and that of the refused batch
	Other     bool   // the batch has the numbers of one that is stored, and another content
}

func (e *SequenceError) Error() string {
	why := fmt.Sprintf("the messages from %d to %d are not stored in the partition: send them again, from %d on; those "+
		"of them that were answered OK were lost, when a leader was forced that did not have them", e.Want, e.Got-1, e.Want)
	switch {
	case e.Other:
		why = fmt.Sprintf("other messages are stored under number %d, so this is no repetition of them: the messages were "+
			"meant for another partition, or two programs use the name; open the name again and number them anew", e.Got)
	case int32(e.Got-e.Want) < 0:
		why = fmt.Sprintf("messages with these numbers were stored, as part of other batches or too long ago to be "+
			"compared: go on with number %d", e.Want)
	}
	return fmt.Sprintf("engine: the partition expects message %d of the producer, and the batch begins with %d; it was "+
		"not stored. %s", e.Want, e.Got, why)
}

func (e *SequenceError) Is(target error) bool { return target == ErrSequence }

// holder is the tenure of p, or its epoch if it has none.
func (p *producer) holder() uint64 {
	if p.tenure != 0 {
		return p.tenure
	}
	return uint64(p.epoch)
}

// producerHolder returns the tenure of the producer of this name, or its epoch if it has none; 0: it is not known. Like
// KnowsProducer it searches by name: not for each message.
func (c *Cursors) producerHolder(name string) uint64 {
	if p := c.producers.named(name); p != nil {
		return p.holder()
	}
	return 0
}

// RefusesTenure returns ErrFenced if o, which is of kind ProducerTaken, goes on with a tenure that a later one has
// ended.
func (c *Cursors) RefusesTenure(o *ProducerOpening) error {
	if holder := c.producerHolder(o.Name); !o.Begins && holder > o.Tenure {
		return &FencedError{holder}
	}
	return nil
}

// fillTenure completes the tenure of o, which opens p; nil: a producer that is not known.
func fillTenure(o *ProducerOpening, p *producer) {
	if o.Tenure != 0 && p != nil && p.holder() > o.Tenure { // only if it begins
		o.Tenure = batch.TenureAbove(p.holder(), mixed(o.Tenure))
	}
}

// JudgeNamed is JudgeBatch for a batch of the producer of this name, under a tenure. It borrows name. h gets the
// producer's id and epoch. If h has no BodyCRC and the batch may repeat one, the caller sets it and calls JudgeBatch.
func (c *Cursors) JudgeNamed(name []byte, tenure uint64, h *segment.Header) (
	first segment.MsgID, repeat bool, err error,
) {
	id, _ := c.namedProducer(name) // 0 is nobody's
	i, known := c.producers.find(id)
	if !known {
		if c.IsForeignProducer(string(name)) {
			return 0, false, ErrProducerOwner
		}
		return 0, false, ErrUnknownProducer
	}
	switch p := &c.producers.all[i]; {
	case tenure < p.holder():
		return 0, false, &FencedError{p.holder()}
	case tenure > p.holder():
		return 0, false, ErrUnknownProducer // it was not opened here, or that is lost
	default:
		h.ProducerID, h.ProducerEpoch = p.id, p.epoch
	}
	return c.JudgeBatch(h)
}
