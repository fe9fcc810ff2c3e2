package seal

import (
	"testing"

	"penstock/internal/node/inbox"
	"penstock/segment"
)

// The queue keeps batches in the order of the log, however it grows and wraps. Puts that a caller takes out are
// answered once: the batches stay until they are committed.
func TestPending(t *testing.T) {
	var q Pending
	q.Clear()
	next := segment.Position(0)
	push := func(ns int64) *inbox.Put {
		p := new(inbox.Put)
		b := Batch{Position: next, NextID: segment.MsgID(next + 1), SealedNs: ns}
		b.Puts.Push(p)
		q.Push(&b)
		next++
		return p
	}
	first := segment.Position(0)
	for round := range 5 {
		for range 3 + round {
			push(int64(next))
		}
		for range 2 {
			if b := q.Front(); b == nil || b.Position != first {
				t.Fatalf("the first batch is %+v, want %d", b, first)
			}
			q.Pop()
			first++
		}
	}
	if q.Len() != int(next-first) {
		t.Fatalf("%d batches, want %d", q.Len(), next-first)
	}
	late := q.Expire(int64(first) + 2)
	if n := count(&late); n != 2 || q.Len() != int(next-first) {
		t.Errorf("%d puts are late, and %d batches are left", n, q.Len())
	}
	repeat := new(inbox.Put)
	if !q.Join(segment.MsgID(first+1), repeat) || q.Join(segment.MsgID(next+1), repeat) {
		t.Error("a repetition waits for another batch than its own")
	}
	left := q.Drain()
	if n := count(&left); n != int(next-first)-2+1 || q.Len() != 0 || q.Front() != nil {
		t.Errorf("%d puts are left in %d batches", n, q.Len())
	}
}

// A put that must not expire keeps its batch, also behind one that expires.
func TestNoExpiry(t *testing.T) {
	var q Pending
	for i, keeps := range []bool{true, false, true} {
		b := Batch{Position: segment.Position(i), SealedNs: int64(i)}
		p := new(inbox.Put)
		p.NoExpiry = keeps
		b.Puts.Push(p)
		q.Push(&b)
	}
	late := q.Expire(10)
	if kept := q.Drain(); count(&late) != 1 || count(&kept) != 2 {
		t.Errorf("%d puts expire, %d do not", count(&late), count(&kept))
	}
}

func count(l *inbox.List) (n int) {
	for p := l.First(); p != nil; p = l.After(p) {
		n++
	}
	return n
}
