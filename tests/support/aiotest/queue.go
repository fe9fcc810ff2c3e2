package aiotest

import (
	"errors"
	"sync"
	"sync/atomic"
	"testing"

	"penstock/segment/aio"
)

// collect waits for n completions without errors.
func collect(t testing.TB, q aio.Queue, n int) []aio.Completion {
	t.Helper()
	var done []aio.Completion
	for len(done) < n {
		var err error
		done, err = q.Wait(done, true)
		must(t, err)
	}
	for _, c := range done {
		if c.Err != nil {
			t.Fatalf("write %d: %v", c.Tag, c.Err)
		}
	}
	return done
}

func arena(t testing.TB, bufBytes, count int) *aio.Arena {
	t.Helper()
	a, err := aio.NewArena(bufBytes, count)
	must(t, err)
	return a
}

func testQueueWrites(t *testing.T, d aio.Disk) {
	a := arena(t, 4*block, 4)
	q, err := d.NewQueue(aio.QueueOptions{Arena: a})
	must(t, err)
	f := create(t, d, "a", 64*block)
	buf := a.Get()
	for i := range 20 {
		pattern(buf.Bytes(), byte(i))
		must(t, q.Submit(aio.Op{File: f, Data: buf.Bytes()[block : 3*block], Offset: int64(2 * i * block), Tag: uint64(i)}))
		if q.InFlight() != 1 {
			t.Fatalf("%d in flight, want 1", q.InFlight())
		}
		done := collect(t, q, 1)
		if len(done) != 1 || done[0].Tag != uint64(i) || q.InFlight() != 0 {
			t.Fatalf("completions %v with %d in flight, want tag %d", done, q.InFlight(), i)
		}
		expect(t, f, int64(2*i*block), buf.Bytes()[block:3*block])
	}
	done, err := q.Wait(nil, false)
	must(t, err)
	if len(done) != 0 {
		t.Fatalf("completions %v with nothing in flight", done)
	}
	buf.Release()
	must(t, q.Close())
	must(t, a.Close())
}

func testQueueMany(t *testing.T, d aio.Disk) {
	const depth, writes = 8, 200
	a := arena(t, block, depth)
	q, err := d.NewQueue(aio.QueueOptions{Depth: depth, Arena: a})
	must(t, err)
	f := create(t, d, "a", writes*block)
	held := map[uint64]*aio.Buf{}
	var done []aio.Completion
	for next, finished := 0, 0; finished < writes; {
		for next < writes && q.InFlight() < depth {
			buf := a.Get()
			if buf == nil {
				t.Fatal("no free buffer although fewer than depth are in flight")
			}
			pattern(buf.Bytes(), byte(next))
			must(t, q.Submit(aio.Op{File: f, Data: buf.Bytes(), Offset: int64(next * block), Tag: uint64(next)}))
			held[uint64(next)] = buf
			next++
		}
		done, err = q.Wait(done[:0], next%3 != 0)
		must(t, err)
		for _, c := range done {
			must(t, c.Err)
			if held[c.Tag] == nil {
				t.Fatalf("write %d completed twice or never was", c.Tag)
			}
			held[c.Tag].Release()
			delete(held, c.Tag)
			finished++
		}
	}
	must(t, q.Close())
	for i := range writes {
		want := make([]byte, block)
		pattern(want, byte(i))
		expect(t, f, int64(i*block), want)
	}
	must(t, a.Close())
}

func testQueueFull(t *testing.T, d aio.Disk) {
	q, err := d.NewQueue(aio.QueueOptions{}) // the default depth is 2
	must(t, err)
	f := create(t, d, "a", 4*block)
	op := aio.Op{File: f, Data: Fill(t, block, 1)}
	must(t, q.Submit(op))
	op.Offset = block
	must(t, q.Submit(op))
	mustIs(t, q.Submit(op), aio.ErrQueueFull)
	collect(t, q, 2)
	must(t, q.Submit(op))
	collect(t, q, 1)
	must(t, q.Close())
}

func testQueueDepth(t *testing.T, d aio.Disk) {
	for _, depth := range []int{-1, 65} {
		if q, err := d.NewQueue(aio.QueueOptions{Depth: depth}); err == nil {
			q.Close()
			t.Errorf("depth %d was taken", depth)
		}
	}
	for _, depth := range []int{1, 64} {
		q, err := d.NewQueue(aio.QueueOptions{Depth: depth})
		must(t, err)
		f := create(t, d, string(rune('a'+depth%26)), 64*block)
		for i := range depth {
			must(t, q.Submit(aio.Op{File: f, Data: Fill(t, block, 1), Offset: int64(i * block)}))
		}
		collect(t, q, depth)
		must(t, q.Close())
	}
}

func testQueueLarge(t *testing.T, d aio.Disk) {
	a := arena(t, block, 2)
	q, err := d.NewQueue(aio.QueueOptions{Arena: a})
	must(t, err)
	f := create(t, d, "a", 2<<20)
	large, err := a.GetLarge(1 << 20)
	must(t, err)
	pattern(large.Bytes(), 1)
	scratch := Fill(t, 1<<20, 2)
	must(t, q.Submit(aio.Op{File: f, Data: large.Bytes()}))
	must(t, q.Submit(aio.Op{File: f, Data: scratch, Offset: 1 << 20}))
	collect(t, q, 2)
	expect(t, f, 0, large.Bytes())
	expect(t, f, 1<<20, scratch)
	large.Release()
	must(t, q.Close())
	must(t, a.Close())
}

