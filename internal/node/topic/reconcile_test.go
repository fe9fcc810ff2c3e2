package topic

import "testing"

// The latest version wins; settings that differ under it are noticed, also those that nobody could store.
func TestCompareSettings(t *testing.T) {
	one, two := ChannelSettings{Version: 1}, ChannelSettings{Version: 2, MaxAttempts: 5}
	other := ChannelSettings{Version: 2}
	for _, c := range []struct {
		all           []ChannelSettings
		latest        uint64
		older, differ bool
	}{
		{nil, 0, false, false},
		{[]ChannelSettings{{}, {}}, 0, false, false},
		{[]ChannelSettings{{}, one}, 1, true, false},
		{[]ChannelSettings{two, two}, 2, false, false},
		{[]ChannelSettings{two, other}, 2, false, true},
		{[]ChannelSettings{one, two, other}, 2, true, true},
	} {
		latest, older, differ := compareSettings(c.all)
		if latest.Version != c.latest || older != c.older || differ != c.differ {
			t.Errorf("%v: %d, older %v, differ %v", c.all, latest.Version, older, differ)
		}
	}
}
