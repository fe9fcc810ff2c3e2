package flush

import (
	"testing"
	"time"

	"penstock/internal/meta"
	"penstock/internal/node/retain"
)

// A topic's settings override the node's options. A quota that drops the oldest messages is a limit of retention.
func TestLimitsOfTopic(t *testing.T) {
	own := Limits{RetentionBytes: 100, RetentionCount: 10, RetentionAge: time.Hour}
	for name, c := range map[string]struct {
		settings meta.TopicSettings
		want     Limits
	}{
		"the node's": {want: own},
		"its own": {
			meta.TopicSettings{RetentionBytes: 200, RetentionCount: -1, RetentionAgeMs: 1000},
			Limits{RetentionBytes: 200, RetentionAge: time.Second},
		},
		"what is confirmed is kept": {
			meta.TopicSettings{RetentionBytes: -1, RetentionCount: -1, RetentionAgeMs: -1, KeepAgeMs: 1000, KeepBytes: 70},
			Limits{Keep: retain.Keep{Age: time.Second, Bytes: 70}},
		},
		"a quota that refuses": {
			meta.TopicSettings{RetentionBytes: -1, QuotaBytes: 50, QuotaCount: 5},
			Limits{RetentionCount: 10, RetentionAge: time.Hour, RejectBytes: 50, RejectCount: 5},
		},
		"a quota that drops the oldest": {
			meta.TopicSettings{RetentionCount: -1, QuotaMode: meta.QuotaDropOldest, QuotaBytes: 50, QuotaCount: 5},
			Limits{RetentionBytes: 50, RetentionCount: 5, RetentionAge: time.Hour},
		},
		"a quota above retention": {
			meta.TopicSettings{QuotaMode: meta.QuotaDropOldest, QuotaBytes: 500}, own,
		},
	} {
		if got := *LimitsOf(&c.settings, own); got != c.want {
			t.Errorf("%s: %+v, not %+v", name, got, c.want)
		}
	}
}
