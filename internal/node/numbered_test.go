package node_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"penstock/internal/node"
	"penstock/internal/node/errs"
)

// submitNumbered publishes a put of a named producer to t/0: messages "prefix N", with their numbers.
func submitNumbered(
	topic *node.Topic, name string, tenure uint64, prefix string, base, count uint32,
) <-chan produced {
	answer := make(chan produced, 1)
	n := &node.Numbered{Name: []byte(name), Tenure: tenure, Sequence: base}
	p := &node.Put{Done: func(p *node.Put) { answer <- produced{p.First, n.Duplicate(), p.Err} }}
	for i := range count {
		p.Messages = append(p.Messages, fmt.Appendf(nil, "%s %d", prefix, base+i))
	}
	if err := topic.SubmitNumbered(0, p, n); err != nil {
		answer <- produced{err: err}
	}
	return answer
}

// The rules for batches of producers hold for puts that name their producer.
func TestSubmitNumbered(t *testing.T) {
	disk := newDisk()
	e := openOnDisk(t, disk)
	topic := topicOf(t, e, "t")
	expect := func(what string, got <-chan produced, want produced) node.ID {
		t.Helper()
		a := <-got
		if a.repeat != want.repeat || !errors.Is(a.err, want.err) || want.first != 0 && a.first != want.first {
			t.Errorf("%s: %+v, want %+v", what, a, want)
		}
		return a.first
	}
	var p, again node.Producer
	put := func(of *node.Producer, base, count uint32) <-chan produced {
		return submitNumbered(topic, "p", of.Tenure, "p", base, count)
	}
	expect("not opened", put(&node.Producer{Tenure: 1}, 0, 1), produced{err: errs.ErrUnknownProducer})
	var err error
	p, err = topic.OpenNamed(t.Context(), 0, "p")
	if err != nil || p.Epoch != 1 || p.Sequence != 0 {
		t.Fatalf("%+v, %v", p, err)
	}
	first := expect("first", put(&p, 0, 3), produced{})
	second := expect("second", put(&p, 3, 1), produced{})
	expect("first again", put(&p, 0, 3), produced{first: first, repeat: true})
	expect("second again", put(&p, 3, 1), produced{first: second, repeat: true})
	expect("gap", put(&p, 5, 1), produced{err: errs.ErrSequence})
	expect("other content", submitNumbered(topic, "p", p.Tenure, "q", 3, 1), produced{err: errs.ErrSequence})
	expect("overlap", put(&p, 3, 2), produced{err: errs.ErrSequence})
	expect("part of a put", put(&p, 0, 1), produced{err: errs.ErrSequence})
	nobody := &node.Producer{Tenure: p.Tenure + 1}
	expect("a tenure that nobody has", put(nobody, 4, 1), produced{err: errs.ErrUnknownProducer})
	expect("another's name", submitNumbered(topic, "q", p.Tenure, "p", 4, 1), produced{err: errs.ErrUnknownProducer})

	// A batch that the same producer seals is in the same order.
	expect("sealed", send(topic, sealed(t, p, "p", 4, 2)), produced{})
	expect("sealed, again as a put", put(&p, 4, 2), produced{repeat: true})
	again, err = topic.OpenNamed(t.Context(), 0, "p")
	if err != nil || again.ID != p.ID || again.Epoch != 2 || again.Sequence != 6 ||
		again.Tenure <= p.Tenure {
		t.Errorf("opened again it is %+v, %v", again, err)
	}
	expect("fenced", put(&p, 6, 1), produced{err: errs.ErrFenced})
	third := expect("third", put(&again, 6, 2), produced{})
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
	e = openOnDisk(t, disk.Crash(3))
	topic = topicOf(t, e, "t")
	expect("again after a restart", put(&again, 6, 2), produced{first: third, repeat: true})
	expect("next after a restart", put(&again, 8, 1), produced{})
	checkOnce(t, e, "p", 9)
}

