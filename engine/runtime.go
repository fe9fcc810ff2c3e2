package engine

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"maps"
	"slices"
	"time"

	"github.com/google/uuid"

	"penstock/engine/host"
	"penstock/netproto"
	"penstock/segment"
)

// What the engine asks of the machine beside the disk goes through Engine.host; this file has what is built on that.

// now is the engine's time: the wall clock as it was when the engine opened, and what has passed since then. It never
// jumps.
func (e *Engine) now() time.Time { return time.Unix(0, e.clock.nowNs()) }

// wallNow is the wall clock in place of the host's, for test builds, which set it before any engine is opened
// (clock_offset.go). nil: the host's.
var wallNow func() time.Time

// newEngineClock is the clock of an engine that opens now.
func newEngineClock(o *Options, h host.Host) *clock {
	wall := h.Wall
	if wallNow != nil {
		wall = wallNow
	}
	if o.wall != nil {
		wall = o.wall
	}
	return newClock(wall, h.Mono)
}

// firstRequest is where this process begins to number its requests. Its predecessor may have asked the same nodes,
// whose answers still come: they must not be taken for answers to this one's.
func (e *Engine) firstRequest() uint64 {
	id := e.host.NewUUID()
	return binary.LittleEndian.Uint64(id[8:]) >> 2
}

// context ends with the engine, as far as anything that waits for other nodes is concerned.
func (e *Engine) context() context.Context {
	if e.cluster != nil {
		return e.cluster.ctx
	}
	return context.Background()
}

// taken takes a value of ch if there is one, or learns that it was closed.
func taken(ch <-chan struct{}) bool {
	select {
	case <-ch:
		return true
	default:
		return false
	}
}

// retainBuf retains a receive buffer; those of a simulation come without.
func retainBuf(b *netproto.RecvBuf) {
	if b != nil {
		b.Retain()
	}
}

// releaseBuf releases what keep retained.
func releaseBuf(b *netproto.RecvBuf) {
	if b != nil {
		b.Release()
	}
}

// What is done for each of a map's entries is done in the order of their keys: the same history makes the same run.

func sortedIDs[V any](m map[uuid.UUID]V) []uuid.UUID {
	return slices.SortedFunc(maps.Keys(m), func(a, b uuid.UUID) int { return bytes.Compare(a[:], b[:]) })
}

func sortedPartitions[V any](m map[segment.Identity]V) []segment.Identity {
	return slices.SortedFunc(maps.Keys(m), func(a, b segment.Identity) int {
		return cmp.Or(bytes.Compare(a.Topic[:], b.Topic[:]), cmp.Compare(a.Partition, b.Partition))
	})
}
