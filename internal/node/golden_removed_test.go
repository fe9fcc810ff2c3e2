//go:build golden

package node_test

import (
	"penstock/batch"
	"penstock/segment"
)

func init() {
	goldenLater = append(goldenLater, (*golden).removed)
	goldenTopics = append(goldenTopics, "removed")
}

// removed publishes, and removes a producer's name.
func (f *golden) removed() error {
	t, err := f.topic("removed")
	if err != nil {
		return err
	}
	if _, err := f.channel(t, "c"); err != nil {
		return err
	}
	b := batch.Builder{}
	if err := b.Add(&segment.Record{Body: []byte("removed 0")}); err != nil {
		return err
	}
	batch, err := b.Seal(1)
	if err != nil {
		return err
	}
	return goldenUntil(f.ctx, "removing a producer", func() error {
		if _, err := t.OpenNamed(f.ctx, 0, "gone"); err != nil {
			return err
		}
		if _, err := publishSealed(f.ctx, t, batch); err != nil {
			return err
		}
		_, err := t.RemoveProducer(f.ctx, "gone")
		return err
	})
}
