package node_test

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"penstock/internal/node"
	"penstock/tests/support/faultaio"
)

// carryDelay is the delay of the deferred messages of a run: longer than it takes to carry them.
const carryDelay = 500 * time.Millisecond

// carryKept is less than a run stores while its deferred messages hold the segments that they were published in.
const carryKept = 300 << 10

// tightOptions make segments end, and commit log files end and go, after a few kilobytes each.
func tightOptions(disk *faultaio.Disk) node.Options {
	o := smallOptions(disk)
	o.CommitFileBytes, o.CommitLiveBytes = 96<<10, 288<<10
	o.MinSegmentBytes, o.MaxSegmentBytes, o.RetentionInterval = 16<<10, 32<<10, 2*time.Millisecond
	o.MaxMessageBytes, o.MaxBatchBytes = 16<<10, 16<<10
	return o
}

// carryBegin durably stores two deferred messages, one that was published with a delay and one that was requeued with
// one, before the power may be cut.
func carryBegin(t *testing.T, e *node.Engine) (
	topic *node.Topic, ch *node.Channel, ids [2]node.ID, began time.Time,
) {
	t.Helper()
	topic = topicOf(t, e, "t")
	ch = channelOf(t, topic, "c")
	s := subscribe(t, ch, 1)
	publish(t, topic, "again")
	again := s.next()
	if err := s.Ready(0); err != nil { // on a slow machine both may be due before s is closed
		t.Fatal(err)
	}
	began = time.Now()
	later, err := topic.PublishMessage(ctxBg, node.Outgoing{Body: []byte("later"), Delay: carryDelay})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Requeue(again.id, carryDelay); err != nil {
		t.Fatal(err)
	}
	s.Close()
	logConfirms(t, ch)
	return topic, ch, [2]node.ID{later, again.id}, began
}

// carryOn publishes and finishes other messages until only the two deferred messages keep the beginning of the log, or
// the power is cut. It says which of the two came before they were carried, which happens on a slow machine.
func carryOn(e *node.Engine, disk *faultaio.Disk, ch *node.Channel, ids [2]node.ID) (carried bool, came [2]bool) {
	s := &testClient{came: make(chan struct{}, 1)}
	k, err := ch.Attach(node.ConsumerOptions{}, s)
	if err != nil {
		return false, came
	}
	defer func() { // deliveries until the power cut
		for m, ok := s.poll(0); ok; m, ok = s.poll(0) {
			if i := slices.Index(ids[:], m.id); i >= 0 {
				came[i] = true
			}
		}
	}()
	defer k.Close()
	if k.Ready(4) != nil {
		return false, came
	}
	s.Consumer = k
	body := bytes.Repeat([]byte("x"), 8<<10)
	for n := 0; !disk.Crashed() && n < 500; n++ {
		if _, err := ch.Topic().PublishMessage(ctxBg, node.Outgoing{Body: body}); err != nil {
			break
		}
		k.Pump()
		for m, ok := s.poll(10 * time.Millisecond); ok; m, ok = s.poll(0) {
			if i := slices.Index(ids[:], m.id); i >= 0 {
				came[i] = true
			} else if disk.Crashed() || k.Finish(m.id) != nil {
				break
			}
		}
		if n > 50 && storedBytes(e) < carryKept {
			return !disk.Crashed(), came
		}
	}
	return false, came
}

// carryCheck is the life after the power cut: both messages come when they are due, unchanged, and once; then their
// segments are removed as well.
func carryCheck(t *testing.T, disk *faultaio.Disk, what string, ids [2]node.ID, began time.Time, came [2]bool) {
	e, err := node.Open(ctxBg, tightOptions(disk))
	if err != nil {
		t.Errorf("%s: %v", what, err)
		return
	}
	defer e.Close()
	topic, _ := e.Catalog().LookupTopic("t")
	ch, _ := topic.LookupChannel("c")
	if time.Since(began) < carryDelay/2 {
		shown, err := ch.Peek(ctxBg, node.PeekOptions{Count: 2})
		if err != nil || fmt.Sprint(peeked(shown)) != "[again later]" {
			t.Errorf("%s: a peek shows %.40q, %v", what, peeked(shown), err)
		}
	}
	s := subscribe(t, ch, 10)
	got := map[node.ID]delivered{}
	for end := time.Now().Add(patience); len(got) < 2; {
		m, ok := s.poll(time.Second)
		if i := slices.Index(ids[:], m.id); ok && i >= 0 {
			if _, twice := got[m.id]; twice || m.body != [2]string{"later", "again"}[i] ||
				m.at.Sub(began) < carryDelay || !came[i] && int(m.attempts) != i+1 {
				t.Errorf("%s: %s came after %v, attempt %d, again %v", what, m.body, m.at.Sub(began), m.attempts, twice)
			}
			got[m.id] = m
		}
		if ok {
			s.finish(m)
		} else if time.Now().After(end) {
			t.Errorf("%s: %v came of the messages that wait", what, got)
			return
		}
	}
	awaitShrink(t, e, topic, s, carryKept)
	eventually(t, what+": everything is finished", func() bool {
		for m, ok := s.poll(0); ok; m, ok = s.poll(0) {
			s.finish(m) // a busy machine finishes some after their timeout: they come again
		}
		st := channelStats(t, ch)
		return st.Depth == 0 && st.InFlightCount == 0 && st.DeferredCount == 0
	})
}