// Headers and delays are stored with the producer's numbers, and puts without a producer are around them.
func TestSubmitNumberedBetweenOthers(t *testing.T) {
	disk := newDisk()
	e := openOnDisk(t, disk)
	topic := topicOf(t, e, "t")
	o, err := topic.OpenNamed(t.Context(), 0, "p")
	if err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	results := make([]node.Put, 40)
	for i := range results {
		p := &results[i]
		p.Messages = [][]byte{fmt.Appendf(nil, "x %d", i)}
		all.Add(1)
		p.Done = func(*node.Put) { all.Done() }
		var err error
		if i%2 == 1 {
			err = topic.SubmitTo(0, p)
		} else {
			p.Messages = append(p.Messages, []byte("second"))
			p.Headers = [][]node.Header{{{Key: []byte("a"), Value: fmt.Append(nil, i)}}, nil}
			p.Defer = time.Duration(i%4) * 10 * time.Millisecond
			err = topic.SubmitNumbered(0, p, &node.Numbered{Name: []byte("p"), Tenure: o.Tenure, Sequence: uint32(i)})
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	all.Wait()
	last := node.ID(0)
	for i := range results {
		if err := results[i].Err; err != nil || i > 0 && results[i].First <= last {
			t.Fatalf("put %d: id %v behind %v, %v", i, results[i].First, last, err)
		}
		last = results[i].First
	}
	check := func(topic *node.Topic) {
		t.Helper()
		peeked, err := topic.Peek(t.Context(), 0, 0, 100)
		if err != nil || len(peeked) != 60 {
			t.Fatalf("%d messages, %v", len(peeked), err)
		}
		for _, m := range peeked {
			var n int
			if _, err := fmt.Sscanf(string(m.Body), "x %d", &n); err != nil {
				if len(m.Headers) != 0 {
					t.Errorf("%s has headers %v", m.Body, m.Headers)
				}
				continue
			}
			if n%2 == 0 && (len(m.Headers) != 1 || string(m.Headers[0].Value) != fmt.Sprint(n)) {
				t.Errorf("%s has headers %s", m.Body, m.Headers)
			}
			if (n%4 == 2) != !m.Due.IsZero() {
				t.Errorf("%s is due at %v", m.Body, m.Due)
			}
		}
	}
	check(topic)
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
	e = openOnDisk(t, disk.Crash(1))
	topic = topicOf(t, e, "t")
	check(topic)
	if got := <-submitNumbered(topic, "p", o.Tenure, "p", 40, 1); got.err != nil || got.repeat {
		t.Errorf("the next after a restart: %+v", got)
	}
}

func TestSubmitNumberedRefuses(t *testing.T) {
	e := openOnDisk(t, newDisk(), func(o *node.Options) { o.MaxLevel = 2 })
	topic := topicOf(t, e, "t")
	if _, err := topic.OpenNamed(t.Context(), 0, "p"); !errors.Is(err, errs.ErrProducerLevel) {
		t.Errorf("at level 2: %v", err)
	}
	if got := <-submitNumbered(topic, "p", 1, "p", 0, 1); !errors.Is(got.err, errs.ErrProducerLevel) {
		t.Errorf("at level 2: %+v", got)
	}
	e = openOnDisk(t, newDisk())
	topic = topicOf(t, e, "t")
	if _, err := topic.OpenNamed(t.Context(), 0, "a\xff"); !errors.Is(err, errs.ErrProducerName) {
		t.Errorf("a name that is no UTF-8: %v", err)
	}
	for _, name := range []string{"", strings.Repeat("n", 256)} {
		if _, err := topic.OpenNamed(t.Context(), 0, name); !errors.Is(err, errs.ErrProducerName) {
			t.Errorf("a name of %d bytes: %v", len(name), err)
		}
		if got := <-submitNumbered(topic, name, 1, "p", 0, 1); !errors.Is(got.err, errs.ErrProducerName) {
			t.Errorf("a name of %d bytes: %+v", len(name), got)
		}
	}
	for _, n := range []int{-1, 1} {
		if _, err := topic.OpenNamed(t.Context(), n, "p"); !errors.Is(err, errs.ErrNoPartition) {
			t.Errorf("partition %d: %v", n, err)
		}
		err := topic.SubmitNumbered(n, &node.Put{Done: func(*node.Put) {}}, &node.Numbered{Name: []byte("p")})
		if !errors.Is(err, errs.ErrNoPartition) {
			t.Errorf("partition %d: %v", n, err)
		}
	}
	if n := len(stored(t, e, "p")); n != 0 {
		t.Errorf("%d messages are stored", n)
	}
}

// A put of a named producer costs no allocation once pools have grown.
func TestSubmitNumberedDoesNotAllocate(t *testing.T) {
	e := openWith(t, node.Options{DataPath: fastDir(t), RetentionInterval: time.Hour})
	topic := topicOf(t, e, "t")
	o, err := topic.OpenNamed(t.Context(), 0, "p")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	n := &node.Numbered{Name: []byte("p"), Tenure: o.Tenure}
	p := &node.Put{Messages: [][]byte{[]byte("hello")}, Done: func(p *node.Put) { done <- p.Err }}
	got := testing.AllocsPerRun(1000, func() {
		if err := topic.SubmitNumbered(0, p, n); err != nil {
			t.Fatal(err)
		}
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		n.Sequence++
	})
	if got > 0.1 {
		t.Errorf("%v allocations", got)
	}
}

// A named producer publishes through the nodes that do not lead, several puts at a time, while leaders are killed. What
// it sends again with the same numbers is stored once, in order, and with the ids that it was told.
//
// B17, B19, B22.
func TestClusterNumberedForwarded(t *testing.T) {
	t.Parallel()
	tc := newTestCluster(t, 3)
	tc.create("t", 1)
	tc.channel("t", "c") // what nobody confirmed stays
	tc.awaitLevel()
	l := newNumberedLog()
	var tenure uint64
	var next uint32
	for round := range 4 {
		leader := tc.leader("t", 0)
		through := tc.others(leader)[round%2]
		p, err := tc.topic(through, "t").OpenNamed(ctxBg, 0, "p")
		if err != nil || p.Tenure <= tenure || p.Sequence < next {
			t.Fatalf("round %d: opened %+v, the tenure was %d, %d were stored: %v", round, p, tenure, next, err)
		}
		old := tenure
		tenure = p.Tenure
		killed := make(chan struct{})
		go func() {
			defer close(killed)
			before := l.count()
			tc.eventually("puts are stored", func() bool { return l.count() > before+200 })
			tc.kill(leader)
		}()
		topic := tc.topic(through, "t")
		next = publishNumbered(t, tc, topic, l, p, killed)
		<-killed
		if got := <-submitNumbered(topic, "p", old, "p", next, 1); old > 0 && !errors.Is(got.err, errs.ErrFenced) {
			t.Errorf("an earlier epoch, forwarded: %+v", got)
		}
		tc.start(leader)
		tc.awaitInSync("t")
	}
	tc.awaitEqualCopies("t", 0)
	for _, m := range tc.running() {
		l.check(t, m.e)
		checkOnce(t, m.e, "p", next)
	}
}

// publishNumbered publishes as p, up to 8 puts at a time, until ended and all are answered OK. It repeats what got
// another answer, and returns the next number.
func publishNumbered(
	t *testing.T, tc *testCluster, topic *node.Topic, l *numberedLog, p node.Producer, ended <-chan struct{},
) uint32 {
	next, over := p.Sequence, false
	var open []numberedBatch
	deadline := time.Now().Add(patience)
	for !over || len(open) > 0 {
		if time.Now().After(deadline) {
			t.Fatal("the puts are not stored")
		}
		select {
		case <-ended:
			over = true
		default:
		}
		for len(open) < 8 && !over {
			open = append(open, numberedBatch{next, 1 + next%3})
			next += open[len(open)-1].count
		}
		var answers []<-chan produced
		for _, b := range open {
			answers = append(answers, submitNumbered(topic, "p", p.Tenure, "p", b.base, b.count))
		}
		failed := false
		var left []numberedBatch
		for i, b := range open {
			a := <-answers[i]
			switch {
			case a.err == nil: // maybe behind one that was stored without an answer
				l.note(t, "p", b.base, b.count, a)
				continue
			case errors.Is(a.err, errs.ErrSequence) && failed, duringFailover(a.err):
			default:
				t.Errorf("put %+v: %v", b, a.err)
			}
			failed, left = true, append(left, b)
		}
		open = slices.Clone(left)
	}
	return next
}

// A topic's producers are opened through any node, also while the leader changes, and each opening ends the one before.
func TestClusterOpenNamedElsewhere(t *testing.T) {
	t.Parallel()
	tc := newTestCluster(t, 3)
	tc.create("t", 1)
	tc.awaitLevel()
	l := tc.leader("t", 0)
	var epoch uint32
	for _, m := range tc.nodes {
		p, err := tc.topic(m, "t").OpenNamed(ctxBg, 0, "p")
		if err != nil || p.Epoch != epoch+1 || p.ID == 0 {
			t.Fatalf("%s opens %+v: %v", m.name, p, err)
		}
		epoch = p.Epoch
	}
	m := tc.others(l)[0]
	tc.kill(l)
	p, err := tc.topic(m, "t").OpenNamed(ctxBg, 0, "p")
	if err != nil || p.Epoch <= epoch {
		t.Errorf("after the leader's end: %+v, %v", p, err)
	}
}
