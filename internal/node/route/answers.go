package route

// RememberedPuts is how many puts of each other node a leader remembers.
const RememberedPuts = 1024

// Answers remembers, at a leader, the newest puts of one other node, and what they were answered. When the connection
// between the two ends, answers may be lost on their way. The other node then asks for each put that it has no answer
// to, and learns what became of it:
//
//	this node                                    the leader
//	1 sends put 5; the leader stores it          2 its answer is lost with the connection
//	3 connects again, asks: what of 5?           4 stored, as message 77
//
// A is what a put is answered. The owner's lock guards an Answers. A request number is larger than those of all puts
// that its node sent before. A crash loses an Answers; then every put that was sent before has an unknown fate.
type Answers[A any] struct {
	puts  []remembered[A] // the newest ones: put n is at n modulo RememberedPuts
	count uint64          // how many arrived
	below uint64          // of a request up to this one that is not in puts, nothing is known
}

type remembered[A any] struct {
	request  uint64
	answered bool
	answer   A
}

// Fate is what a leader knows of a put that another node asks for.
type Fate uint8

const (
	FateUnknown  Fate = iota // nothing: it may have been stored
	FateAbsent               // it did not arrive; if it arrives after all, it must be refused, with its run
	FateOpen                 // it arrived, and will be answered
	FateAnswered             // it was answered
)

// Arrived notes a put. Answered needs the number that it returns.
func (s *Answers[A]) Arrived(request uint64) (n uint64) {
	if s.count == 0 {
		s.below = request - 1
	}
	n = s.count
	s.count++
	p := remembered[A]{request: request}
	if len(s.puts) < RememberedPuts {
		s.puts = append(s.puts, p)
		return n
	}
	oldest := &s.puts[n%RememberedPuts]
	s.below = max(s.below, oldest.request)
	*oldest = p
	return n
}

// Answered notes the answer to put n, unless it was forgotten.
func (s *Answers[A]) Answered(n uint64, a A) {
	if s.count-n <= RememberedPuts {
		p := &s.puts[n%RememberedPuts]
		p.answered, p.answer = true, a
	}
}

// Ask returns what became of a put. The answer is set with FateAnswered.
func (s *Answers[A]) Ask(request uint64) (Fate, A) {
	for i := range s.puts {
		switch p := &s.puts[i]; {
		case p.request != request:
		case p.answered:
			return FateAnswered, p.answer
		default:
			var none A
			return FateOpen, none
		}
	}
	var none A
	if s.count == 0 || request <= s.below {
		return FateUnknown, none
	}
	return FateAbsent, none
}
