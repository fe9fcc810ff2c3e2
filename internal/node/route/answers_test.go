package route

import "testing"

// A leader tells what became of the newest puts of another node, and never says that a put did not arrive if it may
// have.
func TestAnswers(t *testing.T) {
	var s Answers[string]
	is := func(request uint64, fate Fate, answer string) {
		t.Helper()
		if f, a := s.Ask(request); f != fate || a != answer {
			t.Errorf("request %d: fate %d, %q; want %d, %q", request, f, a, fate, answer)
		}
	}
	is(5, FateUnknown, "") // nothing ever arrived: this process may be new
	n := s.Arrived(10)
	is(10, FateOpen, "")
	is(9, FateUnknown, "") // it was sent before the first one that this process knows
	is(11, FateAbsent, "")
	s.Answered(n, "ten")
	is(10, FateAnswered, "ten")
	first := s.Arrived(12)
	is(11, FateAbsent, "")
	for i := range uint64(RememberedPuts - 2) {
		s.Arrived(100 + i)
	}
	is(10, FateAnswered, "ten")
	s.Arrived(5000)
	is(10, FateUnknown, "") // it is forgotten
	is(12, FateOpen, "")
	last := s.Arrived(5001)
	is(12, FateUnknown, "")
	is(11, FateUnknown, "") // it is as old as what is forgotten
	s.Answered(first, "twelve")
	is(5001, FateOpen, "") // the answer of a forgotten put goes to no other one
	s.Answered(last, "last")
	is(5001, FateAnswered, "last")
	is(5002, FateAbsent, "")
}
