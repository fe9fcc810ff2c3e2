package cluster

import (
	"context"
	"slices"

	"penstock/internal/cluster/kv"
	"penstock/internal/lock"
	"penstock/internal/meta"
)

// Each node leads many partitions, and when another node dies it changes the ISR of many of them at once. The changes
// that are ready at the same time go to the store in one transaction. It compares the revision of each row that it
// writes. If somebody else has changed one of them, the store refuses the whole transaction, and its halves are tried
// one after the other, so that one row that has changed does not hold up the others.
//
// Nothing waits for further changes to come: a change that finds no transaction under way goes at once. The changes
// that come during a transaction go together when it has ended.

// maxISRCount is the most partitions whose ISR one transaction changes. Twice as many rows are not written faster, and
// hold up other transactions for longer. The conditions are bounded by maxTxnCount.
const maxISRCount = 50

// isrChange is a new row of a partition on its way to the store.
type isrChange struct {
	ctx   context.Context
	conds []kv.Cond // the row that is replaced, and the nodes of new members
	op    kv.Op
	done  chan struct{} // closed when ok and err are set
	ok    bool
	err   error
}

// isrQueue has the changes of one node that no transaction has taken yet. mu guards its fields.
type isrQueue struct {
	mu      lock.Mutex[lock.ClusterISR]
	waiting []*isrChange
	writing bool // a goroutine runs writeISRs
}

// add appends a change, and says whether the caller has to start writeISRs.
func (q *isrQueue) add(c *isrChange) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.waiting = append(q.waiting, c)
	start := !q.writing
	q.writing = true
	return start
}

// take removes the changes of the next transaction. If there are none, writeISRs has to end. A change of a row that the
// transaction writes already stays for the next one, because etcd allows one write of a key in a transaction. Changes
// whose callers have given up are dropped.
func (q *isrQueue) take() (batch []*isrChange) {
	q.mu.Lock()
	defer q.mu.Unlock()
	conds, rest := 0, q.waiting[:0]
	for i, c := range q.waiting {
		if len(batch) == maxISRCount || len(batch) > 0 && conds+len(c.conds) > maxTxnCount {
			rest = append(rest, q.waiting[i:]...)
			break
		}
		switch {
		case c.ctx.Err() != nil:
		case slices.ContainsFunc(batch, func(o *isrChange) bool { return o.op.Key == c.op.Key }):
			rest = append(rest, c)
		default:
			batch = append(batch, c)
			conds += len(c.conds)
		}
	}
	clear(q.waiting[len(rest):])
	q.waiting = rest
	q.writing = len(batch) > 0
	return batch
}

// putISR writes a partition's row if it is unchanged since rev and conds hold, together with other changes that are
// ready. If it returns an error, the row may still have been written or be written later.
func (s *store) putISR(ctx context.Context, p *meta.Partition, rev int64, conds []kv.Cond) (bool, error) {
	key := s.key(partKey(partsDir, p.ID))
	c := &isrChange{ctx: ctx, conds: append(conds, kv.Cond{Key: key, ModRevision: rev}), done: make(chan struct{})}
	ops, err := s.keepUnknown(ctx, s.cur.Load(), c.conds, []kv.Op{{Key: key, Value: encodePartition(p)}})
	if err != nil {
		return false, err
	}
	c.op = ops[0]
	if s.isr.add(c) {
		s.spawn(s.writeISRs)
	}
	if s.await(ctx, 0, c.done, nil) == byEnd {
		return false, unavailable(ctx.Err())
	}
	return c.ok, c.err
}

// writeISRs writes the changes of the queue until it is empty. At most one goroutine of a node runs it.
func (s *store) writeISRs() {
	for batch := s.isr.take(); len(batch) > 0; batch = s.isr.take() {
		s.writeTogether(batch)
	}
}

// writeTogether writes changes in one transaction, or, if the store refuses that, in smaller ones. The transaction may
// take as long as the change that was asked for last.
func (s *store) writeTogether(batch []*isrChange) {
	var conds []kv.Cond
	var ops []kv.Op
	for _, c := range batch {
		conds, ops = append(conds, c.conds...), append(ops, c.op)
	}
	ok, _, err := s.kv.Txn(batch[len(batch)-1].ctx, conds, ops)
	if half := len(batch) / 2; half > 0 && !ok && err == nil {
		s.writeTogether(batch[:half])
		s.writeTogether(batch[half:])
		return
	}
	for _, c := range batch {
		c.ok, c.err = ok, unavailable(err)
		close(c.done)
	}
}
