package node

import (
	"testing"
	"time"

	"penstock/internal/node/datadir"
)

// A leader that asks for a copy which this node does not have gets an answer at once, and one answer for a burst of
// frames. If it goes on asking, that is logged once, after a while.
func TestAbsentCopiesAreNoted(t *testing.T) {
	var a absentCopies
	k := absentCopy{leader: 2}
	answers, told := 0, 0
	for now := time.Duration(0); now < 10*time.Second; now += 10 * time.Millisecond {
		for range 5 {
			answer, tell := a.note(k, int64(now), absentLevel)
			if answer {
				answers++
			}
			if tell {
				told++
				if now < absentPatience {
					t.Errorf("it is logged after %v", now)
				}
			}
			if now == 0 && answers == 0 {
				t.Fatal("the first frame is not answered")
			}
		}
	}
	if answers != 100 || told != 1 {
		t.Errorf("answered %d times in 10 s, logged %d times", answers, told)
	}
	for n := range 3 * maxAbsent {
		k.id.Partition = uint32(n)
		if a.note(k, 0, absentLevel); len(a.entries) > maxAbsent {
			t.Fatalf("%d are remembered", len(a.entries))
		}
	}
}

// The leader of a new topic asks for copies that are not open yet. That is no fault, until it has asked for long.
func TestMissingCopyIsAFaultAfterAWhile(t *testing.T) {
	var a absentCopies
	k := absentCopy{leader: 2}
	for _, ask := range []struct {
		at   time.Duration
		tell bool
	}{{time.Hour, false}, {time.Hour + absentPatience, true}, {time.Hour + absentPatience, false}} {
		if _, tell := a.note(k, int64(ask.at), absentLevel); tell != ask.tell {
			t.Errorf("at %v: it counts as missing: %v", ask.at, tell)
		}
	}
}

// The answer that there is no copy belongs to a feature level: an older node would take it for a damaged frame and cut
// the connection.
//
// F3.
func TestNoAnswerBelowItsLevel(t *testing.T) {
	for _, level := range []int{datadir.FirstLevel, absentLevel} {
		var a absentCopies
		if answer, _ := a.note(absentCopy{leader: 2}, int64(time.Hour), level); answer != (level >= absentLevel) {
			t.Errorf("level %d: answered: %v", level, answer)
		}
	}
}
