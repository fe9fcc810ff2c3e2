package publish

import (
	"math/rand/v2"
	"sync/atomic"

	"penstock/internal/node/errs"
	"penstock/internal/server/metrics"
)

// Counts are the publishes over all protocols since the server's start, for /metrics and the history: those that were
// refused, and how long those took that were answered OK, of which only a sample is counted. Any goroutine may count
// and read.
type Counts struct {
	refused           [reasonCount]atomic.Uint64
	NSQ, HTTP, Native metrics.Durations
}

// Refused returns how many publishes were refused for each reason.
func (c *Counts) Refused() map[string]uint64 {
	out := map[string]uint64{}
	for r, name := range reasonNames {
		out[name] = c.refused[r].Load()
	}
	return out
}

// Sampled decides by chance whether the duration of a publish is measured: of one in 16, so that the clock is not read
// for each.
func Sampled() bool { return rand.Uint32()%16 == 0 }

// reason is why a publish was refused.
type reason uint8

const (
	reasonOverloaded reason = iota
	reasonDeadline
	reasonNoLeader
	reasonNoQuorum
	reasonUnknown
	reasonDisk
	reasonDiskFull
	reasonShare
	reasonQuota
	reasonStateFull
	reasonTooBig
	reasonClosing
	reasonOther
	reasonCount
)

var reasonNames = [reasonCount]string{
	"overloaded", "deadline", "no_leader", "no_quorum", "unknown", "disk", "disk_full", "token_share", "quota",
	"state_full", "too_big", "closing", "other",
}

// reasons lists the errors of each reason. An error of none of them is other.
var reasons = []struct {
	reason
	errs []error
}{
	{reasonOverloaded, []error{errs.ErrOverloaded}},
	{reasonDeadline, []error{errs.ErrDeadline}},
	{reasonNoLeader, []error{errs.ErrNoLeader, errs.ErrMoved}},
	{reasonNoQuorum, []error{errs.ErrNoQuorum}},
	{reasonDiskFull, []error{errs.ErrNoSpace}},
	{reasonDisk, []error{errs.ErrDisk, errs.ErrDiskHung, errs.ErrReadOnly}},
	{reasonUnknown, []error{errs.ErrUnknown}},
	{reasonShare, []error{errs.ErrShare}}, // before those of the node's limits
	{reasonQuota, []error{errs.ErrQuota}},
	{reasonStateFull, []error{errs.ErrStateFull}},
	{reasonTooBig, []error{errs.ErrMessageTooBig, errs.ErrBatchTooBig}},
	{reasonClosing, []error{errs.ErrClosed}},
}

func reasonOf(err error) reason {
	for _, r := range reasons {
		if isAny(err, r.errs) {
			return r.reason
		}
	}
	return reasonOther
}

// Refuse counts a publish, of one message or a batch, that was answered with err.
func (c *Counts) Refuse(err error) { c.refused[reasonOf(err)].Add(1) }
