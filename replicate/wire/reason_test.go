package wire

import (
	"slices"
	"strconv"
	"testing"

	"penstock/tests/support/formattest"
)

// given has every reason that ever had a number, by its number. A line is never changed or removed: a reason that is
// gone keeps its number, and a new reason comes last.
var given = []string{
	0: "Unknown", 1: "NoSpace", 2: "ReadOnly", 3: "Deadline", 4: "Overloaded", 5: "Disk", 6: "Deleted",
	7: "MessageTooBig", 8: "BatchTooBig", 9: "DeferTooLong", 10: "EmptyMessage", 11: "NoQuorum", 12: "NoLeader",
	13: "Headers", 14: "Quota", 15: "StateFull",
	16: "Moved", 17: "NoChannel", 18: "TooManyClients", 19: "NotInFlight", 20: "NotOwner",
	21: "Version", 22: "Settings",
	23: "Fenced", 24: "Sequence", 25: "UnknownProducer", 26: "TooManyProducers", 27: "NoInodes",
	28: "ProducerOwner",
}

// givenToSubscriptions does the same for the numbers that subscriptions use.
var givenToSubscriptions = []string{
	0: "Moved", 1: "Deleted", 2: "NoChannel", 3: "TooManyClients", 4: "NotInFlight", 5: "NotOwner", 6: "StateFull",
}

// Numbers are never reused: this test has the meaning of each one a second time.
func TestReasonsKeepTheirNumbers(t *testing.T) {
	if len(given) != ReasonCount {
		t.Fatalf("%d numbers were given, the code has %d", len(given), ReasonCount)
	}
	bySubscription := map[uint8]string{}
	for r := range Reason(ReasonCount) {
		if r.String() != given[r] || slices.Index(given, r.String()) != int(r) {
			t.Errorf("number %d is %v, it was given to %s", r, r, given[r])
		}
		if reasons[r].in == 0 {
			t.Errorf("no answer carries %v", r)
		}
		if n, ok := r.Number(AnswerSubscription); ok {
			if bySubscription[n] != "" {
				t.Errorf("subscriptions give %v the number %d, which is %s", r, n, bySubscription[n])
			}
			bySubscription[n] = r.String()
		}
	}
	for n, name := range givenToSubscriptions {
		if bySubscription[uint8(n)] != name {
			t.Errorf("number %d of subscriptions is %s, it was given to %s", n, bySubscription[uint8(n)], name)
		}
	}
	if len(bySubscription) != len(givenToSubscriptions) {
		t.Errorf("%d numbers of subscriptions were given, the code has %d", len(givenToSubscriptions), len(bySubscription))
	}
	if _, ok := ReasonUnknown.Number(AnswerOperation); ok {
		t.Error("number 0 of a ForwardOpAck means that there is none")
	}
}

// A number in an answer means one reason, and a number that was never assigned means none.
func TestReasonOfItsNumber(t *testing.T) {
	for _, a := range []Answer{AnswerPut, AnswerOperation, AnswerSubscription} {
		known := map[uint32]bool{}
		for r := range Reason(ReasonCount) {
			n, ok := r.Number(a)
			if !ok {
				continue
			}
			known[uint32(n)] = true
			if back, ok := ReasonOf(a, uint32(n)); !ok || back != r {
				t.Errorf("in an answer of kind %d %v is number %d, which is read as %v", a, r, n, back)
			}
		}
		for _, n := range []uint32{0, 1, 5, 7, 15, 16, 17, 22, 23, 25, 26, 255, 256, 256 + 5, 1<<32 - 1} {
			if r, ok := ReasonOf(a, n); ok != known[n] {
				t.Errorf("in an answer of kind %d number %d, known %v, is read as %v %v", a, n, known[n], r, ok)
			}
		}
	}
	if _, ok := Reason(ReasonCount).Number(AnswerPut); ok {
		t.Error("a reason that does not exist has a number")
	}
}

func TestFormatReasons(t *testing.T) {
	rows := formattest.Tables(t)["Reasons"]
	if len(rows) != ReasonCount {
		t.Fatalf("%d reasons, the code has %d", len(rows), ReasonCount)
	}
	number := func(r Reason, a Answer) string {
		if n, ok := r.Number(a); ok {
			return strconv.Itoa(int(n))
		}
		return ""
	}
	for i, row := range rows {
		r := Reason(i)
		want := []string{
			strconv.Itoa(i), r.String(), number(r, AnswerPut), number(r, AnswerOperation), number(r, AnswerSubscription),
		}
		if !slices.Equal(row, want) {
			t.Errorf("FORMAT.md has %q, the code says %q", row, want)
		}
	}
}
