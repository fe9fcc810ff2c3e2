package segment

import (
	"cmp"
	"maps"
	"slices"
	"sync/atomic"

	"penstock/internal/lock"
)

// DefaultMaxMappings is the bound of NewMappings(0): a quarter of the 65,530 mappings that Linux allows a process.
const DefaultMaxMappings = 16_384

// Mappings bounds the segments that the logs of one node have mapped. When a log maps one more, those logs that have
// mapped none for the longest time unmap the segments that nobody reads. Segments that are being read stay mapped, so
// there may be more of them. A nil Mappings bounds nothing.
type Mappings struct {
	max atomic.Int64
	// mu guards the fields below. Whoever maps or unmaps a segment takes it, with segFile.mapMu held.
	mu       lock.Mutex[lock.SegmentMappings]
	count    int
	turn     uint64
	logs     map[*Log]logMappings // only logs with mapped segments
	shedding bool                 // a goroutine runs shed
}

// logMappings is how many segments of a log are mapped, and in which turn it mapped the last one.
type logMappings struct {
	count int
	turn  uint64
}

// NewMappings returns a bound of max segments, or of DefaultMaxMappings if max is 0.
func NewMappings(max int) *Mappings {
	m := &Mappings{logs: map[*Log]logMappings{}}
	m.Limit(max)
	return m
}

// Limit changes what NewMappings was given. If more are mapped, the next log that maps a segment unmaps them. Any
// goroutine may call it.
func (m *Mappings) Limit(max int) { m.max.Store(int64(cmp.Or(max, DefaultMaxMappings))) }

// Count returns how many segments are mapped. Any goroutine may call it.
func (m *Mappings) Count() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.count
}

// add counts a segment of l as mapped (n = 1), or as no longer mapped (n = -1).
func (m *Mappings) add(l *Log, n int) {
	if m == nil {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.count += n
	of := m.logs[l]
	if of.count += n; n > 0 {
		m.turn++
		of.turn = m.turn
	}
	if m.logs[l] = of; of.count == 0 {
		delete(m.logs, l)
	}
}

// shed unmaps idle segments if more are mapped than may be, until only three quarters of the bound are. The caller
// holds no lock of a log.
func (m *Mappings) shed() {
	victims := m.victims()
	for i := 0; i < len(victims) && int64(m.Count()) > m.max.Load()*3/4; i++ {
		victims[i].Unmap()
	}
	if len(victims) > 0 {
		m.mu.Lock()
		m.shedding = false
		m.mu.Unlock()
	}
}

// victims returns the logs for shed, those that have mapped none for the longest time first; none if shed has nothing
// to do, or runs already.
func (m *Mappings) victims() []*Log {
	if m == nil {
		return nil
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if int64(m.count) <= m.max.Load() || m.shedding {
		return nil
	}
	m.shedding = true
	logs := slices.AppendSeq(make([]*Log, 0, len(m.logs)), maps.Keys(m.logs))
	slices.SortFunc(logs, func(a, b *Log) int { return cmp.Compare(m.logs[a].turn, m.logs[b].turn) })
	return logs
}
