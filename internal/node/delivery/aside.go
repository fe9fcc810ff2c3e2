package delivery

import (
	"math/bits"

	"penstock/batch"
)

// Pauses before a dead letter that could not be moved is tried again.
const (
	asideFirstNs = int64(50e6)
	asideMaxNs   = int64(30e9)
)

// Aside has the dead letters of a channel that could not be moved to the dead-letter topic when they were tried last.
// Each is tried again after a pause of its own, so that none stops those behind it. The zero value is ready for use. It
// is in memory only: after a crash all are tried again.
type Aside struct {
	letters map[batch.ID]asideLetter
	why     string // of the last one
	all     string // why no dead letter can be moved, because of the dead-letter topic; "": it can be opened
}

type asideLetter struct {
	dueNs int64
	tries uint
}

// Fail sets a dead letter aside that could not be moved.
func (a *Aside) Fail(id batch.ID, why string, nowNs int64) {
	if a.letters == nil {
		a.letters = map[batch.ID]asideLetter{}
	}
	l := a.letters[id]
	pause := asideMaxNs
	if l.tries < uint(bits.Len64(uint64(asideMaxNs/asideFirstNs))) {
		pause = min(asideFirstNs<<l.tries, asideMaxNs)
	}
	a.letters[id] = asideLetter{nowNs + pause, l.tries + 1}
	a.why = why
}

// FailAll notes why the dead-letter topic takes no dead letters; "": it does.
func (a *Aside) FailAll(why string) { a.all = why }

// Waits says whether the dead letter must not be tried yet.
func (a *Aside) Waits(id batch.ID, nowNs int64) bool {
	l, aside := a.letters[id]
	return aside && nowNs < l.dueNs
}

// Forget forgets a dead letter that is not in the outbox any more.
func (a *Aside) Forget(id batch.ID) { delete(a.letters, id) }
func (a *Aside) Clear()             { *a = Aside{} }

// Count returns how many of so many dead letters in the outbox could not be moved, and why the last one could not.
func (a *Aside) Count(outbox int) (n int, why string) {
	switch {
	case outbox == 0:
		return 0, ""
	case a.all != "":
		return outbox, a.all
	case len(a.letters) == 0:
		return 0, ""
	}
	return min(len(a.letters), outbox), a.why
}
