package node_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"penstock/internal/node"
	"penstock/tests/support/faultaio"
)

// Every state of a channel survives a clean stop, a kill and a power cut. Messages that were confirmed at least a
// ConfirmInterval ago stay confirmed, all others come, deferred messages keep their time, and flags hold.
//
// B22, B44, B50, B53, B54, B71
func TestStatesSurviveRestart(t *testing.T) {
	t.Parallel()
	ends := map[string]func(*testing.T, *node.Engine, *faultaio.Disk) *faultaio.Disk{
		"clean stop": func(t *testing.T, e *node.Engine, d *faultaio.Disk) *faultaio.Disk {
			if err := e.Close(); err != nil {
				t.Fatal(err)
			}
			return d.Kill(1)
		},
		"kill":      func(_ *testing.T, _ *node.Engine, d *faultaio.Disk) *faultaio.Disk { return d.Kill(1) },
		"power cut": func(_ *testing.T, _ *node.Engine, d *faultaio.Disk) *faultaio.Disk { return d.Crash(1) },
	}
	for _, state := range restartStates {
		for end, stop := range ends {
			t.Run(state.name+"/"+end, func(t *testing.T) {
				t.Parallel()
				disk := newDisk()
				e := openOnDisk(t, disk)
				topic := topicOf(t, e, "t")
				ch := channelOf(t, topic, "c")
				begun := time.Now()
				state.before(t, topic, ch)
				awaitSettled(t, e)
				e2 := openOnDisk(t, stop(t, e, disk))
				topic, _ = e2.Catalog().LookupTopic("t")
				ch, ok := topic.LookupChannel("c")
				if !ok {
					t.Fatal("the channel is gone")
				}
				state.after(t, topic, ch, begun)
			})
		}
	}
}

// awaitSettled waits until every confirmation is in the commit log: it publishes twice behind them.
func awaitSettled(t *testing.T, e *node.Engine) {
	t.Helper()
	marker := topicOf(t, e, "marker")
	records := e.CommitStats().Records
	for quiet := 0; quiet < 5; {
		publish(t, marker, "x")
		time.Sleep(4 * smallOptions(nil).ConfirmInterval) // the confirmer waits for a timer
		now := e.CommitStats().Records
		if now == records+1 {
			quiet++
		} else {
			quiet = 0
		}
		records = now
	}
}

const restartDelay = 800 * time.Millisecond

