package history

import (
	"bytes"
	"strings"
	"testing"
	"time"
)

// script builds a history one event per millisecond, as people would tell it.
type script struct {
	at     time.Duration
	events []Event
	next   uint64 // message id
}

func (s *script) add(e Event) *script {
	s.at += time.Millisecond
	e.At = s.at
	if e.Topic == "" && e.Op != Fault && e.Op != Heal && e.Op != Close && e.Op != Open {
		e.Topic = "t"
	}
	s.events = append(s.events, e)
	return s
}

func (s *script) wait(d time.Duration) *script { s.at += d; return s }

func (s *script) channel(name string, first bool) *script {
	s.add(Event{Client: "admin", Op: Channel, Channel: name, First: first})
	return s.add(Event{Client: "admin", Op: Exists, Channel: name, First: first})
}

func (s *script) send(client string, seq uint64) *script {
	return s.add(Event{Client: client, Op: Publish, Seq: seq, Conn: 1})
}

func (s *script) answer(client string, seq uint64, op Op) *script {
	return s.add(Event{Client: client, Op: op, Seq: seq, Detail: string(op)})
}

func (s *script) pub(client string, seq uint64) *script {
	return s.send(client, seq).answer(client, seq, OK)
}

func (s *script) get(channel, from string, seq, message uint64) *script {
	return s.add(Event{
		Client: "c-" + channel, Op: Deliver, Channel: channel, From: from, Seq: seq, Message: message, Attempts: 1, Conn: 1,
	})
}

// again is a redelivery.
func (s *script) again(channel, from string, seq, message uint64) *script {
	s.get(channel, from, seq, message)
	s.events[len(s.events)-1].Attempts = 2
	return s
}

func (s *script) fin(channel string, message uint64) *script {
	return s.add(Event{Client: "c-" + channel, Op: Fin, Channel: channel, Message: message, Conn: 1})
}

func (s *script) fault(n uint64, op Op) *script {
	return s.add(Event{Client: "nemesis", Op: op, Seq: n, Detail: "kill"})
}

// flow publishes n values one after the other and delivers and confirms them on channel a.
func (s *script) flow(client string, from, n uint64) *script {
	for i := from; i < from+n; i++ {
		s.next++
		s.pub(client, i).get("a", client, i, s.next).fin("a", s.next)
	}
	return s
}

func began() *script { return (&script{}).channel("a", true) }

// p1 is where the ids of partition 1 begin.
const p1 = uint64(1) << partitionShift

// badHistories has one for each way to be wrong.
var badHistories = map[string]struct {
	s    *script
	want Kind
}{
	"lost at the beginning":       {began().pub("p", 1).flow("p", 2, 3), Lost},
	"lost in the middle":          {began().flow("p", 1, 3).pub("p", 4).flow("p", 5, 3), Lost},
	"lost at the end":             {began().flow("p", 1, 3).pub("p", 4), Lost},
	"everything lost":             {began().pub("p", 1).pub("p", 2), Lost},
	"lost on one of two channels": {began().channel("b", false).flow("p", 1, 2).get("b", "p", 1, 1), Lost},
	"lost on a channel made late": {began().flow("p", 1, 2).channel("b", false).flow("p", 3, 1), Lost},
	"a batch in part": {
		began().add(Event{Client: "p", Op: Publish, Seq: 1, Count: 3}).answer("p", 1, OK).get("a", "p", 1, 1).get("a", "p", 2,
			2),
		TornBatch,
	},
	"an unknown batch in part": {
		began().add(Event{Client: "p", Op: Publish, Seq: 1, Count: 2}).answer("p", 1, Unknown).get("a", "p", 2, 2), TornBatch,
	},
	"a batch with another in between": {
		began().add(Event{Client: "p", Op: Publish, Seq: 1, Count: 2}).answer("p", 1, OK).get("a", "p", 1, 1).get("a", "p", 2,
			3),
		TornBatch,
	},
	"a message that nobody sent": {began().flow("p", 1, 2).get("a", "p", 9, 9), Phantom},
	"a message of another topic": {
		began().add(Event{Client: "p", Op: Publish, Seq: 1, Topic: "u"}).get("a", "p", 1, 1), Phantom,
	},
	"delivered before it was sent": {began().get("a", "p", 1, 1).pub("p", 1).again("a", "p", 1, 1), Phantom},
	"a changed byte": {
		began().flow("p", 1, 2).add(Event{Client: "c-a", Op: Garbage, Channel: "a", Detail: "p/1/abd"}), Corrupt,
	},
	"a failed publish that surfaces": {began().send("p", 1).answer("p", 1, Fail).get("a", "p", 1, 1), Aborted},
	"it surfaces before it fails":    {began().send("p", 1).get("a", "p", 1, 1).answer("p", 1, Fail), Aborted},
	"one id for two values": {
		began().pub("p", 1).pub("p", 2).get("a", "p", 1, 1).add(Event{
			Client: "other", Op: Deliver, Channel: "a", From: "p", Seq: 2, Message: 1,
		}),
		DivergentID,
	},
	"another value at the same id on the other channel": {
		began().channel("b", false).pub("p", 1).send("p", 2).answer("p", 2, Unknown).get("a", "p", 1, 1).get("b", "p", 2,
			1).get("b", "p", 1, 7), DivergentID,
	},
	"stored twice": {began().flow("p", 1, 1).get("a", "p", 1, 2), Duplicate},
	"deliveries go back": {
		began().pub("p", 1).pub("q", 1).get("a", "q", 1, 8).get("a", "p", 1, 4), Regression,
	},
	"before the channel was asked for": {began().flow("p", 1, 2).channel("b", false).get("b", "p", 2, 2), BeforeChannel},
	"one producer's order": {
		began().send("p", 1).send("p", 2).answer("p", 1, OK).answer("p", 2, OK).get("a", "p", 2, 1).get("a", "p", 1, 2),
		Reordered,
	},
	"two producers' order": {began().pub("p", 1).pub("q", 1).get("a", "q", 1, p1+3).get("a", "p", 1, p1+4), Stale},
	"an unknown one goes back in time": {
		began().pub("p", 1).send("q", 1).answer("q", 1, Unknown).get("a", "q", 1, 3).get("a", "p", 1, 4), Stale,
	},
	"confirmed and delivered again": {began().flow("p", 1, 1).wait(2*time.Second).again("a", "p", 1, 1), Redelivered},
	"forgotten long before a fault": {
		began().flow("p", 1, 1).wait(2*time.Second).fault(1, Fault).fault(1, Heal).again("a", "p", 1, 1), Redelivered,
	},
	"no answer after healing": {
		began().flow("p", 1, 1).fault(1, Fault).fault(1, Heal).send("p", 2).wait(11*time.Second).fault(2, Fault), Stuck,
	},
	"one producer starves": {
		began().fault(1, Fault).fault(1, Heal).send("q", 1).flow("p", 1, 4).wait(11*time.Second).flow("p", 5, 1), Stuck,
	},
	"two answers": {began().flow("p", 1, 1).answer("p", 1, Fail), Malformed},
	"sent twice":  {began().flow("p", 1, 1).send("p", 1), Malformed},
}

