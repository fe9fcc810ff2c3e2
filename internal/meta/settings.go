package meta

import (
	"errors"
	"fmt"
	"math"

	"penstock/internal/settings"
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

// TopicSettings are the settings of a topic that an operator can change. TopicRows says of each field what it does. All
// numbers except MinISR and Partitions are per partition. The type is comparable.
type TopicSettings struct {
	Version        uint64     `json:"version"` // increases with every change; 0: never configured
	RetentionBytes int64      `json:"retention_bytes"`
	RetentionCount int64      `json:"retention_count"`
	RetentionAgeMs int64      `json:"retention_age_ms"`
	KeepAgeMs      int64      `json:"keep_age_ms,omitzero"`
	KeepBytes      int64      `json:"keep_bytes,omitzero"`
	QuotaBytes     int64      `json:"quota_bytes"`
	QuotaCount     int64      `json:"quota_count"`
	QuotaMode      QuotaMode  `json:"quota_mode"`
	MinISR         int        `json:"min_isr"`
	Partitions     int        `json:"partitions,omitzero"`
	Durability     Durability `json:"durability,omitzero"`
}

// KeepLevel is the feature level of KeepAgeMs and KeepBytes: older versions would remove what they keep.
const KeepLevel = 3

const (
	maxAgeMs  = 100 * 366 * 24 * 3600 * 1000
	unbounded = math.MaxInt64
)

// TopicRows are all settings of a topic but their version. They are stored as JSON, by their names: what a version does
// not know stays in the row of the topic (internal/cluster/FORMAT.md).
//
// Retention removes whole segments, confirmed or not, but never the last one. What every channel has confirmed stays
// until it is older than keep_age_ms, or until more than keep_bytes of the log lie behind it; None sets no bound, so
// that the other one or retention decides.
var TopicRows = settings.Table[TopicSettings]{
	{
		Tag: 1, Name: "retention_bytes", Flag: "retention-bytes", Level: 1,
		Says: "number of bytes to keep; 0 means the node's default, none means no limit", Zero: "the node's default",
		Of: func(s *TopicSettings) settings.Field {
			return settings.Number(&s.RetentionBytes, settings.None, unbounded, settings.Bytes)
		},
	},
	{
		Tag: 2, Name: "retention_count", Flag: "retention-count", Level: 1,
		Says: "number of messages to keep; 0 means the node's default, none means no limit", Zero: "the node's default",
		Of: func(s *TopicSettings) settings.Field {
			return settings.Number(&s.RetentionCount, settings.None, unbounded, settings.Count)
		},
	},
	{
		Tag: 3, Name: "retention_age_ms", Flag: "retention-age", Level: 1,
		Says: "how long to keep messages, such as 72h; 0 means the node's default, none means no limit",
		Zero: "the node's default",
		Of: func(s *TopicSettings) settings.Field {
			return settings.Number(&s.RetentionAgeMs, settings.None, maxAgeMs, settings.Millis)
		},
	},
	{
		Tag: 4, Name: "keep_bytes", Flag: "keep-bytes", Level: KeepLevel,
		Says: "how much of the log to keep although all channels have confirmed it; 0 means nothing, none means no limit",
		Zero: "not set",
		Of: func(s *TopicSettings) settings.Field {
			return settings.Number(&s.KeepBytes, settings.None, unbounded, settings.Bytes)
		},
	},
	{
		Tag: 5, Name: "keep_age_ms", Flag: "keep-age", Level: KeepLevel,
		Says: "how long to keep what all channels have confirmed, such as 24h; 0 means not at all, none means no limit",
		Zero: "not set",
		Of: func(s *TopicSettings) settings.Field {
			return settings.Number(&s.KeepAgeMs, settings.None, maxAgeMs, settings.Millis)
		},
	},
	{
		Tag: 6, Name: "quota_bytes", Flag: "quota-bytes", Level: 1,
		Says: "maximum bytes that are not confirmed by all channels; 0 means no limit", Zero: "no limit",
		Of: func(s *TopicSettings) settings.Field {
			return settings.Number(&s.QuotaBytes, 0, unbounded, settings.Bytes)
		},
	},
	{
		Tag: 7, Name: "quota_count", Flag: "quota-count", Level: 1,
		Says: "maximum messages that are not confirmed by all channels; 0 means no limit", Zero: "no limit",
		Of: func(s *TopicSettings) settings.Field {
			return settings.Number(&s.QuotaCount, 0, unbounded, settings.Count)
		},
	},
	{
		Tag: 8, Name: "quota_mode", Flag: "quota-mode", Level: 1,
		Says: "what to do at the quota: reject (also if empty) refuses new messages, drop-oldest removes the oldest ones, " +
			"confirmed or not",
		Zero: string(QuotaReject),
		Of: func(s *TopicSettings) settings.Field {
			return settings.Choice(&s.QuotaMode, QuotaReject, QuotaDropOldest)
		},
	},
	{
		Tag: 9, Name: "min_isr", Flag: "min-isr", Level: 1,
		Says: "number of replicas that must have a message before it is answered OK; 0 means a majority",
		Zero: "majority of the replicas",
		Of: func(s *TopicSettings) settings.Field {
			return settings.Number(&s.MinISR, 0, math.MaxInt32, settings.Count)
		},
	},
	{
		Tag: 10, Name: "partitions", Flag: "partitions", Level: 1,
		Says: "number of partitions, which can only be raised, since each holds messages; afterwards a key may belong to " +
			"another partition; 0 keeps their number",
		Of: func(s *TopicSettings) settings.Field {
			return settings.Number(&s.Partitions, 0, math.MaxInt32, settings.Count)
		},
	},
	{
		Tag: 11, Name: "durability", Flag: "durability", Level: 1,
		Says: "what an OK guarantees. The only value is " + string(DurabilitySynced) +
			": the message is on stable storage on every in-sync replica",
		Zero: string(DurabilitySynced),
		Of:   func(s *TopicSettings) settings.Field { return settings.Choice(&s.Durability, DurabilitySynced) },
	},
}

// Level returns the lowest feature level whose versions obey the settings, and the setting that needs it.
func (s *TopicSettings) Level() (level int, name string) { return TopicRows.Level(s) }

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
	if why := TopicRows.Invalid(s); why != "" {
		return fmt.Errorf("%w: %s", ErrSettings, why)
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
