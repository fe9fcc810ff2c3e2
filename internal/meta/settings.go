package meta

import (
	"errors"
	"fmt"
)

// QuotaMode says what happens when a partition has reached its quota.
type QuotaMode string

const (
	QuotaReject     QuotaMode = "reject"      // publishing fails; consuming goes on and makes room. "" means the same
	QuotaDropOldest QuotaMode = "drop-oldest" // the oldest segments are removed, confirmed or not
)

// Durability says what the answer OK to a publish promises.
type Durability string

// DurabilitySynced is the only durability: the message is on stable storage on every in-sync replica. "" means the
// same.
const DurabilitySynced Durability = "synced"

// TopicSettings are the settings of a topic that an operator can change. All numbers except Partitions are per
// partition. The type is comparable.
type TopicSettings struct {
	Version uint64 `json:"version"` // increases with every change; 0: never configured

	// Retention removes whole segments, confirmed or not, but never the last one. 0: the node's options apply; -1: no
	// limit.
	RetentionBytes int64 `json:"retention_bytes"`
	RetentionCount int64 `json:"retention_count"`
	RetentionAgeMs int64 `json:"retention_age_ms"`

	// What every channel has confirmed stays until it is older than KeepAgeMs, or until more than KeepBytes of the log lie
	// behind it. 0: this setting keeps nothing; -1: it sets no bound, so that the other one or retention decides. With
	// both 0, what is confirmed goes. Either needs feature level KeepLevel.
	KeepAgeMs int64 `json:"keep_age_ms,omitzero"`
	KeepBytes int64 `json:"keep_bytes,omitzero"`

	// A quota bounds what is stored but not confirmed by every channel. 0: no quota.
	QuotaBytes int64     `json:"quota_bytes"`
	QuotaCount int64     `json:"quota_count"`
	QuotaMode  QuotaMode `json:"quota_mode"`

	// MinISR is the number of replicas that must have a message before it is answered OK. 0: a majority of the
	// replicas.
	MinISR int `json:"min_isr"`

	// Partitions can only grow: a message stays where it was stored. In a change, 0 keeps the number of partitions.
	Partitions int        `json:"partitions,omitzero"`
	Durability Durability `json:"durability,omitzero"`
}

// KeepLevel is the feature level of KeepAgeMs and KeepBytes: older versions would remove what they keep.
const KeepLevel = 3

// Level returns the lowest feature level whose versions obey the settings.
func (s *TopicSettings) Level() int {
	if s.KeepAgeMs != 0 || s.KeepBytes != 0 {
		return KeepLevel
	}
	return 1
}

// Stored returns the settings in the form in which a topic's row holds them: without the number of partitions, which
// the row holds elsewhere, and without the durability, of which there is only one.
func (s TopicSettings) Stored() TopicSettings {
	s.Partitions, s.Durability = 0, ""
	return s
}

// ErrSettings says that settings are not valid.
var ErrSettings = errors.New("meta: the topic's settings are not valid; nothing was changed")

// Validate returns nil, or an ErrSettings that says in one sentence what to change. The store checks MinISR against the
// number of replicas, and it checks Version.
func (s *TopicSettings) Validate() error {
	for _, f := range []struct {
		name        string
		value, from int64
	}{
		{"retention_bytes", s.RetentionBytes, -1},
		{"retention_count", s.RetentionCount, -1},
		{"retention_age_ms", s.RetentionAgeMs, -1},
		{"keep_age_ms", s.KeepAgeMs, -1},
		{"keep_bytes", s.KeepBytes, -1},
		{"quota_bytes", s.QuotaBytes, 0},
		{"quota_count", s.QuotaCount, 0},
		{"min_isr", int64(s.MinISR), 0},
		{"partitions", int64(s.Partitions), 0},
	} {
		if f.value < f.from {
			return fmt.Errorf("%w: %s is %d; it must be %d or more", ErrSettings, f.name, f.value, f.from)
		}
	}
	if age := max(s.RetentionAgeMs, s.KeepAgeMs); age > maxAgeMs {
		return fmt.Errorf("%w: retention_age_ms or keep_age_ms is %d; a hundred years are the most", ErrSettings, age)
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

// WantedPartitions returns how many partitions a topic that has now partitions should have with these settings, or an
// ErrSettings. most is the largest number allowed.
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

// WantedMinISR returns the MinISR that these settings demand for a topic with this many replicas.
func (s *TopicSettings) WantedMinISR(replicas int) int {
	if s.MinISR == 0 {
		return replicas/2 + 1
	}
	return s.MinISR
}

// WithReplicas returns the topic with another number of replicas and the MinISR that follows from it: that of the
// settings if they name one, the topic's own if it was made with another one than the majority, and otherwise the
// majority of the replicas. It returns ErrReplicas if that MinISR is above the number of replicas, because then no
// write would succeed. The version of the settings stays, as replicas is not one of them.
func (t *Topic) WithReplicas(replicas int) (*Topic, error) {
	want := *t
	want.Replicas = replicas
	majority := (&TopicSettings{}).WantedMinISR
	switch {
	case t.Settings.Version > 0:
		want.MinISR = t.Settings.WantedMinISR(replicas)
	case t.MinISR == majority(t.Replicas):
		want.MinISR = majority(replicas)
	}
	if want.MinISR > replicas {
		return nil, fmt.Errorf("%w: min_isr of topic %q is %d, so with %d replicas no write would ever succeed; lower "+
			"min_isr first", ErrReplicas, t.Name, want.MinISR, replicas)
	}
	return &want, nil
}

// EffectiveSettings returns the topic's settings with the actual number of partitions. MinISR stays 0 if it follows
// from the number of replicas: a client that changes another setting sends all of them back, and must not fix MinISR
// at today's number.
func (t *Topic) EffectiveSettings() TopicSettings {
	s := t.Settings
	if s.Version == 0 && t.MinISR != s.WantedMinISR(t.Replicas) {
		s.MinISR = t.MinISR // the topic was made with it
	}
	s.Partitions, s.Durability = t.Partitions, DurabilitySynced
	return s
}

// Expanded returns the settings of a topic that got more partitions other than through its settings. Their version is
// higher, so that a caller who read the old settings must read them again.
func (t *Topic) Expanded() TopicSettings {
	s := t.EffectiveSettings().Stored()
	s.Version++
	return s
}
