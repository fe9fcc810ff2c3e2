package node_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"penstock/internal/node"
)

// skew is the error of the wrong wall clocks.
type skew struct{ ns atomic.Int64 }

func (s *skew) set(d time.Duration) { s.ns.Store(int64(d)) }

func (s *skew) now() time.Time { return time.Now().Add(time.Duration(s.ns.Load())) }

// seen waits until e has noticed that its wall clock was set.
func (s *skew) seen(t *testing.T, e *node.Engine, d time.Duration) {
	t.Helper()
	before := node.ClockSteps(e)
	s.set(d)
	eventually(t, "the step of the clock is seen", func() bool { return node.ClockSteps(e) > before })
}

// A node that restarts with a wrong clock removes none of its messages.
//
// B39.
func TestClockWrongAtTheStart(t *testing.T) {
	t.Parallel()
	for name, d := range map[string]time.Duration{"ahead": 48 * time.Hour, "behind": -48 * time.Hour} {
		t.Run(name, func(t *testing.T) {
			var s skew
			o := inDir(t.TempDir())
			o.RetentionAge = time.Hour
			node.SetWallClock(&o, s.now)
			e := openWith(t, o)
			channelOf(t, topicOf(t, e, "t"), "c")
			publish(t, topicOf(t, e, "t"), numbered("m", 400, 1500)...)
			if err := e.Close(); err != nil {
				t.Fatal(err)
			}
			s.set(d)
			e = openWith(t, o)
			topic := topicOf(t, e, "t")
			publish(t, topic, numbered("n", 400, 1500)...)
			<-time.After(10 * 20 * time.Millisecond)
			if got := readAll(t, channelOf(t, topic, "c")); len(got) != 800 {
				t.Errorf("%d of 800 messages came", len(got))
			}
		})
	}
}

// Retention by age removes messages that are old by the time that has passed, although the wall clock was set back by
// hours.
//
// B39.
func TestClockBackDoesNotStopRetention(t *testing.T) {
	t.Parallel()
	var s skew
	o := inDir(t.TempDir())
	o.RetentionAge = 50 * time.Millisecond
	node.SetWallClock(&o, s.now)
	e := openWith(t, o)
	topic := topicOf(t, e, "t")
	channelOf(t, topic, "c")
	s.seen(t, e, -5*time.Hour)
	eventually(t, "retention trims", func() bool {
		publish(t, topic, numbered("m", 100, 1500)...)
		return e.Counters().TrimmedBytes.Load() > 400<<10
	})
}

// A delay and a message timeout end by the time that has passed: not earlier, and not hours later.
//
// B49, B50.
func TestClockStepsDuringDelays(t *testing.T) {
	t.Parallel()
	for name, d := range map[string]time.Duration{"ahead": 2 * time.Hour, "behind": -2 * time.Hour} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			const wait = 2 * time.Second
			var s skew
			e := openOnDisk(t, newDisk(), func(o *node.Options) {
				o.MsgTimeout, o.MaxMsgTimeout = wait, wait
				node.SetWallClock(o, s.now)
			})
			topic := topicOf(t, e, "t")
			k := subscribe(t, channelOf(t, topic, "c"), 4)
			began := time.Now()
			if _, err := topic.PublishMessage(context.Background(), node.Outgoing{
				Body: []byte("published later"), Delay: wait,
			}); err != nil {
				t.Fatal(err)
			}
			publish(t, topic, "requeued", "times out")
			first, second := k.next(), k.next()
			for _, m := range []delivered{first, second} {
				if m.body == "requeued" {
					if err := k.Requeue(m.id, wait); err != nil {
						t.Fatal(err)
					}
				}
			}
			s.seen(t, e, d)
			for done := 0; done < 3; {
				m := k.next()
				if passed := time.Since(began); passed < wait {
					t.Errorf("%q came after %v, its time is after %v", m.body, passed, wait)
				}
				if k.Finish(m.id) == nil { // else this test got no processor for so long that it timed out again
					done++
				}
				k.Pump()
			}
		})
	}
}

// Delays that were stored before a restart end by the wall clock of the next start, which is the same here.
//
// B49.
func TestClockStepBeforeRestart(t *testing.T) {
	t.Parallel()
	const wait = 2 * time.Second
	var s skew
	o := inDir(t.TempDir())
	node.SetWallClock(&o, s.now)
	e := openWith(t, o)
	topic := topicOf(t, e, "t")
	channelOf(t, topic, "c")
	s.seen(t, e, 3*time.Hour)
	began := time.Now()
	if _, err := topic.PublishMessage(context.Background(), node.Outgoing{
		Body: []byte("later"), Delay: wait,
	}); err != nil {
		t.Fatal(err)
	}
	s.seen(t, e, 0)
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
	e = openWith(t, o)
	k := subscribe(t, channelOf(t, topicOf(t, e, "t"), "c"), 1)
	m := k.next()
	if passed := time.Since(began); passed < wait {
		t.Errorf("it came after %v, its time is after %v", passed, wait)
	}
	k.finish(m)
}
