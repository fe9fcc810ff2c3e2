package kvtest

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"penstock/internal/cluster/kv"
)

// compactedAtZero accepts that a backend has compacted the beginning of its map.
func (w *world) compactedAtZero(err error) bool { return errors.Is(err, kv.ErrCompacted) }

// A watch begins right behind the given revision, with everything that has happened since.
func testWatchHistory(w *world) {
	w.write(w.a, w.put("a", "0"))
	after := w.write(w.a, w.put("b", "0"))
	first := w.write(w.a, w.put("a", "1"))
	w.write(w.z, w.del("b"), w.put("c", "1"))
	x := w.watch(w.z, w.prefix, after)
	if e := x.want("a", "1", false); e.ModRevision != first {
		w.Errorf("it is of revision %d, not %d", e.ModRevision, first)
	}
	got := map[string]bool{}
	for range 2 { // both are of one revision, so their order is open
		e := x.next()
		got[fmt.Sprintf("%s %v", e.Key[len(w.prefix):], e.Deleted)] = true
	}
	if !got["b true"] || !got["c false"] {
		w.Errorf("events %v", got)
	}
	w.write(w.a, w.put("d", "1"))
	x.want("d", "1", false)
	x.cancel()
	if err := x.end(); err != nil {
		w.Errorf("the watch ended with %v", err)
	}
}

// A watch sees only its prefix, and nothing of transactions that were refused or changed nothing.
func testWatchFollows(w *world) {
	_, rev, err := w.a.List(w.ctx, w.prefix)
	if err != nil {
		w.Fatal(err)
	}
	x := w.watch(w.a, w.key("in/"), rev)
	w.write(w.a, w.put("out", "1"), w.put("in", "1"), w.put("in/a", "1"))
	x.want("in/a", "1", false)
	w.write(w.a, w.del("in/none"))
	if ok, _, err := w.a.Txn(w.ctx, []kv.Cond{{Key: w.key("out")}}, []kv.Op{w.put("in/a", "2")}); ok || err != nil {
		w.Fatal(ok, err)
	}
	lease, err := w.a.Grant(w.ctx, time.Minute)
	if err != nil {
		w.Fatal(err)
	}
	w.write(w.a, kv.Op{Key: w.key("in/l"), Value: []byte("1"), Lease: lease})
	if e := x.want("in/l", "1", false); e.Lease != lease {
		w.Errorf("the event says lease %d, not %d", e.Lease, lease)
	}
	w.write(w.z, w.del("in/a"))
	x.want("in/a", "", true)
}

// Many writers and two watches, one of which begins late: both watches see every revision, in order.
func testWatchMissesNothing(w *world) {
	_, rev, err := w.a.List(w.ctx, w.prefix)
	if err != nil {
		w.Fatal(err)
	}
	const writers, each = 4, 50
	early := w.watch(w.a, w.prefix, rev)
	var all sync.WaitGroup
	for i := range writers {
		s := []kv.Store{w.a, w.z}[i%2]
		all.Go(func() {
			for n := range each {
				if ok, _, err := s.Txn(w.ctx, nil, []kv.Op{w.put(fmt.Sprint(i), fmt.Sprint(n))}); !ok || err != nil {
					w.Error(ok, err)
				}
			}
		})
	}
	late := w.watch(w.z, w.prefix, rev)
	for _, x := range []*watching{early, late} {
		next := map[string]int{}
		for range writers * each {
			e := x.next()
			if want := fmt.Sprint(next[e.Key]); string(e.Value) != want {
				w.Fatalf("%s is %s, want %s", e.Key, e.Value, want)
			}
			next[e.Key]++
		}
	}
	all.Wait()
}

// Keys outside of the prefix change, as those of another cluster in the same etcd: the watch has no events of them, and
// says that it is complete up to them. Otherwise nobody could tell a watch that is behind from one that has nothing to
// tell.
func testWatchBesideOthers(w *world) {
	x := w.watch(w.a, w.prefix+"in/", w.write(w.a, w.put("in/a", "0")))
	for range 2 {
		revision := w.write(w.z, w.put("out/a", "1"))
		for x.at.Load() < revision {
			select {
			case <-time.After(time.Millisecond):
			case e := <-x.events:
				w.Fatalf("an event of %q", e.Key)
			case <-w.ctx.Done():
				w.Fatalf("the watch stays at revision %d; the store is at %d", x.at.Load(), revision)
			}
		}
	}
	w.write(w.z, w.put("in/a", "2"))
	x.want("in/a", "2", false)
}

// A watch that would miss an event says so.
func testWatchCompacted(w *world) {
	after := w.write(w.a, w.put("a", "0"))
	w.write(w.a, w.put("a", "1"))
	now := w.write(w.a, w.put("a", "2"))
	w.b.Compact(w.T)
	if _, _, err := w.z.List(w.ctx, w.prefix); err != nil {
		// z must know of the compaction: otherwise its watch would still get the changes
		w.Fatal(err)
	}
	w.wantErr(w.watch(w.z, w.prefix, after).end(), kv.ErrCompacted)
	x := w.watch(w.z, w.prefix, now)
	w.write(w.a, w.put("a", "3"))
	x.want("a", "3", false)
}
