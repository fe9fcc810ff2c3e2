package load

import (
	"context"
	"errors"
	"sync"

	"penstock/client"
)

// takeCount is how many deliveries a native consumer takes at once, and finishes with one FinishThrough.
const takeCount = 1024

// consumeNative is Consume over the native protocol. Each connection takes what is there, at most takeCount messages,
// and finishes all of them through the last one. Ready is its MaxInFlight.
func consumeNative(ctx context.Context, cfg Config) (*Report, error) {
	r := &run{cfg: &cfg, budget: newBudget(0)}
	defer r.close()
	ctx, r.cancel = context.WithCancel(ctx)
	var consumers []*client.Consumer
	for range cfg.Connections {
		c, err := r.dialNative(ctx, client.Hooks{})
		if err != nil {
			return nil, err
		}
		if cfg.Fill && len(consumers) == 0 {
			if err := fillNative(ctx, cfg); err != nil {
				return nil, err
			}
		}
		k, err := c.Consumer(ctx, cfg.Topic, cfg.Channel, client.ConsumerOptions{
			MaxInFlight: cfg.Ready, From: client.FromOldest(),
		})
		if err != nil {
			return nil, err
		}
		consumers = append(consumers, k)
		r.meters = append(r.meters, newMeter(cfg.Connections))
	}
	report := newReport(&cfg, "sub")
	r.start()
	var wg sync.WaitGroup
	again := make([]int64, len(consumers))
	for i, k := range consumers {
		wg.Go(func() {
			if err := r.takeAll(ctx, k, r.meters[i], &again[i]); err != nil {
				r.faults.add(err)
			}
		})
	}
	r.await(ctx, &wg)
	report.finish(r, r.meters)
	for _, n := range again {
		report.Redelivered += n
	}
	return report, r.failure()
}

// takeAll consumes until all messages have arrived, the time is over, or none has come for idleAfter.
func (r *run) takeAll(ctx context.Context, k *client.Consumer, m *meter, again *int64) error {
	batch := make([]client.Delivery, 0, takeCount)
	for {
		brief, cancel := context.WithTimeoutCause(ctx, idleAfter, errNothing)
		var err error
		batch, err = k.AppendBatch(brief, batch[:0], takeCount)
		cancel()
		if errors.Is(err, errNothing) {
			break
		}
		if err != nil {
			return err
		}
		for i := range batch {
			if batch[i].Attempts > 1 {
				*again++
			}
		}
		if err := batch[len(batch)-1].FinishThrough(); err != nil {
			return err
		}
		now := r.clock.now()
		m.done.Store(m.done.Load() + int64(len(batch)))
		if now >= r.clock.warmUp {
			m.measured, m.last = m.measured+int64(len(batch)), now
		}
		if r.clock.over(now) || r.cfg.Messages > 0 && r.done() >= r.cfg.Messages {
			break
		}
	}
	return k.Sync(ctx)
}
