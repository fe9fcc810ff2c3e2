package topic

import (
	"cmp"
	"context"
	"slices"
	"time"

	"penstock/internal/node/errs"
	"penstock/internal/node/fold"
	"penstock/internal/node/partition"
	"penstock/replicate/wire"
)

// Producers returns the producers with a name that the partitions know, sorted by name, owner and partition; with a
// name only the one that KnownProducer.Name has so. It returns ErrClosed, and in a cluster ErrNoLeader.
func (t *Topic) Producers(ctx context.Context, name string) (wire.ProducerList, error) {
	if t.env.Closed() {
		return wire.ProducerList{}, errs.ErrClosed
	}
	var all wire.ProducerList
	op := wire.Operation{Kind: wire.OpProducers, Producer: name, Count: fold.MaxProducerCount}
	err := t.onLeaders(ctx, op, nil, func(result []byte) error {
		var some wire.ProducerList
		err := wire.DecodeResult(result, &some)
		all.Producers = append(all.Producers, some.Producers...)
		all.Nameless += some.Nameless
		all.More = all.More || some.More
		return err
	})
	trimProducers(&all, fold.MaxProducerCount)
	return all, err
}

// trimProducers sorts the list and keeps so many rows.
func trimProducers(l *wire.ProducerList, most int) {
	slices.SortFunc(l.Producers, func(a, b wire.KnownProducer) int {
		return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.Owner, b.Owner), cmp.Compare(a.Partition, b.Partition))
	})
	if len(l.Producers) > most {
		l.Producers, l.More = l.Producers[:most], true
	}
}

// knownProducers returns the producers that a log knows by their names, and the number of the others.
func knownProducers(pt *partition.Partition) (named []fold.KnownProducer, nameless int) {
	pt.ReadFold(func(now *fold.Cursors) { named, nameless = now.KnownProducers() })
	return named, nameless
}

// producersLocal executes OpProducers.
func (l *Local) producersLocal(op wire.Operation) wire.ProducerList {
	var all wire.ProducerList
	for _, n := range op.Partitions {
		named, nameless := knownProducers(l.t.PartitionList()[n])
		all.Nameless += nameless
		for i := range named {
			p := &named[i]
			if name := p.Shown(); op.Producer == "" || name == op.Producer {
				all.Producers = append(all.Producers, wire.KnownProducer{
					Name: name, Owner: p.Owner, Partition: n, Epoch: p.Epoch, Tenure: p.Tenure, Sequence: p.Next,
					Used: time.Unix(0, p.UsedNs).UTC(),
				})
			}
		}
	}
	trimProducers(&all, min(max(op.Count, 1), fold.MaxProducerCount))
	return all
}

// RemoveProducer makes all partitions forget the producers of this name (KnownProducer.Name), whosever they are, and
// returns how many that were. What such a producer sends afterwards is refused with ErrUnknownProducer, and when it is
// opened again, it begins with number 0: a message of before that it sends again is stored twice. So it is for names
// that no program uses any more. RemoveProducer returns ErrNoProducer if no partition knows the name, ErrProducerLevel,
// ErrDeleted, and in a cluster ErrNoLeader: then it may have been removed in some partitions; repeat it.
func (t *Topic) RemoveProducer(ctx context.Context, name string) (removed int, err error) {
	switch {
	case t.env.Closed():
		return 0, errs.ErrClosed
	case name == "":
		return 0, errs.ErrNoProducer
	case t.env.level() < fold.ProducerRemoved.Level():
		return 0, errs.ErrProducerLevel
	}
	op := wire.Operation{Kind: wire.OpRemoveProducer, Producer: name}
	err = t.onLeaders(ctx, op, nil, func(result []byte) error {
		n := 0
		err := wire.DecodeResult(result, &n)
		removed += n
		return err
	})
	if err == nil && removed == 0 {
		err = errs.ErrNoProducer
	}
	return removed, err
}

// removeProducerLocal executes OpRemoveProducer.
func (l *Local) removeProducerLocal(ctx context.Context, op wire.Operation) (removed int, err error) {
	if l.t.env.level() < fold.ProducerRemoved.Level() {
		return 0, errs.ErrProducerLevel
	}
	for _, n := range op.Partitions {
		pt := l.t.PartitionList()[n]
		named, _ := knownProducers(pt)
		var entries []fold.Control
		for i := range named {
			if named[i].Shown() == op.Producer {
				entries = append(entries, fold.Control{
					Kind: fold.ProducerRemoved, Producer: fold.ProducerOpening{ID: named[i].ID},
				})
			}
		}
		if len(entries) == 0 {
			continue
		}
		if err := pt.WriteControls(ctx, [][]fold.Control{entries}, nil); err != nil {
			return removed, err
		}
		removed += len(entries)
	}
	return removed, nil
}
