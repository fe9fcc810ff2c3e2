package meta

import (
	"errors"
	"fmt"
)

// QuotaMode says what happens when a partition has as much as its quota lets it keep.
type QuotaMode string

const (
	QuotaReject     QuotaMode = "reject"      // publishing fails; consuming goes on and makes room. "" is the same
	QuotaDropOldest QuotaMode = "drop-oldest" // the oldest segments go, confirmed or not
)

// TopicSettings are what an operator can change about a topic. All figures are per partition. It is comparable.
type TopicSettings struct {
	Version uint64 `json:"version"` // rises with every change; 0: never configured

	// Retention removes whole segments, confirmed or not, and never the last one. 0: what the node's options say; -1: no limit.
	RetentionBytes int64 `json:"retention_bytes"`
	RetentionCount int64 `json:"retention_count"`
	RetentionAgeMs int64 `json:"retention_age_ms"`

	// A quota bounds what is stored and not confirmed by every channel. 0: none.
	QuotaBytes int64     `json:"quota_bytes"`
	QuotaCount int64     `json:"quota_count"`
	QuotaMode  QuotaMode `json:"quota_mode"`

	// MinISR is how many replicas must have a message before it is answered OK. 0: the majority of them.
	MinISR int `json:"min_isr"`
}

// ErrSettings says that settings are not valid.
var ErrSettings = errors.New("meta: the topic's settings are not valid; nothing was changed")

// Validate returns nil, or an ErrSettings that says in one sentence what to change. Whether MinISR fits the replicas is the store's
// business, and Version too.
func (s *TopicSettings) Validate() error {
	for _, f := range []struct {
		name        string
		value, from int64
	}{
		{"retention_bytes", s.RetentionBytes, -1},
		{"retention_count", s.RetentionCount, -1},
		{"retention_age_ms", s.RetentionAgeMs, -1},
		{"quota_bytes", s.QuotaBytes, 0},
		{"quota_count", s.QuotaCount, 0},
		{"min_isr", int64(s.MinISR), 0},
	} {
		if f.value < f.from {
			return fmt.Errorf("%w: %s is %d; it must be %d or more", ErrSettings, f.name, f.value, f.from)
		}
	}
	if s.RetentionAgeMs > maxAgeMs {
		return fmt.Errorf("%w: retention_age_ms is %d; a hundred years are the most", ErrSettings, s.RetentionAgeMs)
	}
	switch s.QuotaMode {
	case "", QuotaReject, QuotaDropOldest:
		return nil
	}
	return fmt.Errorf("%w: quota_mode is %q; it must be %s or %s", ErrSettings, s.QuotaMode, QuotaReject, QuotaDropOldest)
}

const maxAgeMs = 100 * 366 * 24 * 3600 * 1000

// WantedMinISR is what the partitions of a topic with these settings should demand.
func (s *TopicSettings) WantedMinISR(replicas int) int {
	if s.MinISR == 0 {
		return replicas/2 + 1
	}
	return s.MinISR
}

// EffectiveSettings are the topic's settings with the MinISR that it has.
func (t *Topic) EffectiveSettings() TopicSettings {
	s := t.Settings
	if s.Version == 0 {
		s.MinISR = t.MinISR
	}
	return s
}
