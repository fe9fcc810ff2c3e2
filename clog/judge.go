package clog

import "slices"

// markState is what recovery finds in place of log.mark.
type markState uint8

const (
	markNone    markState = iota // no file
	markDamaged                  // no slot of it verifies
	markForeign                  // it is of another store
	markValid

	markStates
)

// judgement is what the log mark says about a log that recovery replayed to its end.
type judgement uint8

const (
	judgedNew       judgement = iota // a log that was never begun
	judgedUnmarked                   // a log from before there were marks: trusted, and marked from now on
	judgedGood                       // the log holds all that its mark names
	judgedForgotten                  // the log lacks something that was durable once, or its mark was removed

	judgements
)

// judging is one row of the truth table. A nil condition holds for both values.
type judging struct {
	marks     []markState
	required  *bool // the directory cannot be without a mark: see Options.MarkRequired
	begun     *bool // recovery found a group
	reached   *bool // the chain goes as far as the mark says; of a valid mark
	judgement judgement
}

var (
	unusable = []markState{markNone, markDamaged, markForeign}

	// judgings is the judgement about log.mark: for every combination exactly one row holds (a test enumerates them).
	//
	// A valid mark is a lower bound, whatever the directory's level. Without one, only a directory that must have one
	// proves anything: older versions make none, and leave the one that is there as it is.
	judgings = []judging{
		{marks: unusable, required: &yes, judgement: judgedForgotten},
		{marks: unusable, required: &no, begun: &no, judgement: judgedNew},
		{marks: unusable, required: &no, begun: &yes, judgement: judgedUnmarked},
		{marks: []markState{markValid}, reached: &no, judgement: judgedForgotten},
		{marks: []markState{markValid}, reached: &yes, begun: &no, judgement: judgedNew},
		{marks: []markState{markValid}, reached: &yes, begun: &yes, judgement: judgedGood},
	}
)

func (j *judging) holds(m markState, required, begun, reached bool) bool {
	return slices.Contains(j.marks, m) && suits(j.required, required) && suits(j.begun, begun) && suits(j.reached, reached)
}

// judge returns the judgement of the row that holds.
func judge(m markState, required, begun, reached bool) judgement {
	for i := range judgings {
		if judgings[i].holds(m, required, begun, reached) {
			return judgings[i].judgement
		}
	}
	panic("BUG: clog: no rule for what recovery found of the log mark")
}
