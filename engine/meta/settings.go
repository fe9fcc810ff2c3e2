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

// Durability says what an answer OK to a publish promises.
type Durability string

// DurabilitySynced is the only one: the message is on stable storage on every in-sync replica. "" is the same.
const DurabilitySynced Durability = "synced"

// TopicSettings are what an operator can change about a topic. All figures but Partitions are per partition. It is
// comparable.
type TopicSettings struct {
	Version uint64 `json:"version"` // rises with every change; 0: never configured

	// Retention removes whole segments, confirmed or not, and never the last one. 0: what the node's options say; -1: no
	// limit.
	RetentionBytes int64 `json:"retention_bytes"`
	RetentionCount int64 `json:"retention_count"`
	RetentionAgeMs int64 `json:"retention_age_ms"`

	// A quota bounds what is stored and not confirmed by every channel. 0: none.
	QuotaBytes int64     `json:"quota_bytes"`
	QuotaCount int64     `json:"quota_count"`
	QuotaMode  QuotaMode `json:"quota_mode"`

	// MinISR is how many replicas must have a message before it is answered OK. 0: the majority of them.
	MinISR int `json:"min_isr"`

	// Partitions can only become more: a message stays where it was stored. 0 in a change: as many as there are.
	Partitions int        `json:"partitions,omitzero"`
	Durability Durability `json:"durability,omitzero"`
}

// Stored are the settings as a topic's row holds them: the partitions are counted there already, and there is one
// durability.
func (s TopicSettings) Stored() TopicSettings {
	s.Partitions, s.Durability = 0, ""
	return s
}

// ErrSettings says that settings are not valid.
var ErrSettings = errors.New("meta: the topic's settings are not valid; nothing was changed")

// Validate returns nil, or an ErrSettings that says in one sentence what to change. Whether MinISR fits the replicas is
// the store's business, and Version too.
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
		{"partitions", int64(s.Partitions), 0},
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
	default:
		return fmt.Errorf("%w: quota_mode is %q; it must be %s or %s", ErrSettings, s.QuotaMode, QuotaReject, QuotaDropOldest)
	}
	if s.Durability != "" && s.Durability != DurabilitySynced {
		return fmt.Errorf("%w: durability is %q; there is only %s, because an OK here always means that the message is on "+
			"stable storage on every in-sync replica", ErrSettings, s.Durability, DurabilitySynced)
	}
	return nil
}

// WantedPartitions is how many partitions a topic of now should have with these settings, or an ErrSettings.
func (s *TopicSettings) WantedPartitions(now, most int) (int, error) {
	switch n := s.Partitions; {
	case n == 0 || n == now:
		return now, nil
	case n < now:
		return now,
			fmt.Errorf("%w: partitions is %d; the topic has %d, and none can be taken away, since each holds messages",
				ErrSettings, n, now)
	case n > most:
		return now, fmt.Errorf("%w: partitions is %d; %d are the most", ErrSettings, n, most)
	default:
		return n, nil
	}
}

const maxAgeMs = 100 * 366 * 24 * 3600 * 1000

// WantedMinISR is what the partitions of a topic with these settings should demand.
func (s *TopicSettings) WantedMinISR(replicas int) int {
	if s.MinISR == 0 {
		return replicas/2 + 1
	}
	return s.MinISR
}

// EffectiveSettings are the topic's settings with the MinISR and the partitions that it has.
func (t *Topic) EffectiveSettings() TopicSettings {
	s := t.Settings
	if s.Version == 0 {
		s.MinISR = t.MinISR
	}
	s.Partitions, s.Durability = t.Partitions, DurabilitySynced
	return s
}

// Expanded are the settings of a topic that got more partitions by another way than its settings: whoever read the old
// ones has to read them again.
func (t *Topic) Expanded() TopicSettings {
	s := t.EffectiveSettings().Stored()
	s.Version++
	return s
}
