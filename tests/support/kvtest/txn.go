package kvtest

import (
	"bytes"
	"context"
	"fmt"
	"strconv"
	"sync"

	"penstock/internal/cluster/kv"
)

// Entries under a prefix are listed in order of key, with values as they were written, and the revision is that of the
// whole map.
func testList(w *world) {
	entries, before, err := w.a.List(w.ctx, w.prefix)
	if err != nil || len(entries) != 0 {
		w.Fatalf("an empty prefix: %v, %v", entries, err)
	}
	binary := string([]byte{0, 255, 10, 0})
	first := w.write(w.a, w.put("b", binary), w.put("a/2", "x"))
	second := w.write(w.z, w.put("a/10", ""))
	if before >= first || first >= second {
		w.Fatalf("revisions %d, %d, %d do not grow", before, first, second)
	}
	entries, now, err := w.z.List(w.ctx, w.prefix)
	if err != nil || now < second {
		w.Fatalf("revision %d after %d, %v", now, second, err)
	}
	want := []kv.Entry{
		{Key: w.key("a/10"), Value: nil, ModRevision: second},
		{Key: w.key("a/2"), Value: []byte("x"), ModRevision: first},
		{Key: w.key("b"), Value: []byte(binary), ModRevision: first},
	}
	if len(entries) != len(want) {
		w.Fatalf("entries %v", entries)
	}
	for i, e := range entries {
		if e.Key != want[i].Key || !bytes.Equal(e.Value, want[i].Value) || e.ModRevision != want[i].ModRevision ||
			e.Lease != 0 {
			w.Errorf("entry %d is %+v, want %+v", i, e, want[i])
		}
	}
	if entries, _, _ = w.a.List(w.ctx, w.key("a/1")); len(entries) != 1 {
		w.Errorf("a prefix need not be a folder: %v", entries)
	}
}

// A transaction is applied if all its conditions hold, and only then.
func testTxnCompares(w *world) {
	rev := w.write(w.a, w.put("there", "1"))
	for _, c := range []struct {
		what  string
		conds []kv.Cond
		want  bool
	}{
		{"nothing", nil, true},
		{"the revision", []kv.Cond{{Key: w.key("there"), ModRevision: rev}}, true},
		{"an older revision", []kv.Cond{{Key: w.key("there"), ModRevision: rev - 1}}, false},
		{"that it is missing", []kv.Cond{{Key: w.key("there")}}, false},
		{"that another is missing", []kv.Cond{{Key: w.key("missing")}}, true},
		{"the revision of a missing one", []kv.Cond{{Key: w.key("missing"), ModRevision: rev}}, false},
		{
			"one that holds and one that does not",
			[]kv.Cond{{Key: w.key("there"), ModRevision: rev}, {Key: w.key("there"), ModRevision: rev + 1}},
			false,
		},
		{"two that hold", []kv.Cond{{Key: w.key("there"), ModRevision: rev}, {Key: w.key("missing")}}, true},
	} {
		w.write(w.a, w.del("mark"))
		ok, _, err := w.z.Txn(w.ctx, c.conds, []kv.Op{w.put("mark", "x")})
		_, marked := w.list(w.a)["mark"]
		if err != nil || ok != c.want || marked != c.want {
			w.Errorf("comparing %s: applied %v (said %v), want %v; %v", c.what, marked, ok, c.want, err)
		}
	}
}

// All writes of a transaction have one revision, and deleting a key that does not exist is no error.
func testTxnIsAtomic(w *world) {
	before := w.write(w.a, w.put("gone", "1"), w.put("old", "1"))
	ok, rev, err := w.a.Txn(w.ctx, []kv.Cond{{Key: w.key("old"), ModRevision: before}},
		[]kv.Op{w.del("gone"), w.put("old", "2"), w.put("new", "1"), w.del("never was")})
	if !ok || err != nil {
		w.Fatal(ok, err)
	}
	got := w.list(w.z)
	if len(got) != 2 || string(got["old"].Value) != "2" || got["old"].ModRevision != rev ||
		got["new"].ModRevision != rev || rev <= before {
		w.Fatalf("after revision %d: %+v", rev, got)
	}
	if ok, _, err := w.a.Txn(w.ctx, []kv.Cond{{Key: w.key("old"), ModRevision: before}}, []kv.Op{w.put("old", "3")}); ok ||
		err != nil {
		w.Fatalf("a comparison with a revision that is over: %v, %v", ok, err)
	}
}

