package node_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"penstock/internal/node"
	"penstock/internal/node/errs"
	"penstock/tests/support/faultaio"
)

// While the write of a message hangs on the disk, the message is not delivered, not counted and not answered. If the
// power is cut then, the consumer has seen no message that the next life does not have.
//
// B13
func TestNothingUncommittedIsDelivered(t *testing.T) {
	for _, deferred := range []bool{false, true} {
		t.Run(fmt.Sprintf("deferred=%v", deferred), func(t *testing.T) {
			disk := newDisk()
			e := openOnDisk(t, disk)
			topic := topicOf(t, e, "t")
			ch := channelOf(t, topic, "c")
			s := subscribe(t, ch, 100)
			s.take(len(publish(t, topic, "before")))

			begun, release := holdCommits(t, disk)
			done := make(chan result, 1)
			p := &node.Put{
				Messages: [][]byte{[]byte("held"), []byte("held too")},
				Done:     func(p *node.Put) { done <- result{p.First, p.Err} },
			}
			if deferred {
				p.Defer = time.Millisecond
			}
			if err := topic.Submit(p); err != nil {
				t.Fatal(err)
			}
			begun()
			s.expectNothing("the disk has not answered")
			if st := channelStats(t, ch); st.Depth != 0 || st.DeferredCount != 0 || st.MessageCount > 1 {
				t.Errorf("statistics show uncommitted messages: %+v", st)
			}
			select {
			case r := <-done:
				t.Fatalf("answered before the disk: %+v", r)
			default:
			}
			release()
			r := answer(t, done)
			if r.err != nil {
				t.Fatal(r.err)
			}
			for i, want := range []string{"held", "held too"} {
				if m := s.next(); m.body != want || m.id != r.id+node.ID(i) {
					t.Errorf("got %s %q, want %s %q", m.id, m.body, r.id+node.ID(i), want)
				}
			}
		})
	}
}

// B14: the ids of a batch are consecutive and in order. A power cut at any of the operations that store the batch,
// whichever sectors it keeps, leaves the whole batch or nothing of it; the whole batch if it was answered OK.
func TestBatchIsAllOrNothing(t *testing.T) {
	t.Parallel()
	for seed := range uint64(seedCount(t, "TEST_CRASH_SEEDS", 60)) {
		rng := rand.New(rand.NewPCG(seed, 5))
		disk := faultaio.New(faultaio.Options{Seed: seed})
		e := openOnDisk(t, disk)
		topic := topicOf(t, e, "t")
		publish(t, topic, numbered("before", rng.IntN(40), 900)...)
		if seed%2 == 0 {
			disk.CrashAt(disk.Ops() + rng.IntN(3))
		}
		batch := make([][]byte, 20+rng.IntN(30))
		for i := range batch {
			batch[i] = fmt.Appendf(nil, "batch%d/%s", i, make([]byte, 1000))
		}
		first, err := topic.PublishBatch(context.Background(), batch)
		if err == nil && rng.IntN(2) == 0 {
			_, err2 := topic.PublishBatch(context.Background(), batch[:3]) // something that follows
			_ = err2                                                       // the power may be off by now
		}
		after := disk.Crash(rng.Uint64())
		e.Close()
		e = openOnDisk(t, after)
		topic, _ = e.Catalog().LookupTopic("t")
		got := readAll(t, channelOf(t, topic, "c"))
		count := 0
		for id, body := range got {
			if n := int(id - first); err == nil && n >= 0 && n < len(batch) {
				count++
				if body != string(batch[n]) {
					t.Fatalf("seed %d: %s has %.20q, want %.20q", seed, id, body, batch[n])
				}
			} else if err != nil && len(body) > 5 && body[:5] == "batch" {
				count++
			}
		}
		if count != len(batch) && (err == nil || count != 0) {
			t.Fatalf("seed %d: %d of %d messages of a batch after the power cut; publish said %v", seed, count, len(batch), err)
		}
		e.Close()
	}
}