// An ordered channel may repeat a message until the next one, through a fault, and never after it.
func TestOrderedHistories(t *testing.T) {
	repeats := began().flow("p", 1, 1).fault(1, Fault).again("a", "p", 1, 1).fin("a", 1).fault(1, Heal).pub("p",
		2).get("a", "p", 2, 2).get("a", "p", 2, 2)
	back := began().flow("p", 1, 1).fault(1, Fault).pub("p", 2).get("a", "p", 2, 2).again("a", "p", 1, 1).fault(1, Heal)
	for _, tc := range []struct {
		s       *script
		ordered []string
		want    int
	}{{repeats, []string{"a"}, 0}, {back, []string{"a"}, 1}, {back, nil, 0}} {
		if r := Check(tc.s.events, Options{Ordered: tc.ordered}); r.Counts[WentBack] != tc.want {
			t.Errorf("%d times back, want %d: %v", r.Counts[WentBack], tc.want, r.Violations)
		}
	}
}

func TestBadHistories(t *testing.T) {
	for name, tc := range badHistories {
		t.Run(name, func(t *testing.T) {
			r := Check(tc.s.events, Options{})
			if r.Counts[tc.want] == 0 {
				t.Errorf("not found: %v", r.Violations)
			}
			for _, v := range r.Violations {
				if v.Kind != tc.want && tc.want != DivergentID { // two values at one id disturb the orders as well
					t.Errorf("also %s: %s", v.Kind, v.Text)
				}
			}
			var b bytes.Buffer
			if err := r.Print(&b); err != nil || !strings.Contains(b.String(), "VIOLATION "+string(tc.want)) {
				t.Errorf("the report does not say it: %v\n%s", err, &b)
			}
		})
	}
}

