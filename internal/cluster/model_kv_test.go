package cluster

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

	"penstock/internal/cluster/kv"
)

// modelKV is a kv.Store for one goroutine. It keeps all events, so that each node hears of them when the model wants. A
// transaction may get no answer, applied or not. Nobody watches it.
type modelKV struct {
	w      *model
	rows   map[string]kv.Entry
	rev    int64
	events []kv.Event
	lease  kv.LeaseID // the last one that was granted
}

func (m *modelKV) List(_ context.Context, prefix string) (all []kv.Entry, rev int64, err error) {
	if e, ok := m.rows[prefix]; ok {
		return []kv.Entry{e}, m.rev, nil
	}
	for key, e := range m.rows {
		if strings.HasPrefix(key, prefix) {
			all = append(all, e)
		}
	}
	slices.SortFunc(all, func(a, b kv.Entry) int { return cmp.Compare(a.Key, b.Key) })
	return all, m.rev, nil
}

func (m *modelKV) Txn(_ context.Context, conds []kv.Cond, ops []kv.Op) (bool, int64, error) {
	silent := m.w.faults && m.w.rng.IntN(60) == 0
	if silent && m.w.rng.IntN(2) == 0 {
		return false, 0, kv.ErrUnavailable
	}
	for _, c := range conds {
		if m.rows[c.Key].ModRevision != c.ModRevision {
			return false, m.rev, nil
		}
	}
	m.apply(ops)
	if silent {
		return false, 0, kv.ErrUnavailable
	}
	return true, m.rev, nil
}

// apply writes ops at the next revision.
func (m *modelKV) apply(ops []kv.Op) {
	m.rev++
	for _, op := range ops {
		old := m.rows[op.Key]
		e := kv.Event{Entry: kv.Entry{Key: op.Key, ModRevision: m.rev}, Deleted: op.Delete}
		if op.Delete {
			if old.ModRevision == 0 {
				continue
			}
			delete(m.rows, op.Key)
		} else {
			e.Value, e.Lease = op.Value, op.Lease
			m.rows[op.Key] = e.Entry
			m.w.checkWrite(old.Value, &e.Entry)
		}
		m.events = append(m.events, e)
	}
}

// end ends a lease: its rows go.
func (m *modelKV) end(lease kv.LeaseID) {
	var ops []kv.Op
	for key, e := range m.rows {
		if e.Lease == lease {
			ops = append(ops, remove(key))
		}
	}
	slices.SortFunc(ops, func(a, b kv.Op) int { return cmp.Compare(a.Key, b.Key) })
	if len(ops) > 0 {
		m.apply(ops)
	}
}

func (m *modelKV) Grant(context.Context, time.Duration) (kv.LeaseID, error) {
	m.lease++
	return m.lease, nil
}

func (m *modelKV) Revoke(_ context.Context, id kv.LeaseID) error {
	m.end(id)
	return nil
}

func (m *modelKV) KeepAlive(context.Context, kv.LeaseID) (time.Duration, error) {
	return DefaultLeaseTTL, nil
}

func (m *modelKV) Watch(context.Context, string, int64, func([]kv.Event, int64)) error {
	panic("nobody watches")
}

func (m *modelKV) Close() error { return nil }

// modelHost is the Host of a node: what waits hears the news of the store, or time passes.
type modelHost struct{ n *modelNode }

func (h modelHost) Go(f func()) { f() }

func (h modelHost) WaitFor(ready func() bool, d time.Duration) bool {
	if ready() {
		return true
	}
	if h.n.hear(); ready() {
		return true
	}
	if d == 0 {
		panic("it would wait for ever")
	}
	h.n.w.now = h.n.w.now.Add(d)
	return false
}

func (h modelHost) WithTimeout(ctx context.Context, _ time.Duration) (context.Context, context.CancelFunc) {
	return context.WithCancel(ctx)
}

func (h modelHost) NewUUID() uuid.UUID { return h.n.w.uuid() }
