package partition

import (
	"testing"

	"penstock/internal/node/aside"
	"penstock/tests/support/faultaio"
)

// What a cut took goes when the log has it again and it is committed. While the log is being cut it still has the
// batches, and says nothing.
func TestAsideStaysWhileTheLogIsCut(t *testing.T) {
	s := runStore(t, faultaio.New(faultaio.Options{Seed: 1}))
	s.publish(t, 5, 100)
	pt := s.part
	last := pt.machine.State()
	pos, crc := last.Next-1, last.LastCRC
	r := pt.replica
	for name, c := range map[string]struct {
		change func()
		crc    uint32
		want   aside.State
	}{
		"it is committed":     {func() {}, crc, aside.Same},
		"another batch":       {func() {}, crc + 1, aside.Other},
		"it is being cut":     {func() { r.cut = new(logCut) }, crc, aside.Unknown},
		"it is not committed": {func() { r.durable = pos }, crc, aside.Unknown},
	} {
		r.mu.Lock()
		cut, durable := r.cut, r.durable
		c.change()
		r.mu.Unlock()
		if got := pt.hasBatch(pos, c.crc); got != c.want {
			t.Errorf("%s: %d, want %d", name, got, c.want)
		}
		r.mu.Lock()
		r.cut, r.durable = cut, durable
		r.mu.Unlock()
	}
	if got := pt.hasBatch(pos+1, crc); got != aside.Unknown {
		t.Errorf("behind the end: %d", got)
	}
}
