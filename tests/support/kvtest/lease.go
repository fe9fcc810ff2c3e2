package kvtest

import (
	"time"

	"penstock/internal/cluster/kv"
)

func (w *world) grant() kv.LeaseID {
	w.Helper()
	id, err := w.a.Grant(w.ctx, w.b.LeaseTTL)
	if err != nil || id == 0 {
		w.Fatalf("lease %d, %v", id, err)
	}
	return id
}

func (w *world) leased(k string, id kv.LeaseID) kv.Op {
	return kv.Op{Key: w.key(k), Value: []byte("leased"), Lease: id}
}

// Nobody extends the lease: all its keys are deleted, at once, and not before the TTL is over.
func testLeaseRunsOut(w *world) {
	begin := time.Now()
	id := w.grant()
	rev := w.write(w.a, w.leased("a", id), w.leased("b", id), w.put("c", "stays"))
	if e := w.list(w.z)["a"]; e.Lease != id {
		w.Fatalf("the entry says lease %d, not %d", e.Lease, id)
	}
	x := w.watch(w.z, w.prefix, rev)
	first, second := x.next(), x.next()
	if !first.Deleted || !second.Deleted {
		w.Fatalf("events %+v, %+v", first, second)
	}
	if took := time.Since(begin); took < w.b.LeaseTTL {
		w.Errorf("the lease of %v ended after %v", w.b.LeaseTTL, took)
	}
	if got := w.list(w.a); len(got) != 1 || string(got["c"].Value) != "stays" {
		w.Errorf("there is still %v", got)
	}
	_, err := w.a.KeepAlive(w.ctx, id)
	w.wantErr(err, kv.ErrLeaseGone)
}

// A lease that is extended outlives its TTL, and ends one TTL after the last extension.
func testLeaseKeptAlive(w *world) {
	id := w.grant()
	rev := w.write(w.a, w.leased("a", id))
	begin := time.Now()
	tick := time.NewTicker(w.b.LeaseTTL / 4)
	defer tick.Stop()
	for time.Since(begin) < w.b.LeaseTTL*3/2 {
		<-tick.C
		ttl, err := w.z.KeepAlive(w.ctx, id)
		if err != nil || ttl < w.b.LeaseTTL/2 || ttl > 2*w.b.LeaseTTL {
			w.Fatalf("it remains %v, %v", ttl, err)
		}
	}
	if _, there := w.list(w.z)["a"]; !there {
		w.Fatal("the key is gone although its lease was kept alive")
	}
	w.watch(w.z, w.prefix, rev).want("a", "", true)
}

func testLeaseRevoked(w *world) {
	id, other := w.grant(), w.grant()
	w.write(w.a, w.leased("a", id), w.leased("b", other))
	if err := w.z.Revoke(w.ctx, id); err != nil {
		w.Fatal(err)
	}
	if got := w.list(w.a); len(got) != 1 || got["b"].Lease != other {
		w.Fatalf("there is still %v", got)
	}
	w.wantErr(w.a.Revoke(w.ctx, id), kv.ErrLeaseGone)
}

// A key belongs to the lease with which it was last written, or to none.
func testLeaseOfKeyChanges(w *world) {
	id, other := w.grant(), w.grant()
	w.write(w.a, w.leased("moves", id), w.leased("freed", id), w.leased("goes", id))
	w.write(w.a, w.leased("moves", other), w.put("freed", "1"))
	if err := w.a.Revoke(w.ctx, id); err != nil {
		w.Fatal(err)
	}
	got := w.list(w.a)
	if _, goes := got["goes"]; len(got) != 2 || goes || got["moves"].Lease != other || got["freed"].Lease != 0 {
		w.Fatalf("there is still %v", got)
	}
}

// A write with a lease that does not exist is not applied.
func testLeaseUnknown(w *world) {
	id := w.grant()
	if err := w.a.Revoke(w.ctx, id); err != nil {
		w.Fatal(err)
	}
	_, _, err := w.a.Txn(w.ctx, nil, []kv.Op{w.put("a", "1"), w.leased("b", id)})
	w.wantErr(err, kv.ErrLeaseGone)
	if got := w.list(w.a); len(got) != 0 {
		w.Fatalf("it was applied: %v", got)
	}
	_, err = w.a.KeepAlive(w.ctx, id)
	w.wantErr(err, kv.ErrLeaseGone)
}
