package cluster

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"

	"penstock/internal/cluster/kv"
	"penstock/internal/cluster/kv/memory"
	"penstock/internal/meta"
)

// gated is a client whose transactions wait for a permission. It notes how many rows each of them writes.
type gated struct {
	*memory.Store
	t     *testing.T
	pass  chan struct{} // closed: transactions go through
	sizes []int         // the queue has one transaction under way at a time
}

func (g *gated) Txn(ctx context.Context, conds []kv.Cond, ops []kv.Op) (bool, int64, error) {
	g.sizes = append(g.sizes, len(ops))
	if len(conds) > maxTxnCount || len(ops) > maxISRCount {
		g.t.Errorf("a transaction of %d rows with %d conditions", len(ops), len(conds))
	}
	for i := range ops {
		if slices.ContainsFunc(ops[:i], func(o kv.Op) bool { return o.Key == ops[i].Key }) {
			g.t.Errorf("etcd refuses a transaction that writes %s twice", ops[i].Key)
		}
	}
	<-g.pass
	return g.Store.Txn(ctx, conds, ops)
}

// isrWorld is a store with 120 partitions, and a client that has not joined.
type isrWorld struct {
	t    *testing.T
	g    *gated
	s    *store
	rows []*partEntry
	all  sync.WaitGroup
	mu   sync.Mutex
	ok   map[int]bool // which changes were accepted; mu guards it
	errs map[int]error
}

func newISRWorld(t *testing.T) *isrWorld {
	f := newFleet(3, 1, 120)
	entries := f.entries(DefaultPrefix)
	m := memory.New(memory.Options{Entries: entries, Revision: entries[len(entries)-1].ModRevision})
	t.Cleanup(func() { m.Close() })
	g := &gated{Store: m.Store(), t: t, pass: make(chan struct{})}
	w := &isrWorld{t: t, g: g, s: New(g, Options{}).(*store), ok: map[int]bool{}, errs: map[int]error{}}
	for _, p := range stateOf(entries).snap.Partitions.All() {
		row, err := w.s.readPartition(t.Context(), p.ID)
		if err != nil {
			t.Fatal(err)
		}
		w.rows = append(w.rows, row)
	}
	return w
}

// propose lets the i-th partition's leader remove a follower, and waits until the change is under way or waits.
func (w *isrWorld) propose(ctx context.Context, i int, conds ...kv.Cond) {
	next := edit(&w.rows[i].Partition)
	next.State.ISR = next.State.ISR[:2]
	w.all.Go(func() {
		ok, err := w.s.putISR(ctx, next, w.rows[i].rev, conds)
		w.mu.Lock()
		defer w.mu.Unlock()
		w.ok[i], w.errs[i] = w.ok[i] || ok, errors.Join(w.errs[i], err)
	})
	synctest.Wait()
}

func (w *isrWorld) finish() {
	close(w.g.pass)
	w.all.Wait()
}

func (w *isrWorld) shrunk(i int) bool {
	row, err := w.s.readPartition(context.Background(), w.rows[i].ID)
	if err != nil {
		w.t.Fatal(err)
	}
	return len(row.State.ISR) == 2
}

// The first change goes at once. Those that come meanwhile go together, so many as a transaction may have. A row that
// somebody else has changed holds up none of the others.
func TestISRChangesTogether(t *testing.T) {
	for _, c := range []struct {
		name  string
		stale []int
		sizes []int
	}{
		{"none has changed", nil, []int{1, 50, 50, 19}},
		{"the first has", []int{0}, []int{1, 50, 50, 19}},
		{"one in the middle has", []int{60}, []int{1, 50, 50, 25, 12, 6, 6, 3, 3, 1, 2, 13, 25, 19}},
		{"several have", []int{3, 40, 101, 119}, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newISRWorld(t)
				for _, i := range c.stale {
					other := edit(&w.rows[i].Partition)
					op := kv.Op{Key: DefaultPrefix + partKey(partsDir, other.ID), Value: encodePartition(other)}
					if ok, _, err := w.g.Store.Txn(t.Context(), nil, []kv.Op{op}); !ok || err != nil {
						t.Fatal(ok, err)
					}
				}
				for i := range w.rows {
					w.propose(t.Context(), i)
				}
				w.finish()
				for i := range w.rows {
					want := !slices.Contains(c.stale, i)
					if w.ok[i] != want || w.errs[i] != nil || w.shrunk(i) != want {
						t.Errorf("partition %d: %t, %v, written: %t; want %t", i, w.ok[i], w.errs[i], w.shrunk(i), want)
					}
				}
				if c.sizes != nil && !slices.Equal(w.g.sizes, c.sizes) {
					t.Errorf("transactions of %v rows, want %v", w.g.sizes, c.sizes)
				}
			})
		})
	}
}

// Two changes of one row do not share a transaction, and the second one is refused. A change whose caller has given up
// is not written. Conditions are bounded, too.
func TestISRChangesApart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newISRWorld(t)
		w.propose(t.Context(), 0)
		ctx, cancel := context.WithCancel(t.Context())
		w.propose(ctx, 1)
		w.propose(t.Context(), 2)
		w.propose(t.Context(), 2)
		cancel()
		synctest.Wait()
		if !errors.Is(w.errs[1], meta.ErrUnavailable) {
			t.Errorf("after the caller has given up: %v", w.errs[1])
		}
		for i := 3; i < 63; i++ {
			var conds []kv.Cond
			for n := range 3 {
				conds = append(conds, kv.Cond{Key: fmt.Sprintf("%snone/%d/%d", DefaultPrefix, i, n)})
			}
			w.propose(t.Context(), i, conds...)
		}
		w.finish()
		if !w.ok[0] || w.shrunk(1) || !w.ok[2] || w.errs[2] != nil || !w.ok[62] {
			t.Errorf("accepted: %v; errors: %v; partition 1 was written: %t", w.ok, w.errs, w.shrunk(1))
		}
		if want := []int{1, 25, 25, 12, 6, 3, 1, 2, 3, 6, 13, 12}; !slices.Equal(w.g.sizes, want) {
			t.Errorf("transactions of %v rows, want %v", w.g.sizes, want)
		}
	})
}
