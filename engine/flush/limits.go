package flush

import (
	"time"

	"penstock/engine/meta"
)

// Limits are the limits that hold for a topic: its settings, or the node's options where it has none. 0 is no limit.
type Limits struct {
	RetentionBytes, RetentionCount int64
	RetentionAge                   time.Duration
	RejectBytes, RejectCount       int64 // quotas in reject mode
}

// LimitsOf returns what holds for a topic with the settings s on a node whose options say own; of own only retention
// counts.
func LimitsOf(s *meta.TopicSettings, own Limits) *Limits {
	pick := func(topic, node int64) int64 {
		if topic == 0 {
			topic = node
		}
		return max(0, topic)
	}
	l := &Limits{
		RetentionBytes: pick(s.RetentionBytes, own.RetentionBytes),
		RetentionCount: pick(s.RetentionCount, own.RetentionCount),
		RetentionAge:   time.Duration(pick(s.RetentionAgeMs*int64(time.Millisecond), int64(own.RetentionAge))),
	}
	smaller := func(a, b int64) int64 {
		if a == 0 || b != 0 && b < a {
			return b
		}
		return a
	}
	if s.QuotaMode == meta.QuotaDropOldest {
		l.RetentionBytes = smaller(l.RetentionBytes, s.QuotaBytes)
		l.RetentionCount = smaller(l.RetentionCount, s.QuotaCount)
	} else {
		l.RejectBytes, l.RejectCount = s.QuotaBytes, s.QuotaCount
	}
	return l
}
