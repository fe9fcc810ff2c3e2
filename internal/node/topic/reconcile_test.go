package topic

import (
	"testing"

	"penstock/internal/node/fold"
)

// The latest version wins; settings that differ under it are noticed, also those that nobody could store.
func TestCompareSettings(t *testing.T) {
	one, two := fold.ChannelSettings{Version: 1}, fold.ChannelSettings{Version: 2, MaxAttempts: 5}
	other := fold.ChannelSettings{Version: 2}
	for _, c := range []struct {
		all           []fold.ChannelSettings
		latest        uint64
		older, differ bool
	}{
		{nil, 0, false, false},
		{[]fold.ChannelSettings{{}, {}}, 0, false, false},
		{[]fold.ChannelSettings{{}, one}, 1, true, false},
		{[]fold.ChannelSettings{two, two}, 2, false, false},
		{[]fold.ChannelSettings{two, other}, 2, false, true},
		{[]fold.ChannelSettings{one, two, other}, 2, true, true},
	} {
		latest, older, differ := compareSettings(c.all)
		if latest.Version != c.latest || older != c.older || differ != c.differ {
			t.Errorf("%v: %d, older %v, differ %v", c.all, latest.Version, older, differ)
		}
	}
}
