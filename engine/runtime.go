package engine

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"maps"
	"slices"
	"time"

	"github.com/google/uuid"

	"penstock/engine/base"
	"penstock/engine/host"
	"penstock/netproto"
	"penstock/segment"
)

// The engine uses the machine below it, except for the disk, through Engine.host. This file has helpers built on that.

// now is the engine's clock: the wall clock when the engine was opened, plus the time that has passed since then. It
// never jumps.
func (e *Engine) now() time.Time { return time.Unix(0, e.clock.NowNs()) }

// wallNow replaces the host's wall clock if it is not nil. Test builds set it before any engine is opened
// (clock_offset.go).
var wallNow func() time.Time

// newEngineClock is the clock of an engine that opens now.
func newEngineClock(o *Options, h host.Host) *base.Clock {
	wall := h.Wall
	if wallNow != nil {
		wall = wallNow
	}
	if o.wall != nil {
		wall = o.wall
	}
	return base.NewClock(wall, h.Mono)
}

// firstRequest is the number of this process's first request to other nodes. It is random, because answers to requests
// of an earlier process may still arrive, and must not be taken for answers to this one's.
func (e *Engine) firstRequest() uint64 {
	id := e.host.NewUUID()
	return binary.LittleEndian.Uint64(id[8:]) >> 2
}

// taken says whether ch has a value, which it takes, or is closed. It does not block.
func taken(ch <-chan struct{}) bool {
	select {
	case <-ch:
		return true
	default:
		return false
	}
}

// retainBuf retains a receive buffer. In a simulation frames have none.
func retainBuf(b *netproto.RecvBuf) {
	if b != nil {
		b.Retain()
	}
}

// releaseBuf releases a buffer that retainBuf retained.
func releaseBuf(b *netproto.RecvBuf) {
	if b != nil {
		b.Release()
	}
}

// Maps are visited in the order of their keys, so that a simulation with the same seed does the same.

func sortedIDs[V any](m map[uuid.UUID]V) []uuid.UUID {
	return slices.SortedFunc(maps.Keys(m), func(a, b uuid.UUID) int { return bytes.Compare(a[:], b[:]) })
}

func sortedPartitions[V any](m map[segment.Identity]V) []segment.Identity {
	return slices.SortedFunc(maps.Keys(m), func(a, b segment.Identity) int {
		return cmp.Or(bytes.Compare(a.Topic[:], b.Topic[:]), cmp.Compare(a.Partition, b.Partition))
	})
}

// clockLogEvery is the least time between two lines about steps.
const clockLogEvery = time.Minute

// watchClock logs a step of the wall clock. told is when it logged last. watch calls it.
func (e *Engine) watchClock(told *time.Time) {
	step := e.clock.Compare()
	if step == 0 || !told.IsZero() && e.host.Since(*told) < clockLogEvery {
		return
	}
	*told = e.host.Instant()
	ahead := e.clock.Ahead()
	e.log.Warn("the wall clock of this node was set: timeouts, delays and retention go on by the time that has passed,"+
		" and nothing is removed because of it. New messages carry the time of the clock as it was at the start;"+
		" restart the node if the new time is the right one",
		"by", step.Round(time.Millisecond), "now_ahead_by", ahead.Round(time.Millisecond), "steps", e.clock.Steps())
}
