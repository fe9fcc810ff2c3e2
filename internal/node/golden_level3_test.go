//go:build golden

package node_test

import (
	"fmt"

	"penstock/batch"
	"penstock/internal/node"
	"penstock/segment"
)

func init() {
	goldenLater = append(goldenLater, (*golden).produced)
	goldenTopics = append(goldenTopics, "produced")
}

// produced publishes as a producer with a name and as one without.
func (f *golden) produced() error {
	t, err := f.topic("produced")
	if err != nil {
		return err
	}
	if _, err := f.channel(t, "c"); err != nil {
		return err
	}
	for _, name := range []string{"loader", ""} {
		if err := goldenUntil(f.ctx, "producing", func() error { return f.produce(name) }); err != nil {
			return err
		}
	}
	return nil
}

// produce opens a producer at the node that leads the partition, and stores ten batches.
func (f *golden) produce(name string) (err error) {
	for _, e := range f.g.engines {
		t, ok := e.Catalog().LookupTopic("produced")
		if !ok {
			continue
		}
		var p node.Producer
		if p, err = t.OpenProducer(f.ctx, 0, name); err != nil {
			continue
		}
		for i := range uint32(10) {
			b := batch.Builder{ProducerID: p.ID, ProducerEpoch: p.Epoch, BaseSequence: p.Sequence + i}
			if err := b.Add(&segment.Record{Body: fmt.Appendf(nil, "%q %d", name, i)}); err != nil {
				return err
			}
			batch, err := b.Seal(1)
			if err != nil {
				return err
			}
			if _, err := publishSealed(f.ctx, t, batch); err != nil {
				return err
			}
		}
		return nil
	}
	return err
}