func testQueueErrors(t *testing.T, d aio.Disk) {
	q, err := d.NewQueue(aio.QueueOptions{})
	must(t, err)
	f := create(t, d, "a", 2*block)
	p := Fill(t, 2*block, 1)
	if !panics(func() { _ = q.Submit(aio.Op{File: f, Data: p[:block], Offset: 8}) }) {
		t.Error("an unaligned operation was taken")
	}
	if q.InFlight() != 0 {
		t.Fatalf("%d in flight after refused operations", q.InFlight())
	}
	must(t, f.Close())
	// The error comes from Submit or from the completion: the write is never stored, and never fails silently.
	err = q.Submit(aio.Op{File: f, Data: p[:block], Tag: 7})
	if err == nil {
		done, waitErr := q.Wait(nil, true)
		must(t, waitErr)
		if len(done) != 1 || done[0].Tag != 7 {
			t.Fatalf("completions %v, want tag 7", done)
		}
		err = done[0].Err
	}
	mustIs(t, err, aio.ErrClosed)
	must(t, q.Close())
}

func testQueueClose(t *testing.T, d aio.Disk) {
	q, err := d.NewQueue(aio.QueueOptions{Depth: 4})
	must(t, err)
	f := create(t, d, "a", 4*block)
	for i := range 4 {
		must(t, q.Submit(aio.Op{File: f, Data: Fill(t, block, byte(i)), Offset: int64(i * block)}))
	}
	must(t, q.Close())
	must(t, q.Close())
	for i := range 4 {
		expect(t, f, int64(i*block), Fill(t, block, byte(i)))
	}
	mustIs(t, q.Submit(aio.Op{File: f, Data: Fill(t, block, 1)}), aio.ErrClosed)
	_, err = q.Wait(nil, true)
	mustIs(t, err, aio.ErrClosed)
}

func testWakeBefore(t *testing.T, d aio.Disk) {
	q, err := d.NewQueue(aio.QueueOptions{})
	must(t, err)
	for range 3 {
		q.Wake()
		q.Wake()
		done, err := q.Wait(nil, true) // would sleep for ever if the wake-up was lost
		must(t, err)
		if len(done) != 0 {
			t.Fatalf("completions %v", done)
		}
	}
	q.Wake()
	_, err = q.Wait(nil, false) // Wait without block does not consume the wake-up
	must(t, err)
	_, err = q.Wait(nil, true)
	must(t, err)
	must(t, q.Close())
}

func testWakeDuring(t *testing.T, d aio.Disk) {
	q, err := d.NewQueue(aio.QueueOptions{})
	must(t, err)
	turn := make(chan struct{})
	var ended sync.WaitGroup
	ended.Go(func() {
		for range turn {
			q.Wake()
		}
	})
	for range 500 {
		turn <- struct{}{} // Wake runs before, while or after the owner falls asleep
		_, err := q.Wait(nil, true)
		must(t, err)
	}
	close(turn)
	ended.Wait()
	must(t, q.Close())
}

func testWakeAfterClose(t *testing.T, d aio.Disk) {
	q, err := d.NewQueue(aio.QueueOptions{})
	must(t, err)
	f := create(t, d, "a", block)
	stop := make(chan struct{})
	var ended sync.WaitGroup
	ended.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
				q.Wake()
			}
		}
	})
	for range 20 {
		must(t, q.Submit(aio.Op{File: f, Data: Fill(t, block, 1)}))
		collect(t, q, 1)
	}
	must(t, q.Close()) // while wake-ups arrive
	close(stop)
	ended.Wait()
	q.Wake()
}

// testWakeStorm has several producers hand numbers to an owner that writes in between. The owner must see every number
// although it sleeps whenever it finds nothing.
func testWakeStorm(t *testing.T, d aio.Disk) {
	const producers, each = 4, 500
	q, err := d.NewQueue(aio.QueueOptions{})
	must(t, err)
	f := create(t, d, "a", 4*block)
	data := Fill(t, block, 1)
	var published atomic.Int64
	var ended sync.WaitGroup
	for range producers {
		ended.Go(func() {
			for range each {
				published.Add(1)
				q.Wake()
			}
		})
	}
	var done []aio.Completion
	for seen := int64(0); seen < producers*each; {
		now := published.Load()
		if now > seen && q.InFlight() == 0 {
			must(t, q.Submit(aio.Op{File: f, Data: data, Tag: uint64(now)}))
		}
		done, err = q.Wait(done[:0], true)
		must(t, err)
		for _, c := range done {
			if c.Err != nil && !errors.Is(c.Err, aio.ErrClosed) {
				t.Fatal(c.Err)
			}
			seen = int64(c.Tag)
		}
	}
	ended.Wait()
	must(t, q.Close())
}
