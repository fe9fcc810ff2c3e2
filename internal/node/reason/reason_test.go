package reason

import (
	"errors"
	"fmt"
	"testing"

	"penstock/internal/node/errs"
	"penstock/internal/node/fold"
	"penstock/replicate/wire"
)

// Every error that has a number comes back from another node as the same error, even if it was wrapped.
func TestErrorsComeBackAsThemselves(t *testing.T) {
	back := map[wire.Answer]func(n uint8) error{
		wire.AnswerPut:          func(n uint8) error { return OfPut(n, "") },
		wire.AnswerSubscription: OfSubscription,
		wire.AnswerOperation:    func(n uint8) error { return OfOperation(uint32(n), "in other words") },
	}
	for i, known := range byNumber {
		r := wire.Reason(i)
		if known == nil {
			t.Fatalf("%v is no error", r)
		}
		for answer, errorOf := range back {
			want, ok := r.Number(answer)
			if !ok {
				continue
			}
			for _, err := range []error{known, fmt.Errorf("engine: partition 3: %w: again", known)} {
				n := Number(answer, err)
				got := errorOf(n)
				if n != want || !errors.Is(got, known) {
					t.Errorf("in an answer of kind %d %v has number %d, want %d, and comes back as %v", answer, err, n, want, got)
				}
				for j, other := range byNumber {
					if j != i && errors.Is(got, other) && !errors.Is(known, other) {
						t.Errorf("in an answer of kind %d %v comes back as %v, too", answer, err, wire.Reason(j))
					}
				}
			}
		}
	}
}

// A leader without inodes is not taken for one whose disk is full: what helps is another thing.
func TestNoInodesComesBack(t *testing.T) {
	err := OfPut(Number(wire.AnswerPut, errs.ErrNoInodes), "")
	if err != errs.ErrNoInodes || !errors.Is(err, errs.ErrNoSpace) {
		t.Errorf("it comes back as %v", err)
	}
	if err := OfPut(Number(wire.AnswerPut, errs.ErrNoSpace), ""); err != errs.ErrNoSpace {
		t.Errorf("a full disk comes back as %v", err)
	}
}

// What a leader says beyond the reason of a refused put comes back, too; nothing is sent of an error that says no more.
func TestTextOfPutComesBack(t *testing.T) {
	over := &errs.LimitError{Err: errs.ErrQuota, What: "it", Value: 4, Most: 3, Setting: "quota-count", OfTopic: true}
	n := Number(wire.AnswerPut, over)
	err := OfPut(n, TextOfPut(n, over))
	if !errors.Is(err, errs.ErrQuota) || err.Error() != over.Error() {
		t.Errorf("it comes back as %v", err)
	}
	if text := TextOfPut(n, errs.ErrQuota); text != "" {
		t.Errorf("%q is sent of an error that says no more than its number", text)
	}
}

// An error without a number gets 0. A number that only a newer version knows is read as ErrUnknown for a put, as
// ErrMoved for a subscription, and as its text alone for an operation.
func TestErrorsWithoutANumber(t *testing.T) {
	other := errors.New("something else")
	for _, a := range []wire.Answer{wire.AnswerPut, wire.AnswerSubscription, wire.AnswerOperation} {
		if n := Number(a, other); n != 0 {
			t.Errorf("in an answer of kind %d it has number %d", a, n)
		}
	}
	const newer = wire.ReasonCount + 1
	if err := OfPut(newer, ""); err != errs.ErrUnknown {
		t.Errorf("a put is answered %v", err)
	}
	if err := OfSubscription(newer); err != errs.ErrMoved {
		t.Errorf("a subscription is answered %v", err)
	}
	text := errs.ErrVersion.Error()
	if err := OfOperation(newer, text); err.Error() != text || errors.Is(err, errs.ErrVersion) {
		t.Errorf("an operation is answered %v, which counts as what a newer version does not mean", err)
	}
}

// Versions before the numbers send these sentences and no number, and recognize errors by them. The sentences must
// never change.
func TestErrorsOfNodesWithoutNumbers(t *testing.T) {
	sentences := map[error]string{
		errs.ErrVersion: "engine: the settings were changed by somebody else meanwhile: read them again; nothing was " +
			"changed",
		errs.ErrSettings: "engine: the channel's settings are not valid; nothing was changed",
		errs.ErrDisk: "engine: the disk failed a write or flush: nothing more is stored until the node is " +
			"restarted; messages answered OK before are safe, this one's fate is unknown",
		errs.ErrNoChannel: "engine: there is no such channel; nothing was changed",
		errs.ErrTooManyProducers: "engine: the partition knows as many named producers as it may (4096), and all of them " +
			"were used in the last 7 days; nothing was changed",
	}
	for i, known := range byNumber {
		if known == fold.ErrFenced || known == fold.ErrProducerOwner {
			continue // operations are answered with it only by versions that send the number
		}
		if _, carried := wire.Reason(i).Number(wire.AnswerOperation); carried != (sentences[known] != "") {
			t.Errorf("%v: an answer carries it %v, it has a sentence %v", known, carried, !carried)
		}
	}
	for err, text := range sentences {
		if err.Error() != text {
			t.Errorf("the text is %q, nodes without numbers know %q", err, text)
		}
		for _, text := range []string{text, text + ": dead_letter"} {
			if got := OfOperation(0, text); !errors.Is(got, err) || got.Error() != text {
				t.Errorf("%q is taken for %v", text, got)
			}
		}
		if got := OfOperation(0, "node n2: "+text); errors.Is(got, err) {
			t.Errorf("%v is taken for what it only mentions", got)
		}
	}
}