// With many producers on many partitions, the ids of each partition have no gaps, and the messages of each producer
// keep their order.
//
// B15, B21
func TestManyProducersManyPartitions(t *testing.T) {
	const partitions, producers, each = 4, 12, 150
	o := inDir(t.TempDir())
	e := openWith(t, o)
	topic, err := e.CreateTopic(context.Background(), "t", partitions)
	if err != nil {
		t.Fatal(err)
	}
	c, again := channelOf(t, topic, "c"), channelOf(t, topic, "again")
	var wg sync.WaitGroup
	for p := range producers {
		wg.Go(func() {
			last := map[uint32]node.ID{}
			for i := range each {
				id, err := topic.PublishMessage(context.Background(), node.Outgoing{Body: fmt.Appendf(nil, "%d %d", p, i)})
				if err != nil {
					t.Errorf("producer %d: %v", p, err)
					return
				}
				if old, ok := last[id.Partition()]; ok && id <= old {
					t.Errorf("producer %d: id %s after %s", p, id, old)
				}
				last[id.Partition()] = id
			}
		})
	}
	wg.Wait()
	check := func(got map[node.ID]string) {
		t.Helper()
		if len(got) != producers*each {
			t.Fatalf("%d of %d messages", len(got), producers*each)
		}
		total := 0
		for part := range uint64(partitions) {
			next := map[int]int{}
			for n := uint64(0); ; n, total = n+1, total+1 {
				body, ok := got[node.ID(part<<48|n)]
				if !ok {
					break
				}
				var p, i int
				if _, err := fmt.Sscan(body, &p, &i); err != nil || i < next[p] {
					t.Fatalf("partition %d, message %d: %q after %d of that producer (%v)", part, n, body, next[p], err)
				}
				next[p] = i + 1
			}
		}
		if total != len(got) {
			t.Errorf("ids have gaps: %d of %d messages in dense order", total, len(got))
		}
	}
	check(readAll(t, c))
	check(readAll(t, again))
}

// Messages that a busy engine has answered OK before some moment survive a power cut at that moment.
//
// B16
func TestAnsweredIsOnStableStorage(t *testing.T) {
	disk := newDisk()
	e := openOnDisk(t, disk)
	topic := topicOf(t, e, "t")
	var mu sync.Mutex
	acked := map[string]node.ID{}
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	for p := range 8 {
		wg.Go(func() {
			for i := 0; ctx.Err() == nil && i < 3000; i++ {
				body := fmt.Sprintf("%d.%d", p, i)
				id, err := topic.PublishMessage(context.Background(), node.Outgoing{Body: []byte(body)})
				if err != nil {
					t.Errorf("publish: %v", err)
					return
				}
				mu.Lock()
				acked[body] = id
				mu.Unlock()
			}
		})
	}
	for cut := range uint64(6) {
		atLeast := 150 * int(cut+1)
		var before map[string]node.ID
		eventually(t, "more answers", func() bool {
			mu.Lock()
			defer mu.Unlock()
			if len(acked) < atLeast {
				return false
			}
			before = map[string]node.ID{}
			for k, v := range acked {
				before[k] = v
			}
			return true
		})
		next := openOnDisk(t, disk.Crash(cut))
		topic, ok := next.Catalog().LookupTopic("t")
		if !ok {
			t.Fatal("the topic is gone")
		}
		got := readAll(t, channelOf(t, topic, "c"))
		for body, id := range before {
			if got[id] != body {
				t.Fatalf("cut %d: %s was answered with %s and is %q", cut, body, id, got[id])
			}
		}
		next.Close()
	}
	cancel()
	wg.Wait()
}

