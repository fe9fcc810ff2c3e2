package partition

import (
	"testing"

	"penstock/internal/node/datadir"
	"penstock/internal/node/fold"
	"penstock/internal/node/machine"
)

// Each kind of control entry belongs to a feature level that this version knows, and no entry is written below its
// level. A number that is not a kind is never written.
func TestControlKindsOfALevel(t *testing.T) {
	panics := func(k fold.ControlKind, level int) (did bool) {
		defer func() { did = recover() != nil }()
		mustBeOfLevel(&fold.Control{Kind: k}, level)
		return
	}
	k := fold.ChannelCreated
	for ; k.Level() > 0; k++ {
		if k.Level() > datadir.NewestLevel {
			t.Errorf("kind %d is of level %d, the newest is %d", k, k.Level(), datadir.NewestLevel)
		}
		for level := 0; level <= datadir.NewestLevel; level++ {
			if panics(k, level) != (k.Level() > level) {
				t.Errorf("kind %d of level %d at level %d", k, k.Level(), level)
			}
		}
	}
	if k != fold.ProducerRemoved+1 {
		t.Errorf("kind %d has no level, or is newer than this test", k)
	}
	if !panics(k, datadir.NewestLevel) || !panics(0, datadir.NewestLevel) {
		t.Error("what is no kind is written")
	}
}

// Settings that need a level make their entry need it.
func TestSettingsMustBeOfLevel(t *testing.T) {
	for level := datadir.FirstLevel; level <= datadir.NewestLevel; level++ {
		for _, s := range []fold.ChannelSettings{
			{Version: 1, MaxAttempts: 2},
			{Version: 1, RateBytes: 5},
			{Version: 1, Unknown: []byte{200, 1, 0}},
		} {
			func() {
				need, _ := s.Level()
				defer func() {
					if did := recover() != nil; did != (need > level) {
						t.Errorf("%+v at level %d: panics %v", s, level, did)
					}
				}()
				mustBeOfLevel(&fold.Control{Kind: fold.ChannelConfigured, Settings: &s}, level)
			}()
		}
	}
}

// A fold is written to a log only at a level that allows it.
func TestFoldMustBeOfLevel(t *testing.T) {
	panics := func(level int) (did bool) {
		defer func() { did = recover() != nil }()
		foldMustBeOfLevel(new(fold.Cursors), level)
		return
	}
	if panics(datadir.FirstLevel) || panics(datadir.NewestLevel) || !panics(datadir.FirstLevel-1) {
		t.Error("a fold of the first level is refused, or written below it")
	}
}

// The committer checks the level of each entry that it seals.
func TestCommitterAsksForTheLevel(t *testing.T) {
	r := bareReplica()
	r.pt.machine = new(machine.Partition)
	c := &committer{store: r.pt.store}
	for level, want := range []bool{true, false} {
		c.store.level.Store(int32(level))
		panicked := func() (did bool) {
			defer func() { did = recover() != nil }()
			c.encodeControls(r.pt, []fold.Control{
				{Kind: fold.ChannelPaused, Channel: "c", Flag: true},
				{Kind: fold.TopicEmptied},
			}, nil)
			return
		}()
		if panicked != want {
			t.Errorf("at level %d: panicked %v", level, panicked)
		}
	}
}