// The power may be cut at any moment while deferred messages are carried and their segments removed. The messages are
// in the old or the new place, and come when they are due.
//
// B43, B50, B51.
func TestCarryPowerCut(t *testing.T) {
	t.Parallel()
	step := 1
	if testing.Short() {
		step = 7
	}
	var next atomic.Int64
	var done atomic.Bool
	var wg sync.WaitGroup
	for range 24 { // most of the time they wait until the messages are due
		wg.Go(func() {
			for !done.Load() && !t.Failed() {
				cut := int(next.Add(1)-1)*step + 1
				disk := faultaio.New(faultaio.Options{Seed: uint64(cut)})
				e, err := node.Open(ctxBg, tightOptions(disk))
				if err != nil {
					t.Error(err)
					return
				}
				_, ch, ids, began := carryBegin(t, e)
				disk.CrashAt(disk.Ops() + cut)
				through, came := carryOn(e, disk, ch, ids)
				if through && done.CompareAndSwap(false, true) {
					t.Logf("through after %d operations, %v", cut, time.Since(began))
				}
				disk.CrashAt(disk.Ops())
				_ = e.Close()
				carryCheck(t, disk.Crash(uint64(cut)), fmt.Sprint("cut ", cut), ids, began, came)
				if cut > 3000 {
					t.Error("it does not end")
				}
			}
		})
	}
	wg.Wait()
}

// The old place of a carried message is needed until the batch that carries the message is durable.
//
// B43, B50.
func TestCarriedStaysUntilDurable(t *testing.T) {
	disk := newDisk()
	o := tightOptions(disk)
	node.SetMarkAfter(&o, time.Hour) // a mark would be the commit that passes the hold below
	e, err := node.Open(ctxBg, o)
	if err != nil {
		t.Fatal(err)
	}
	topic := topicOf(t, e, "t")
	ch, brake := channelOf(t, topic, "c"), channelOf(t, topic, "brake")
	later, err := topic.PublishMessage(ctxBg, node.Outgoing{Body: []byte("later"), Delay: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	s := subscribe(t, ch, 1)
	publishFlood(t, topic, s, 100)
	logConfirms(t, ch)
	if kept := storedBytes(e); kept < 2*carryKept {
		t.Fatalf("%d bytes are kept, though a channel has read nothing", kept)
	}
	commits := func() (n int) {
		for _, op := range disk.Log() {
			if op.Kind == faultaio.KindWriteSync && strings.HasPrefix(op.Name, "clog/") {
				n++
			}
		}
		return n
	}
	before := commits()
	// The brake's confirmations pass; the next batch carries, and hangs.
	disk.Inject(faultaio.Rule{Kind: faultaio.KindWriteSync, Name: "clog/*", After: 1, Hold: true, Count: -1})
	ctx, cancel := context.WithTimeout(ctxBg, time.Minute)
	defer cancel()
	if err := brake.Empty(ctx); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the message is being carried", func() bool { return commits() > before+1 })
	s.expectNothing("nothing is due") // and retention has looked many times
	disk.CrashAt(disk.Ops())
	var left []*faultaio.Disk
	for seed := range uint64(8) {
		left = append(left, disk.Crash(seed))
	}
	disk.ClearRules()
	disk.ReleaseHeld()
	_ = e.Close()
	for seed, disk := range left {
		e := openOnDisk(t, disk)
		topic, _ := e.Catalog().LookupTopic("t")
		ch, _ := topic.LookupChannel("c")
		got, err := ch.Peek(ctxBg, node.PeekOptions{Count: 1})
		if err != nil || len(got) != 1 || got[0].ID != later || string(got[0].Body) != "later" {
			t.Errorf("seed %d: %v, %v", seed, peeked(got), err)
		}
		if err := e.Close(); err != nil {
			t.Error(err)
		}
	}
}