// 128 writes and 128 conditions fit, and a key cannot be written twice.
func testTxnLimits(w *world) {
	var conds []kv.Cond
	var ops []kv.Op
	for i := range 128 {
		conds = append(conds, kv.Cond{Key: w.key(strconv.Itoa(i))})
		ops = append(ops, w.put(strconv.Itoa(i), "x"))
	}
	if ok, _, err := w.a.Txn(w.ctx, conds, ops); !ok || err != nil {
		w.Fatalf("128 of each: %v, %v", ok, err)
	}
	if ok, _, err := w.a.Txn(w.ctx, nil, []kv.Op{w.put("a", "1"), w.put("a", "2")}); ok || err == nil {
		w.Fatalf("a key twice: %v, %v", ok, err)
	}
	if got := w.list(w.a); len(got) != 128 {
		w.Fatalf("%d keys", len(got))
	}
}

// Of several transactions that compare the same revision, one wins.
func testRace(w *world) {
	w.write(w.a, w.put("n", "0"))
	const each = 20
	var all sync.WaitGroup
	for i := range 4 {
		s := []kv.Store{w.a, w.z}[i%2]
		all.Go(func() {
			for done := 0; done < each; {
				e := w.listOne(s, "n")
				n, _ := strconv.Atoi(string(e.Value))
				ok, _, err := s.Txn(w.ctx, []kv.Cond{{Key: w.key("n"), ModRevision: e.ModRevision}}, []kv.Op{
					w.put("n", fmt.Sprint(n+1)),
				})
				if err != nil {
					w.Error(err)
					return
				}
				if ok {
					done++
				}
			}
		})
	}
	all.Wait()
	if got := string(w.list(w.z)["n"].Value); got != fmt.Sprint(4*each) {
		w.Fatalf("%d increments made %s", 4*each, got)
	}
}

func (w *world) listOne(s kv.Store, k string) kv.Entry {
	entries, _, err := s.List(w.ctx, w.key(k))
	if err != nil || len(entries) != 1 {
		w.Errorf("%v, %v", entries, err)
		return kv.Entry{}
	}
	return entries[0]
}

// A call whose context has ended fails and changes nothing; a watch ends without an error.
func testContextEnds(w *world) {
	ctx, cancel := context.WithCancel(w.ctx)
	cancel()
	if _, _, err := w.a.List(ctx, w.prefix); err == nil {
		w.Error("List answers")
	}
	if _, _, err := w.a.Txn(ctx, nil, []kv.Op{w.put("a", "1")}); err == nil {
		w.Error("Txn answers")
	}
	if len(w.list(w.z)) != 0 {
		w.Error("it was applied")
	}
	x := w.watch(w.a, w.prefix, 0)
	x.cancel()
	if err := x.end(); err != nil && !w.compactedAtZero(err) {
		w.Errorf("a watch that nobody wants any more ended with %v", err)
	}
}

// Close ends a client and its watches; other clients go on.
func testClose(w *world) {
	_, rev, err := w.a.List(w.ctx, w.prefix)
	if err != nil {
		w.Fatal(err)
	}
	x := w.watch(w.a, w.prefix, rev)
	w.write(w.a, w.put("a", "1"))
	x.want("a", "1", false)
	if err := w.a.Close(); err != nil {
		w.Fatal(err)
	}
	w.wantErr(x.end(), kv.ErrClosed)
	_, _, err = w.a.List(w.ctx, w.prefix)
	w.wantErr(err, kv.ErrClosed)
	_, _, err = w.a.Txn(w.ctx, nil, []kv.Op{w.put("b", "1")})
	w.wantErr(err, kv.ErrClosed)
	_, err = w.a.Grant(w.ctx, w.b.LeaseTTL)
	w.wantErr(err, kv.ErrClosed)
	if err := w.a.Close(); err != nil {
		w.Errorf("a second Close: %v", err)
	}
	if w.z != w.a && len(w.list(w.z)) != 1 {
		w.Error("the other client does not go on")
	}
}