// After one failed flush of the commit log, all puts in flight get ErrDisk. Nothing is stored or answered OK any more,
// although the disk works again. The next life has every message that was answered OK before.
//
// B18, invariant 7
func TestDiskErrorEndsPublishing(t *testing.T) {
	disk := newDisk()
	e := openOnDisk(t, disk)
	topic := topicOf(t, e, "t")
	ch := channelOf(t, topic, "c")
	s := subscribe(t, ch, 3)
	before := publish(t, topic, numbered("before", 20, 10)...)
	held := []delivered{s.next(), s.next(), s.next()}

	disk.Inject(faultaio.Rule{Kind: faultaio.KindWriteSync, Name: "clog/*", Err: syscall.EIO}) // once
	var wg sync.WaitGroup
	var okAfter atomic.Int64
	for p := range 8 {
		wg.Go(func() {
			for i := range 5 {
				_, err := topic.PublishMessage(context.Background(), node.Outgoing{Body: fmt.Appendf(nil, "lost%d.%d", p, i)})
				if err == nil {
					okAfter.Add(1)
				} else if !errors.Is(err, errs.ErrDisk) {
					t.Errorf("publish after the fault: %v, want ErrDisk", err)
				}
			}
		})
	}
	wg.Wait()
	if n := okAfter.Load(); n != 0 {
		t.Errorf("%d messages were answered OK after the fault", n)
	}
	if err := e.Health(); !errors.Is(err, errs.ErrDisk) {
		t.Errorf("Health says %v", err)
	}
	if _, err := e.CreateTopic(context.Background(), "new", 1); !errors.Is(err, errs.ErrDisk) {
		t.Errorf("creating a topic after the fault: %v, want ErrDisk", err)
	}
	if err := ch.Pause(context.Background()); !errors.Is(err, errs.ErrDisk) {
		t.Errorf("pausing a channel after the fault: %v, want ErrDisk", err)
	}
	if err := ch.Unpause(context.Background()); err != nil && !errors.Is(err, errs.ErrDisk) {
		t.Errorf("unpausing: %v", err)
	}
	s.finish(held...) // earlier deliveries may be finished; the confirmations are lost with the process
	if got := s.next(); got.body[:6] != "before" {
		t.Errorf("after the fault %q is delivered", got.body)
	}
	after := disk.Kill(7)
	if err := e.Close(); err == nil {
		t.Error("Close does not say that the commit log failed")
	}
	e = openOnDisk(t, after)
	if err := e.Health(); err != nil {
		t.Errorf("Health after the restart: %v", err)
	}
	topic, _ = e.Catalog().LookupTopic("t")
	c, _ := topic.LookupChannel("c")
	got := readAll(t, c)
	for i, id := range before {
		if got[id] == "" {
			t.Errorf("message %d (%s), answered before the fault, is gone", i, id)
		}
	}
	publish(t, topic, "goes on")
}

