package node_test

import (
	"errors"
	"strings"
	"testing"

	"penstock/internal/node"
	"penstock/internal/node/errs"
	"penstock/internal/node/fold"
)

// expectRefused fails the test unless a put of "p" in a tenure is refused with one of the errors, or is a repetition of
// what is stored with the same content.
func expectRefused(t *testing.T, what string, topic *node.Topic, at int, tenure uint64, base uint32, want error) {
	t.Helper()
	done := make(chan error, 1)
	p := &node.Put{Messages: [][]byte{[]byte(what)}, Done: func(p *node.Put) { done <- p.Err }}
	err := topic.SubmitNumbered(at, p, &node.Numbered{Name: []byte("p"), Tenure: tenure, Sequence: base})
	if err == nil {
		err = <-done
	}
	if !errors.Is(err, want) {
		t.Errorf("%s: %v, want %v", what, err, want)
	}
}

func store(t *testing.T, topic *node.Topic, at int, tenure uint64, base uint32, body string) {
	t.Helper()
	expectRefused(t, body, topic, at, tenure, base, nil)
}

// A topic is deleted and made anew, twice, and two programs with one name publish. The one that was there before is
// fenced or unknown, and nothing that is answered OK is missing.
func TestTenureOutlivesItsTopic(t *testing.T) {
	e := openOnDisk(t, newDisk())
	topic := topicOf(t, e, "t")
	first, err := topic.OpenNamed(t.Context(), 0, "p")
	if err != nil {
		t.Fatal(err)
	}
	store(t, topic, 0, first.Tenure, 0, "of the first topic")
	if err := e.DeleteTopic(t.Context(), "t"); err != nil {
		t.Fatal(err)
	}
	topic = topicOf(t, e, "t")
	expectRefused(t, "nobody has opened it here", topic, 0, first.Tenure, 1, errs.ErrUnknownProducer)
	second, err := topic.OpenNamed(t.Context(), 0, "p")
	if err != nil || second.Tenure <= first.Tenure || second.Sequence != 0 {
		t.Fatalf("opened %+v, %v, behind %+v", second, err, first)
	}
	store(t, topic, 0, second.Tenure, 0, "of the second program")
	expectRefused(t, "the first program goes on", topic, 0, first.Tenure, 1, errs.ErrFenced)
	expectRefused(t, "the first program begins anew", topic, 0, first.Tenure, 0, errs.ErrFenced)
	if _, err := topic.HoldNamed(t.Context(), 0, "p", first.Tenure); !errors.Is(err, errs.ErrFenced) {
		t.Errorf("the first program opens its name by itself: %v", err)
	}
	store(t, topic, 0, second.Tenure, 1, "of the second program, too")
	if got := topicBodies(t, topic, 0); got != "of the second program,of the second program, too" {
		t.Errorf("%s are stored", got)
	}
}

// One tenure is for all partitions, also for those that the topic gets later: there the program before cannot take the
// name back. What was numbered for one partition is never taken for a repetition in another one.
func TestTenureInAllPartitions(t *testing.T) {
	e := openOnDisk(t, newDisk())
	topic, err := e.CreateTopic(t.Context(), "t", 2)
	if err != nil {
		t.Fatal(err)
	}
	older, err := topic.OpenNamed(t.Context(), 0, "p")
	if err != nil {
		t.Fatal(err)
	}
	newer, err := topic.OpenNamed(t.Context(), 1, "p")
	if err != nil || newer.Tenure <= older.Tenure {
		t.Fatalf("%+v, %v, behind %+v", newer, err, older)
	}
	s := topic.Settings()
	s.Partitions = 3
	if _, err := topic.ConfigureAs(t.Context(), "", s); err != nil {
		t.Fatal(err)
	}
	hold := func(at int, p node.Producer, want error) {
		t.Helper()
		got, err := topic.HoldNamed(t.Context(), at, "p", p.Tenure)
		if !errors.Is(err, want) || err == nil && got.Tenure != p.Tenure {
			t.Errorf("partition %d: %+v, %v; want %v", at, got, err, want)
		}
	}
	hold(2, older, nil) // nobody else has come there
	store(t, topic, 2, older.Tenure, 0, "older")
	hold(2, newer, nil)
	hold(2, older, errs.ErrFenced)
	hold(1, older, errs.ErrFenced)
	hold(0, newer, nil)
	for at, next := range []uint32{0, 0, 1} {
		expectRefused(t, "older goes on", topic, at, older.Tenure, next, errs.ErrFenced)
		store(t, topic, at, newer.Tenure, next, "newer")
	}
	expectRefused(t, "numbered for partition 0", topic, 2, newer.Tenure, 1, errs.ErrSequence)
	var sequence *fold.SequenceError
	done := make(chan error, 1)
	p := &node.Put{Messages: [][]byte{[]byte("gap")}, Done: func(p *node.Put) { done <- p.Err }}
	err = topic.SubmitNumbered(0, p, &node.Numbered{Name: []byte("p"), Tenure: newer.Tenure, Sequence: 9})
	if err != nil {
		t.Fatal(err)
	}
	if err := <-done; !errors.As(err, &sequence) || sequence.Want != 1 || sequence.Got != 9 {
		t.Errorf("a gap: %v", err)
	}
	if got := topicBodies(t, topic, 2); got != "older,newer" {
		t.Errorf("partition 2 has %s", got)
	}
	for _, bad := range []uint64{0, 1, 1<<32 - 1, 1 << 63} {
		if _, err := topic.HoldNamed(t.Context(), 0, "p", bad); !errors.Is(err, errs.ErrProducerTenure) {
			t.Errorf("tenure %d: %v", bad, err)
		}
	}
}

// A node that does not lead passes on what the leader says of the numbers.
func TestClusterTenures(t *testing.T) {
	t.Parallel()
	tc := newTestCluster(t, 3)
	tc.create("t", 1)
	tc.awaitLevel()
	topic := tc.topic(tc.others(tc.leader("t", 0))[0], "t")
	older, err := topic.OpenNamed(ctxBg, 0, "p")
	if err != nil {
		t.Fatal(err)
	}
	newer, err := topic.OpenNamed(ctxBg, 0, "p")
	if err != nil {
		t.Fatal(err)
	}
	store(t, topic, 0, newer.Tenure, 0, "m")
	store(t, topic, 0, newer.Tenure, 0, "m")
	expectRefused(t, "other", topic, 0, newer.Tenure, 0, errs.ErrSequence)
	expectRefused(t, "older", topic, 0, older.Tenure, 1, errs.ErrFenced)
	if _, err := topic.HoldNamed(ctxBg, 0, "p", older.Tenure); !errors.Is(err, errs.ErrFenced) {
		t.Errorf("the older program opens its name again: %v", err)
	}
	got := <-submitNumbered(topic, "p", newer.Tenure, "p", 5, 1)
	var sequence *fold.SequenceError
	if !errors.As(got.err, &sequence) || sequence.Want != 1 || sequence.Got != 5 ||
		!strings.Contains(got.err.Error(), "from 1 to 4 are not stored") {
		t.Errorf("a gap: %v", got.err)
	}
}

// topicBodies are the bodies of a partition's messages.
func topicBodies(t *testing.T, topic *node.Topic, at int) string {
	t.Helper()
	all, err := topic.Peek(t.Context(), at, 0, 100)
	if err != nil {
		t.Fatal(err)
	}
	var bodies []string
	for _, m := range all {
		bodies = append(bodies, string(m.Body))
	}
	return strings.Join(bodies, ",")
}