// What is allowed, and looks odd.
func TestGoodHistories(t *testing.T) {
	for name, s := range map[string]*script{
		"nothing": {},
		"an unanswered publish that surfaces, and one that does not": began().send("p", 1).answer("p", 1, Unknown).send("p",
			2).answer("p", 2, Unknown).get("a", "p", 1, 1),
		"a publish without an outcome": began().send("p", 1).flow("p", 2, 1),
		"at least once": began().pub("p", 1).get("a", "p", 1, 1).again("a", "p",
			1, 1),
		"delivered before its answer": began().send("p", 1).get("a", "p", 1, 1).answer("p", 1,
			OK),
		"a later channel begins at the end": began().flow("p", 1, 3).channel("b", false),
		"a later channel gets what it may": began().send("p", 1).channel("b", false).answer("p", 1,
			OK).get("b", "p", 1, 1).get("a", "p", 1, 1),
		"the first channel gets what came before": (&script{}).pub("p", 1).channel("a", true).get("a",
			"p", 1, 1),
		"a FIN on a connection that ends": began().flow("p", 1, 1).add(Event{
			Client: "c-a", Op: Close, Conn: 1,
		}).again("a", "p", 1, 1),
		"a refused FIN": began().flow("p", 1, 1).add(Event{
			Client: "c-a", Op: FinErr, Channel: "a", Message: 1, Conn: 1,
		}).wait(time.Minute).again("a", "p", 1, 1),
		"a FIN just before a fault": began().flow("p", 1, 1).fault(1, Fault).fault(1,
			Heal).wait(time.Minute).add(Event{
			Client: "c-a", Op: Deliver, Channel: "a", From: "p", Seq: 1, Message: 1, Attempts: 1, Conn: 2,
		}),
		"a FIN while a fault lasts": began().fault(1, Fault).wait(time.Minute).flow("p", 1,
			1).again("a", "p", 1, 1).add(Event{Client: "nemesis", Op: Heal, Seq: 1}),
		"partitions have no order": began().pub("p", 1).pub("p", 2).get("a", "p", 1,
			p1+1).get("a", "p", 2, 1),
		"a new leader gives a connection what the old gave to others": began().pub("p", 1).pub("q", 1).get("a", "q", 1,
			8).fault(1, Fault).fault(1, Heal).get("a", "p", 1, 4).fin("a", 8).fin("a", 4),
		"another connection starts lower": began().flow("p", 1, 2).add(Event{
			Client: "d", Op: Deliver, Channel: "a", From: "p", Seq: 1, Message: 1, Attempts: 1, Conn: 1,
		}).events2(),
		"messages in flight together have no order": began().send("p", 1).send("q", 1).answer("p", 1, OK).answer("q", 1,
			OK).get("a", "q", 1, 1).get("a", "p", 1, 2),
		"after an unanswered one, order is free": began().send("p", 1).answer("p", 1, Unknown).pub("p", 2).get("a",
			"p", 2, 1).get("a", "p", 1, 2),
		"the next fault comes before the limit": began().fault(1, Fault).fault(1, Heal).send("p",
			1).wait(5*time.Second).fault(2, Fault).wait(time.Minute),
		"a batch": began().add(Event{Client: "p", Op: Publish, Seq: 1, Count: 2}).answer("p", 1, OK).get("a", "p", 1,
			1).get("a", "p", 2, 2),
		"a channel whose creation was not answered yet": began().add(Event{Client: "x", Op: Channel, Channel: "b"}).flow("p",
			1, 1),
	} {
		t.Run(name, func(t *testing.T) {
			if r := Check(s.events, Options{}); !r.OK() {
				t.Errorf("%v", r.Violations)
			}
		})
	}
}

// events2 ends a chain that had a FIN of message 1 on a live connection: the consumer's connection is declared gone.
func (s *script) events2() *script {
	s.events = append([]Event{{At: 0, Client: "c-a", Op: Close, Conn: 1}}, s.events...)
	return s
}

func TestUndrained(t *testing.T) {
	s := began().flow("p", 1, 1).pub("p", 2).send("p", 3).answer("p", 3, Fail).get("a", "p", 3, 3)
	r := Check(s.events, Options{Undrained: true})
	if r.Counts[Lost] != 0 || r.Counts[Aborted] != 1 {
		t.Errorf("%v", r.Violations)
	}
}

func TestWindows(t *testing.T) {
	s := began().flow("p", 1, 2)
	s.send("p", 3).fault(1, Fault).answer("p", 3, OK) // in flight: not what the fault is measured by
	s.wait(400*time.Millisecond).send("p", 4).wait(100*time.Millisecond).answer("p", 4, OK)
	s.fault(1, Heal).wait(time.Second).pub("p", 5)
	s.fault(2, Fault).wait(time.Second).fault(3, Fault).wait(time.Second).pub("p", 6)
	r := Check(s.events, Options{Undrained: true})
	w := r.Windows
	if len(w) != 3 {
		t.Fatalf("%+v", w)
	}
	if w[0].First != 503*time.Millisecond || w[0].Gap != 1003*time.Millisecond || w[0].Heal < 0 {
		t.Errorf("the first fault: %+v", w[0])
	}
	if w[1].First != -1 || w[1].Gap != 1001*time.Millisecond || w[1].Heal != -1 {
		t.Errorf("the fault without an answer: %+v", w[1])
	}
	if w[2].First != 1002*time.Millisecond {
		t.Errorf("the last fault: %+v", w[2])
	}
	var b bytes.Buffer
	if err := PrintWindows(&b, w); err != nil || !strings.Contains(b.String(), "kill   3      1          503ms") {
		t.Errorf("%v\n%s", err, &b)
	}
}

func TestPercentile(t *testing.T) {
	all := []time.Duration{5, 1, 4, 2, 3}
	for p, want := range map[float64]time.Duration{0: 1, 20: 1, 50: 3, 99: 5, 100: 5} {
		if got := Percentile(all, p); got != want {
			t.Errorf("p%v is %d, want %d", p, got, want)
		}
	}
	if all[0] != 5 || Percentile(nil, 50) != 0 {
		t.Error("the input was changed, or nothing has a percentile")
	}
}