// The bytes that wait are bounded: beyond MaxInboxBytes a put waits for AdmitTimeout and is then refused. When the disk
// goes on, there is room again. Refused puts are not stored, accepted puts are.
//
// B20
func TestFullInboxRefuses(t *testing.T) {
	const admitTimeout = 500 * time.Millisecond
	disk := newDisk()
	e := openOnDisk(t, disk, func(o *node.Options) {
		o.MaxInboxBytes, o.AdmitTimeout = 64<<10, admitTimeout
	})
	topic := topicOf(t, e, "t")
	ch := channelOf(t, topic, "c")
	publish(t, topic, "first")
	_, release := holdCommits(t, disk)
	const size = 4 << 10
	var taken []chan result
	bytes := 0
	for i := 0; ; i++ {
		done, err := submit(topic, time.Time{}, string(make([]byte, size-5))+fmt.Sprintf("%05d", i))
		if errors.Is(err, errs.ErrOverloaded) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		taken = append(taken, done)
		// Each of the groups on their way to the disk holds up to one buffer of bytes.
		if bytes += size; bytes > 64<<10+3<<20 {
			t.Fatalf("%d bytes were taken although the disk hangs", bytes)
		}
	}
	if bytes < 64<<10 {
		t.Errorf("only %d bytes were taken", bytes)
	}
	start := time.Now()
	_, err := topic.PublishMessage(context.Background(), node.Outgoing{Body: make([]byte, size)})
	over, ok := errors.AsType[*errs.LimitError](err)
	if !errors.Is(err, errs.ErrOverloaded) || !ok || over.Setting != "max-inbox-bytes" || over.Most != int64(64<<10) {
		t.Errorf("a put into the full inbox: %v", err)
	} else if waited := time.Since(start); waited < admitTimeout {
		t.Errorf("refused after %v, AdmitTimeout is %v", waited, admitTimeout)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Millisecond)
	defer cancel()
	if _, err := topic.PublishMessage(ctx, node.Outgoing{
		Body: make([]byte, size),
	}); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("the caller's context ended: %v", err)
	}
	if n := e.Counters().Overloaded.Load(); n != 2 {
		t.Errorf("%d refusals are counted, want 2", n)
	}
	release()
	for i, done := range taken {
		if r := answer(t, done); r.err != nil {
			t.Fatalf("put %d was taken and failed: %v", i, r.err)
		}
	}
	publish(t, topic, "room again")
	if got := readAll(t, ch); len(got) != len(taken)+2 {
		t.Errorf("%d messages stored, %d were taken", len(got), len(taken)+2)
	}
}

// B5: a put that waits past its deadline is refused, even while the disk hangs, and is not stored.
func TestDeadlineInTheQueue(t *testing.T) {
	disk := newDisk()
	e := openOnDisk(t, disk, func(o *node.Options) { o.PublishTimeout, o.GroupsInFlight = 300*time.Millisecond, 1 })
	topic := topicOf(t, e, "t")
	ch := channelOf(t, topic, "c")
	begun, release := holdCommits(t, disk)
	onItsWay, err := submit(topic, time.Now().Add(patience), "on its way")
	if err != nil {
		t.Fatal(err)
	}
	begun()
	expired, err := submit(topic, time.Now().Add(20*time.Millisecond), "too late")
	if err != nil {
		t.Fatal(err)
	}
	byDefault, err := submit(topic, time.Time{}, "too late by default")
	if err != nil {
		t.Fatal(err)
	}
	for name, done := range map[string]chan result{"its own deadline": expired, "PublishTimeout": byDefault} {
		if r := answer(t, done); !errors.Is(r.err, errs.ErrDeadline) {
			t.Errorf("%s: %v, want ErrDeadline", name, r.err)
		}
	}
	release()
	if r := answer(t, onItsWay); r.err != nil {
		t.Errorf("what was on its way to the disk: %v", r.err)
	}
	if got := readAll(t, ch); len(got) != 1 {
		t.Errorf("stored: %v, want only what was on its way", got)
	}
}

// B21, B22: after a clean stop, a kill and a power cut, the next id follows the last id that was answered, or that of a
// put that was on its way. It is never an id that was used before.
func TestIdsGoOnAfterReopen(t *testing.T) {
	disk := newDisk()
	used := map[node.ID]bool{}
	var last node.ID
	for life := range 12 {
		e := openOnDisk(t, disk)
		topic := topicOf(t, e, "t")
		for i := range 15 + life*7 {
			id := publish(t, topic, fmt.Sprintf("%d.%d", life, i))[0]
			if used[id] || len(used) > 0 && id != last+1 {
				t.Fatalf("life %d: id %s after %s", life, id, last)
			}
			used[id], last = true, id
		}
		switch life % 3 {
		case 0:
			if err := e.Close(); err != nil {
				t.Fatal(err)
			}
			disk = disk.Kill(uint64(life))
		case 1:
			old := disk
			disk = old.Kill(uint64(life))
			e.Close()
		case 2:
			old := disk
			disk = old.Crash(uint64(life))
			e.Close()
		}
	}
}
