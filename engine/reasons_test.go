package engine

import (
	"errors"
	"fmt"
	"testing"

	"penstock/netproto"
	"penstock/replicate/wire"
)

// Every error that has a number comes back from another node as the error that it was, also with words around it.
func TestErrorsComeBackAsThemselves(t *testing.T) {
	back := map[wire.Answer]func(n uint8) error{
		wire.AnswerPut:          putErrorOf,
		wire.AnswerSubscription: subscriptionErrorOf,
		wire.AnswerOperation:    func(n uint8) error { return operationErrorOf(uint32(n), "in other words") },
	}
	for i, known := range errorsByReason {
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
				n := numberOf(answer, err)
				got := errorOf(n)
				if n != want || !errors.Is(got, known) {
					t.Errorf("in an answer of kind %d %v has number %d, want %d, and comes back as %v", answer, err, n, want, got)
				}
				for j, other := range errorsByReason {
					if j != i && errors.Is(got, other) {
						t.Errorf("in an answer of kind %d %v comes back as %v, too", answer, err, wire.Reason(j))
					}
				}
			}
		}
	}
}

// An error without a number refuses, and so does a number that only a newer version knows.
func TestErrorsWithoutANumber(t *testing.T) {
	other := errors.New("something else")
	for _, a := range []wire.Answer{wire.AnswerPut, wire.AnswerSubscription, wire.AnswerOperation} {
		if n := numberOf(a, other); n != 0 {
			t.Errorf("in an answer of kind %d it has number %d", a, n)
		}
	}
	const newer = wire.ReasonCount + 1
	if err := putErrorOf(newer); err != ErrUnknown {
		t.Errorf("a put is answered %v", err)
	}
	if err := subscriptionErrorOf(newer); err != ErrMoved {
		t.Errorf("a subscription is answered %v", err)
	}
	text := ErrVersion.Error()
	if err := operationErrorOf(newer, text); err.Error() != text || errors.Is(err, ErrVersion) {
		t.Errorf("an operation is answered %v, which counts as what a newer version does not mean", err)
	}
}

// What ends a round of asking leaders is known for what it is, whoever says it.
func TestFinalErrorsHaveNumbers(t *testing.T) {
	for _, err := range finalErrors {
		for level := firstLevel; level <= NewestLevel; level++ {
			f := operationAck(level, 7, nil, fmt.Errorf("%w: and why", err))
			got := operationErrorOf(f.Stream, string(f.Head))
			if f.Status != netproto.StatusRejected || f.Request != 7 || !errors.Is(got, err) || !final(got) {
				t.Errorf("at level %d %v comes back as %v in %+v", level, err, got, f)
			}
			if got.Error() != err.Error()+": and why" {
				t.Errorf("at level %d its text is %q", level, got)
			}
			if (f.Stream != 0) != (level >= reasonLevel) {
				t.Errorf("at level %d its number is %d", level, f.Stream)
			}
		}
	}
	f := operationAck(NewestLevel, 7, []byte("[]"), nil)
	if f.Status != netproto.StatusOK || f.Stream != 0 || string(f.Head) != "[]" {
		t.Errorf("a result travels as %+v", f)
	}
}

// The version before numbers sends these sentences and no number, and takes them for what they are. They may never
// change.
func TestErrorsOfNodesWithoutNumbers(t *testing.T) {
	sentences := map[error]string{
		ErrVersion:  "engine: the settings were changed by somebody else meanwhile: read them again; nothing was changed",
		ErrSettings: "engine: the channel's settings are not valid; nothing was changed",
		ErrDisk: "engine: the disk failed a write or flush: nothing more is stored until the node is " +
			"restarted; messages answered OK before are safe, this one's fate is unknown",
		ErrNoChannel: "engine: there is no such channel; nothing was changed",
	}
	if len(sentences) != len(finalErrors) {
		t.Fatalf("%d sentences, %d errors", len(sentences), len(finalErrors))
	}
	for err, text := range sentences {
		if err.Error() != text {
			t.Errorf("the text is %q, nodes without numbers know %q", err, text)
		}
		for _, text := range []string{text, text + ": dead_letter"} {
			if got := operationErrorOf(0, text); !errors.Is(got, err) || got.Error() != text {
				t.Errorf("%q is taken for %v", text, got)
			}
		}
		if got := operationErrorOf(0, "node n2: "+text); errors.Is(got, err) {
			t.Errorf("%v is taken for what it only mentions", got)
		}
	}
}
