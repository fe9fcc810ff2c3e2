package flush

import (
	"time"

	"penstock/internal/meta"
	"penstock/internal/node/retain"
)

// Limits are the effective limits of a topic: its settings, or the node's options where the topic has no setting. 0
// means no limit.
type Limits struct {
	RetentionBytes, RetentionCount int64
	RetentionAge                   time.Duration
	Keep                           retain.Keep
	RejectBytes, RejectCount       int64 // quotas in reject mode
}

// LimitsOf returns the effective limits of a topic with the settings s. own holds the node's options, of which only
// retention counts.
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
		Keep:           retain.Keep{Bytes: s.KeepBytes, Age: time.Duration(s.KeepAgeMs) * time.Millisecond},
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
