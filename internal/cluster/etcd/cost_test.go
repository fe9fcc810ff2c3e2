package etcd

import (
	"bytes"
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.etcd.io/etcd/server/v3/storage/wal"

	"penstock/internal/cluster/kv"
)

// The costs in docs/operate/scale.md: three members on this machine's disk, which flush, and clients like those of
// nodes. A row is as large as that of a partition with three replicas.

const rowBytes = 400

// flushing starts three members that flush their logs, and returns a client of each of them.
func flushing(b *testing.B) []kv.Store {
	wal.SegmentSizeBytes = 64 << 20 // as outside of tests
	c := newCluster(b, 3)
	for i := range 3 {
		o := c.options(i)
		o.UnsafeNoFsync, o.Heartbeat, o.Election = false, 100*time.Millisecond, time.Second
		m, err := Start(o)
		if err != nil {
			b.Fatal(err)
		}
		c.members[i] = m
	}
	c.ready(0, 1, 2)
	return []kv.Store{c.dial(Options{}, 0, 1, 2), c.dial(Options{}, 1, 2, 0), c.dial(Options{}, 2, 0, 1)}
}

func rows(client, from, count int) []kv.Op {
	ops := make([]kv.Op, count)
	for i := range ops {
		ops[i] = kv.Op{Key: fmt.Sprintf("/b/parts/%04d/%06d", client, from+i), Value: bytes.Repeat([]byte{'x'}, rowBytes)}
	}
	return ops
}

// BenchmarkTransactions measures transactions that compare and write so many rows, by so many callers at a time.
func BenchmarkTransactions(b *testing.B) {
	stores := flushing(b)
	for _, c := range []struct{ rows, callers int }{{1, 1}, {1, 16}, {1, 64}, {1, 256}, {50, 1}, {100, 1}} {
		b.Run(fmt.Sprintf("rows=%d/callers=%d", c.rows, c.callers), func(b *testing.B) {
			var next atomic.Int64
			var all sync.WaitGroup
			for i := range c.callers {
				all.Go(func() {
					ops := rows(i, 0, c.rows)
					var conds []kv.Cond
					for next.Add(1) <= int64(b.N) {
						ok, rev, err := stores[i%3].Txn(b.Context(), conds, ops)
						if !ok && err == nil && conds == nil || err != nil {
							b.Error(ok, err)
							return
						}
						conds = conds[:0]
						for _, op := range ops {
							conds = append(conds, kv.Cond{Key: op.Key, ModRevision: rev})
						}
					}
				})
			}
			all.Wait()
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "txn/s")
		})
	}
}

// BenchmarkKeepAlive measures how often leases can be extended, by as many clients.
func BenchmarkKeepAlive(b *testing.B) {
	stores := flushing(b)
	lease, err := stores[0].Grant(b.Context(), time.Minute)
	if err != nil {
		b.Fatal(err)
	}
	b.ResetTimer()
	for range b.N {
		if _, err := stores[0].KeepAlive(b.Context(), lease); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkFanOut measures how long it takes until so many watches have seen a burst of 1000 rows, which one caller
// writes in transactions of one row, or of fifty.
func BenchmarkFanOut(b *testing.B) {
	stores := flushing(b)
	for _, c := range []struct{ watches, rows int }{{3, 1}, {3, 50}, {30, 1}, {30, 50}, {100, 1}, {100, 50}, {300, 50}} {
		b.Run(fmt.Sprintf("watches=%d/rows=%d", c.watches, c.rows), func(b *testing.B) {
			_, rev, err := stores[0].List(b.Context(), "/b/none")
			if err != nil {
				b.Fatal(err)
			}
			ctx, cancel := context.WithCancel(b.Context())
			defer cancel()
			var left sync.WaitGroup
			var calls atomic.Int64
			for i := range c.watches {
				left.Add(1)
				seen := 0
				go func() {
					_ = stores[i%3].Watch(ctx, "/b/", rev, func(events []kv.Event, _ int64) {
						calls.Add(1)
						if seen += len(events); seen >= 1000*b.N && seen-len(events) < 1000*b.N {
							left.Done()
						}
					})
				}()
			}
			time.Sleep(time.Second) // the watches are there
			b.ResetTimer()
			for range b.N {
				var all sync.WaitGroup
				for i := range 16 {
					all.Go(func() {
						for n := i * c.rows; n < 1000; n += 16 * c.rows {
							ops := rows(0, n, min(c.rows, 1000-n))
							if ok, _, err := stores[0].Txn(b.Context(), nil, ops); !ok || err != nil {
								b.Error(ok, err)
							}
						}
					})
				}
				all.Wait()
			}
			left.Wait()
			b.ReportMetric(float64(1000*b.N*c.watches)/b.Elapsed().Seconds(), "events/s")
		})
	}
}
