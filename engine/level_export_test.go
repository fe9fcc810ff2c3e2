package engine

import (
	"testing"

	"penstock/engine/core"
)

// Each kind of control entries belongs to a level that this version knows, and none is written below it. A number that is no kind is never written.
func TestControlKindsOfALevel(t *testing.T) {
	panics := func(k core.ControlKind, level int) (did bool) {
		defer func() { did = recover() != nil }()
		mustBeOfLevel(k, level)
		return
	}
	k := core.ChannelCreated
	for ; k.Level() > 0; k++ {
		if k.Level() > NewestLevel {
			t.Errorf("kind %d is of level %d, the newest is %d", k, k.Level(), NewestLevel)
		}
		for level := 0; level <= NewestLevel; level++ {
			if panics(k, level) != (k.Level() > level) {
				t.Errorf("kind %d of level %d at level %d", k, k.Level(), level)
			}
		}
	}
	if !panics(k, NewestLevel) || !panics(0, NewestLevel) {
		t.Error("what is no kind is written")
	}
}
