package topic

import (
	"cmp"
	"context"
	"sync"

	"penstock/batch"
	"penstock/internal/node/errs"
	"penstock/internal/node/fold"
	"penstock/internal/node/inbox"
	"penstock/internal/node/message"
)

// Producer is what a producer of one partition puts into the headers of its batches.
type Producer struct {
	ID       uint64 // not 0
	Epoch    uint32
	Sequence uint32 // of the producer's next message; the first message of all has 0

	// Tenure is for HoldProducer, and not in headers. It is 0 without a name; at a feature level below 5 it is the epoch.
	Tenure uint64
}

// OpenProducer opens a producer of a partition that this node leads, and returns when that is on stable storage. A
// producer with a name keeps its ID and its sequence when it is opened again, and gets a higher epoch: from then on
// batches of earlier epochs are refused with ErrFenced. It also begins a tenure, for which the program holds the name
// in all partitions: HoldProducer opens it in the others. Without a name it is a new producer.
//
// A producer that was not used for 7 days may be forgotten, as may be the anonymous ones that were unused for the
// longest time when there are more than 4096 in the partition. A named one then begins again with sequence 0. A leader
// whose clock is wrong forgets nobody earlier than by an hour: see fold.ProducerStepNs.
//
// It returns ErrNoPartition, ErrProducerName, ErrProducerLevel, ErrTooManyProducers, ErrStateFull, ErrDeleted or
// ErrNoLeader if nothing was changed. After any other error the producer may have been opened; open it again.
func (t *Topic) OpenProducer(ctx context.Context, partition int, name string) (Producer, error) {
	o := fold.ProducerOpening{Name: name, Begins: true}
	if name != "" {
		o.Tenure = t.newTenure()
	}
	return t.openProducer(ctx, partition, o)
}

// HoldProducer is OpenProducer for a tenure that goes on: one that OpenProducer has begun in another partition, or that
// the program has made of the time (batch.NewTenure). If a later tenure has come to the
// partition, it returns a *FencedError and changes nothing. At a feature level below 5 it is OpenProducer.
func (t *Topic) HoldProducer(ctx context.Context, partition int, name string, tenure uint64) (Producer, error) {
	switch {
	case t.env.level() < fold.ProducerTaken.Level():
		return t.OpenProducer(ctx, partition, name)
	case name == "" || tenure < batch.MinTenure || tenure > batch.MaxTenure:
		return Producer{}, errs.ErrProducerTenure
	}
	return t.openProducer(ctx, partition, fold.ProducerOpening{Name: name, Tenure: tenure})
}

func (t *Topic) openProducer(ctx context.Context, partition int, o fold.ProducerOpening) (Producer, error) {
	parts, name := t.PartitionList(), o.Name
	switch {
	case partition < 0 || partition >= len(parts):
		return Producer{}, errs.ErrNoPartition
	case len(name) > fold.MaxProducerNameBytes:
		return Producer{}, errs.ErrProducerName
	case t.env.level() < fold.ProducerOpened.Level():
		return Producer{}, errs.ErrProducerLevel
	case t.shared.Deleted.Load():
		return Producer{}, errs.ErrDeleted
	}
	kind := fold.ProducerOpened
	if o.Tenure != 0 {
		kind = fold.ProducerTaken
	}
	own := &inbox.Special{Controls: []fold.Control{{Kind: kind, Producer: o}}}
	w, err := parts[partition].AppendControls(ctx, own)
	if err == nil {
		err = w.Result(t.env.Host)
	}
	if err != nil {
		return Producer{}, err
	}
	o = own.Controls[0].Producer
	if name != "" {
		o.Tenure = cmp.Or(o.Tenure, uint64(o.Epoch))
	}
	return Producer{ID: o.ID, Epoch: o.Epoch, Sequence: o.Sequence, Tenure: o.Tenure}, nil
}

// sealedPut is a put of ProduceSealed.
type sealedPut struct {
	inbox.Put
	own  inbox.Special
	done func(Produced)
}

// Produced is the answer to ProduceSealed.
type Produced struct {
	First     message.ID // of the batch's first message
	Duplicate bool       // the batch repeats one that was stored before, as First
	Lone      bool       // nothing else was answered at the same moment
	Err       error      // nothing was stored, or the outcome is open; the fields above do not count then
}

var sealedPuts = sync.Pool{New: func() any { return new(sealedPut) }}

// Sender is who sends a batch for ProduceSealed. The zero value is the program itself.
type Sender struct {
	Owner string // of the producers that it may use: see ProducerOwner; "": it has to prove nothing
	Payer string // its token or address, whose share of the node's memory the batch takes while it is verified
}

// ProduceSealed stores a batch that batch.Builder sealed, without encoding its records again, in a partition that
// this node leads; elsewhere it returns ErrNoLeader, or done gets it, and nothing was stored. The batch must hold
// messages only, without delays, and have at most Options.MaxBatchBytes bytes; a batch that does not verify is refused.
// Unless ProduceSealed returns an error, done is called exactly once, maybe before ProduceSealed returns, under the
// rules of PublishAsync; the batch is borrowed until then. alone says that the caller does nothing else until then: an
// idle single node may store the batch on the caller's goroutine, which hangs if the disk does.
//
// A batch whose header names a producer (OpenProducer) must be of the producer's present epoch, and its BaseSequence
// must be the number behind the producer's last message in the partition. If instead it repeats one of the producer's
// last 8 batches (the same BaseSequence and Count), it is not stored again: done gets the id that it was stored with,
// and Duplicate is true, when that one is committed. Anything else is refused with ErrSequence, ErrFenced or
// ErrUnknownProducer, or with ErrProducerOwner if the producer belongs to another owner than who, and not stored. So
// after an error that leaves the outcome open (ErrUnknown, ErrDisk, ErrClosed), sending the same batch again stores it
// exactly once.
func (t *Topic) ProduceSealed(who Sender, partition int, batch []byte, alone bool, done func(Produced)) error {
	if done == nil {
		return errNil("the function that ProduceSealed calls")
	}
	parts := t.PartitionList()
	if partition < 0 || partition >= len(parts) {
		return errs.ErrNoPartition
	}
	p := sealedPuts.Get().(*sealedPut)
	if p.Done == nil {
		p.Done = p.onDone
	}
	p.own.Sealed, p.own.Owner, p.own.Payer, p.done = batch, who.Owner, who.Payer, done
	p.Kind, p.Special, p.Forwarded = inbox.Sealed, &p.own, true
	p.Alone = alone
	err := t.submit(context.Background(), &p.Put, parts[partition])
	if err != nil {
		p.free()
	}
	return err
}

// onDone hands the answer to the caller's done and frees the put.
func (p *sealedPut) onDone(*inbox.Put) {
	done, answer := p.done, Produced{First: p.First, Duplicate: p.own.Repeat && p.Err == nil, Lone: p.Lone, Err: p.Err}
	p.free()
	done(answer)
}

func (p *sealedPut) free() {
	put := p.Done
	*p = sealedPut{}
	p.Done = put
	sealedPuts.Put(p)
}