var restartStates = []struct {
	name   string
	before func(*testing.T, *node.Topic, *node.Channel)
	after  func(*testing.T, *node.Topic, *node.Channel, time.Time)
}{
	{"in flight", func(t *testing.T, topic *node.Topic, ch *node.Channel) {
		publish(t, topic, "finished", "in flight", "unread")
		s := subscribe(t, ch, 2)
		s.finish(s.next())
		s.next()
	}, func(t *testing.T, topic *node.Topic, ch *node.Channel, _ time.Time) {
		if got := subscribe(t, ch, 10).take(2); !slices.Equal(got, []string{"in flight", "unread"}) {
			t.Errorf("came %q", got)
		}
	}},
	{"deferred by DPUB", func(t *testing.T, topic *node.Topic, ch *node.Channel) {
		if _, err := topic.PublishMessage(ctxBg, node.Outgoing{Body: []byte("later"), Delay: restartDelay}); err != nil {
			t.Fatal(err)
		}
		publish(t, topic, "now")
		s := subscribe(t, ch, 1)
		if m := s.next(); m.body != "now" {
			t.Errorf("%q came before its time", m.body)
		} else {
			s.finish(m)
		}
	}, restartComesLater("later", 1)},
	{"deferred by REQ", func(t *testing.T, topic *node.Topic, ch *node.Channel) {
		publish(t, topic, "again")
		s := subscribe(t, ch, 1)
		m := s.next()
		if err := s.Requeue(m.id, 0); err != nil {
			t.Fatal(err)
		}
		s.Pump()
		m = s.next()
		if err := s.Requeue(m.id, restartDelay); err != nil {
			t.Fatal(err)
		}
	}, restartComesLater("again", 3)},
	{"deferred and confirmed", func(t *testing.T, topic *node.Topic, ch *node.Channel) {
		if _, err := topic.PublishMessage(ctxBg, node.Outgoing{
			Body: []byte("done"), Delay: 20 * time.Millisecond,
		}); err != nil {
			t.Fatal(err)
		}
		publish(t, topic, "also done")
		subscribe(t, ch, 5).take(2)
	}, func(t *testing.T, _ *node.Topic, ch *node.Channel, _ time.Time) {
		subscribe(t, ch, 5).expectNothing("both were confirmed")
	}},
	{"paused channel", func(t *testing.T, topic *node.Topic, ch *node.Channel) {
		if err := ch.Pause(ctxBg); err != nil {
			t.Fatal(err)
		}
		publish(t, topic, "m")
	}, func(t *testing.T, topic *node.Topic, ch *node.Channel, _ time.Time) {
		s := subscribe(t, ch, 5)
		s.expectNothing("the channel was paused")
		if !channelStats(t, ch).Paused {
			t.Error("statistics do not say paused")
		}
		if err := ch.Unpause(ctxBg); err != nil {
			t.Fatal(err)
		}
		s.take(1)
	}},
	{"paused topic", func(t *testing.T, topic *node.Topic, ch *node.Channel) {
		publish(t, topic, "before")
		if err := topic.Pause(ctxBg); err != nil {
			t.Fatal(err)
		}
		publish(t, topic, "held")
	}, func(t *testing.T, topic *node.Topic, ch *node.Channel, _ time.Time) {
		s := subscribe(t, ch, 5)
		if got := s.take(1); got[0] != "before" {
			t.Errorf("came %q", got)
		}
		s.expectNothing("the topic was paused")
		if err := topic.Unpause(ctxBg); err != nil {
			t.Fatal(err)
		}
		if got := s.take(1); got[0] != "held" {
			t.Errorf("came %q", got)
		}
	}},
	{"skipped", func(t *testing.T, topic *node.Topic, ch *node.Channel) {
		if err := ch.Skip(ctxBg, true); err != nil {
			t.Fatal(err)
		}
		publish(t, topic, "skipped")
	}, func(t *testing.T, topic *node.Topic, ch *node.Channel, _ time.Time) {
		s := subscribe(t, ch, 5)
		publish(t, topic, "skipped too")
		s.expectNothing("the channel skips")
		if err := ch.Skip(ctxBg, false); err != nil {
			t.Fatal(err)
		}
		publish(t, topic, "m")
		if got := s.take(1); got[0] != "m" {
			t.Errorf("came %q", got)
		}
	}},
	{"reset backward", func(t *testing.T, topic *node.Topic, ch *node.Channel) {
		ids := publish(t, topic, numbered("m", 10, 0)...)
		subscribe(t, ch, 5).take(10)
		if err := ch.Seek(ctxBg, node.SeekTo{Kind: node.SeekID, ID: ids[6]}); err != nil {
			t.Fatal(err)
		}
	}, func(t *testing.T, _ *node.Topic, ch *node.Channel, _ time.Time) {
		s := subscribe(t, ch, 10)
		m := s.next()
		for n := 6; n < 10; n++ {
			if want := fmt.Sprintf("m%d", n); m.body != want {
				t.Errorf("came %q, want %q", m.body, want)
			}
			s.finish(m)
			if n < 9 {
				m = s.next()
			}
		}
	}},
	{"deleted channel", func(t *testing.T, topic *node.Topic, ch *node.Channel) {
		publish(t, topic, "m")
		other := channelOf(t, topic, "other")
		if err := topic.DeleteChannel(ctxBg, "other"); err != nil {
			t.Fatal(err)
		}
		if _, err := other.Attach(node.ConsumerOptions{}, nil); err == nil {
			t.Error("a deleted channel takes consumers")
		}
		e := channelOf(t, topic, "e#ephemeral")
		subscribe(t, e, 1)
	}, func(t *testing.T, topic *node.Topic, ch *node.Channel, _ time.Time) {
		if cs := topic.Channels(); len(cs) != 1 {
			t.Errorf("%d channels, want 1", len(cs))
		}
		subscribe(t, ch, 1).take(1)
	}},
}

// restartComesLater expects one message, and not before its time.
func restartComesLater(body string, attempts uint16) func(*testing.T, *node.Topic, *node.Channel, time.Time) {
	return func(t *testing.T, _ *node.Topic, ch *node.Channel, begun time.Time) {
		s := subscribe(t, ch, 5)
		m := s.next()
		if m.body != body || m.attempts != attempts {
			t.Errorf("came %q with attempts %d, want %q with %d", m.body, m.attempts, body, attempts)
		}
		if early := restartDelay - m.at.Sub(begun); early > time.Millisecond { // times in the log are whole milliseconds
			t.Errorf("it came %v too early", early)
		}
		s.finish(m)
		s.expectNothing("it was finished")
	}
}
