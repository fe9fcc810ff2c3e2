package topic

import (
	"cmp"
	"context"
	"encoding/binary"
	"unicode/utf8"

	"penstock/batch"
	"penstock/internal/node/errs"
	"penstock/internal/node/fold"
	"penstock/internal/node/inbox"
	"penstock/replicate/wire"
)

// Clients of NSQ's cannot seal batches, and do not know who leads a partition. They publish as a producer by naming it
// beside their messages, through any node: the leader finds the producer by its name, and the rules of ProduceSealed
// hold for each put as for a batch.

// Numbered says which messages of a named producer a Put has. It is borrowed until the Put's Done is called, and may
// then be used again.
type Numbered struct {
	Name     []byte // of the producer, 1 to 255 bytes; borrowed, too
	Tenure   uint64 // as OpenNamed gave it
	Sequence uint32 // of the put's first message; the others follow

	own inbox.Special
}

// Duplicate says whether the messages of the put had been stored before. It is known after an answer without an error,
// and only if this node leads the partition: otherwise it is false.
func (n *Numbered) Duplicate() bool { return n.own.Repeat }

// SubmitNumbered is SubmitTo for messages of a named producer, which was opened in this partition for this tenure
// (OpenNamed, HoldNamed). It works through any node. The put is a batch in the sense of ProduceSealed: it is stored if
// Sequence is the number behind the producer's last message in the partition; if it repeats one of the producer's last
// 8 puts there (the same sequence, number of messages and, from feature level 5 on, content), it is not stored again,
// and Put.First is the id of then; anything else is refused with ErrSequence, ErrFenced or ErrUnknownProducer, and not
// stored. An ErrSequence is a *SequenceError, which tells the number that is expected, unless an older version leads.
// So after an error that leaves the outcome open (ErrUnknown, ErrDisk, ErrClosed) the same put with the same sequence
// is stored exactly once. At most 8 puts of a producer should be on their way to a partition at a time.
//
// Besides the errors of SubmitTo it returns ErrProducerName and ErrProducerLevel.
func (t *Topic) SubmitNumbered(partition int, p *inbox.Put, n *Numbered) error {
	if p == nil || p.Done == nil || n == nil {
		return errNil("the Put, its Done, or what numbers it")
	}
	parts := t.PartitionList()
	switch {
	case partition < 0 || partition >= len(parts):
		return errs.ErrNoPartition
	case len(n.Name) == 0 || len(n.Name) > fold.MaxProducerNameBytes:
		return errs.ErrProducerName
	case t.env.level() < fold.ProducerOpened.Level():
		return errs.ErrProducerLevel
	}
	n.own = inbox.Special{Producer: n.Name, Tenure: n.Tenure}
	n.own.Header.BaseSequence = n.Sequence
	p.Kind, p.Special = inbox.Numbered, &n.own
	return t.submit(context.Background(), p, parts[partition])
}

// OpenNamed begins a new tenure of a producer's name in a partition, through any node: the partition's leader opens the
// producer. Producer.Tenure is what SubmitNumbered needs. If the leader changes meanwhile, the producer may be opened
// twice. The name must be UTF-8, because nodes tell it each other as JSON.
func (t *Topic) OpenNamed(ctx context.Context, partition int, name string) (Producer, error) {
	return t.openNamed(ctx, partition, wire.Operation{Producer: name, Tenure: t.newTenure(), Flag: true})
}

// HoldNamed opens the producer in a partition, too, for a tenure that OpenNamed has begun in another one, or goes on
// after the partition has forgotten the producer or lost messages. It returns ErrFenced, and changes nothing, if a
// later tenure has come to the partition. Otherwise whoever has opened the name for an earlier tenure is fenced there.
func (t *Topic) HoldNamed(ctx context.Context, partition int, name string, tenure uint64) (Producer, error) {
	if tenure < batch.MinTenure || tenure > batch.MaxTenure || t.env.level() < fold.ProducerTaken.Level() {
		return Producer{}, errs.ErrProducerTenure
	}
	return t.openNamed(ctx, partition, wire.Operation{Producer: name, Tenure: tenure})
}

func (t *Topic) openNamed(ctx context.Context, partition int, op wire.Operation) (Producer, error) {
	switch name := op.Producer; {
	case partition < 0 || partition >= t.Partitions():
		return Producer{}, errs.ErrNoPartition
	case name == "" || len(name) > fold.MaxProducerNameBytes || !utf8.ValidString(name):
		return Producer{}, errs.ErrProducerName
	case t.env.level() < fold.ProducerOpened.Level():
		return Producer{}, errs.ErrProducerLevel
	}
	op.Kind = wire.OpOpenProducer
	var p wire.ProducerOpened
	err := t.onLeaders(ctx, op,
		func(n uint32) bool { return n == uint32(partition) },
		func(result []byte) error { return wire.DecodeResult(result, &p) })
	return Producer{ID: p.ID, Epoch: p.Epoch, Sequence: p.Sequence, Tenure: cmp.Or(p.Tenure, uint64(p.Epoch))}, err
}

// newTenure returns the number of a tenure that begins now; 0: the feature level has none. Those that begin at this
// node rise, also within a millisecond.
func (t *Topic) newTenure() uint64 {
	if t.env.level() < fold.ProducerTaken.Level() {
		return 0
	}
	random, ms := t.env.Host.NewUUID(), int64(0)
	for {
		last := t.env.tenureMs.Load()
		if ms = max(t.env.Now().UnixMilli(), last+1); t.env.tenureMs.CompareAndSwap(last, ms) {
			break
		}
	}
	return batch.NewTenure(ms, binary.LittleEndian.Uint64(random[:8]))
}

// openProducerLocal executes OpOpenProducer.
func (l *Local) openProducerLocal(ctx context.Context, op wire.Operation) (*wire.ProducerOpened, error) {
	if len(op.Partitions) != 1 || op.Producer == "" {
		return nil, errs.ErrUnknown
	}
	p, err := l.t.openProducer(ctx, int(op.Partitions[0]), fold.ProducerOpening{
		Name: op.Producer, Tenure: op.Tenure, Begins: op.Flag,
	})
	if err != nil {
		return nil, err
	}
	return &wire.ProducerOpened{ID: p.ID, Epoch: p.Epoch, Sequence: p.Sequence, Tenure: p.Tenure}, nil
}
