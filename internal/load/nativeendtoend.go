package load

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"penstock/client"
)

// endToEndInFlight is how many messages of one connection may be on their way in an end-to-end run.
const endToEndInFlight = 1 << 14

// endToEndNative is EndToEnd over the native protocol: producers at a steady rate, and one consumer, which is a client
// of its own.
func endToEndNative(ctx context.Context, cfg Config) (*Report, error) {
	cfg.InFlight = endToEndInFlight
	ctx, r, producers, err := openNative(ctx, &cfg)
	if err != nil {
		return nil, err
	}
	defer r.close()
	c, err := r.dialNative(ctx, client.Hooks{})
	if err != nil {
		return nil, err
	}
	k, err := c.Consumer(ctx, cfg.Topic, cfg.Channel, client.ConsumerOptions{
		MaxInFlight: cfg.Ready, From: client.FromOldest(),
	})
	if err != nil {
		return nil, err
	}
	a := newArrivals(r)
	for _, p := range producers {
		p.arrivals = a
	}
	report := newReport(&cfg, "e2e")
	r.start()
	got, again := newMeter(1), int64(0)
	var stop atomic.Bool
	var consuming, publishing sync.WaitGroup
	consuming.Go(func() {
		if err := r.arrive(ctx, k, a, got, &again, &stop); err != nil {
			r.faults.add(err)
		}
	})
	publishing.Go(func() { r.paceNative(ctx, producers) })
	r.await(ctx, &publishing)
	r.drain(ctx, got)
	stop.Store(true)
	consuming.Wait()
	report.finish(r, []*meter{got})
	report.Redelivered = again
	report.arrived(r, a)
	r.close() // the hooks have returned, too
	report.batches(producers)
	return report, r.failure()
}

// arriveEvery is how often the consumer of an end-to-end run looks whether it is to stop.
const arriveEvery = 20 * time.Millisecond

// arrive measures and finishes what the consumer gets, until stop.
func (r *run) arrive(
	ctx context.Context, k *client.Consumer, a *arrivals, m *meter, again *int64, stop *atomic.Bool,
) error {
	for !stop.Load() {
		brief, cancel := context.WithTimeoutCause(ctx, arriveEvery, errNothing)
		batch, err := k.Batch(brief, takeCount)
		cancel()
		if errors.Is(err, errNothing) {
			continue
		}
		if err != nil {
			return err
		}
		now := r.clock.now()
		for i := range batch {
			if batch[i].Attempts > 1 {
				*again++
			}
			a.add(now, batch[i].Body)
		}
		if err := batch[len(batch)-1].FinishThrough(); err != nil {
			return fmt.Errorf("finishing: %w", err)
		}
		m.done.Store(m.done.Load() + int64(len(batch)))
		if now >= r.clock.warmUp {
			m.measured, m.last = m.measured+int64(len(batch)), now
		}
	}
	return k.Sync(ctx)
}
