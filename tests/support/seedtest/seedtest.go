package seedtest

import (
	"fmt"
	"iter"
	"os"
	"testing"
)

// Variable names the seeds of a run: from-to, half-open, for instance 0-100000.
const Variable = "TEST_SIM_SEEDS"

// Range returns the seeds that Variable names, or else the first count ones, or with -short the first short ones. The
// test ends if Variable is wrong.
func Range(t testing.TB, count, short uint64) (from, to uint64) {
	t.Helper()
	text := os.Getenv(Variable)
	switch _, err := fmt.Sscanf(text, "%d-%d", &from, &to); {
	case text != "" && err != nil:
		t.Fatalf("%s=%q: want from-to", Variable, text)
	case text == "" && testing.Short():
		to = short
	case text == "":
		to = count
	}
	return from, to
}

// Each is Range as a sequence, which ends when the test has failed. It logs the seed that failed.
func Each(t testing.TB, count, short uint64) iter.Seq[uint64] {
	t.Helper()
	from, to := Range(t, count, short)
	return func(yield func(uint64) bool) {
		seed := from
		defer func() {
			if t.Failed() {
				t.Logf("seed %d", seed)
			}
		}()
		for ; seed < to; seed++ {
			if !yield(seed) || t.Failed() {
				return
			}
		}
	}
}
