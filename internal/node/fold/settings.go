package fold

import (
	"errors"
	"fmt"
	"strings"

	"penstock/internal/settings"
)

// ChannelSettings is what an operator configures for a channel. ChannelRows says of each field what it does. It is
// replicated: the control entry ChannelConfigured carries it in every partition's log, and Cursor holds it. The zero
// value is the behaviour of a channel that was never configured. A value that was handed over is never changed in
// place, because its copies share Filter.Rules and Unknown.
type ChannelSettings struct {
	Version       uint64 `json:"version"` // grows with every change; 0: never configured, all defaults
	Order         Order  `json:"order"`
	KeyHeader     string `json:"key_header"`
	MaxAttempts   uint16 `json:"max_attempts"`
	DeadLetter    string `json:"dead_letter"`
	RatePerSecond uint32 `json:"rate_per_second"`
	MaxInFlight   uint32 `json:"max_in_flight"`
	SampleRate    uint8  `json:"sample_rate"`
	Filter        Filter `json:"filter"`
	RateBytes     uint64 `json:"rate_bytes,omitzero"` // an older node refuses the name
	// Unknown holds the settings of a later version, as they are in the log, which this version may ignore and keeps.
	Unknown []byte `json:"unknown,omitempty"`
}

// ChannelRows are all settings of a channel but their version.
var ChannelRows = settings.Table[ChannelSettings]{
	{
		Tag: 1, Name: "order", Flag: "order", Level: 1, Must: true,
		Says: "which earlier messages must be confirmed before the next one is delivered: none; partition or key: one " +
			"message of each in flight; declared: like partition, for consumers that use SUB_ORDERED",
		Zero: "none",
		Of:   func(s *ChannelSettings) settings.Field { return settings.Named(&s.Order, orderNames[:]) },
	},
	{
		Tag: 2, Name: "key_header", Flag: "key-header", Level: 1, Must: true,
		Says: "header whose value is the key of an order by key; a message without it is not ordered; empty means " +
			DefaultKeyHeader,
		Zero: DefaultKeyHeader,
		Of:   func(s *ChannelSettings) settings.Field { return settings.Text(&s.KeyHeader, MaxHeaderName) },
	},
	{
		Tag: 3, Name: "max_attempts", Flag: "max-attempts", Level: 1, Must: true,
		Says: "number of deliveries after which a message is moved to the dead-letter topic; 0 means no limit",
		Zero: "no limit",
		Of: func(s *ChannelSettings) settings.Field {
			return settings.Number(&s.MaxAttempts, 0, MaxAttempts, settings.Count)
		},
	},
	{
		Tag: 4, Name: "dead_letter", Flag: "dead-letter", Level: 1, Must: true,
		Says: "dead-letter topic; empty means TOPIC" + DeadLetterSuffix,
		Zero: "TOPIC" + DeadLetterSuffix,
		Of:   func(s *ChannelSettings) settings.Field { return settings.Text(&s.DeadLetter, MaxTopicNameBytes) },
	},
	{
		Tag: 5, Name: "rate_per_second", Flag: "rate", Level: 1, Harmless: true,
		Says: "maximum messages to deliver per second in the channel, of which each node has the share that it leads; 0 " +
			"means no limit",
		Zero: "no limit",
		Of: func(s *ChannelSettings) settings.Field {
			return settings.Number(&s.RatePerSecond, 0, maxUint32, settings.Count)
		},
	},
	{
		Tag: 11, Name: "rate_bytes", Flag: "rate-bytes", Level: settingsLevel,
		Harmless: true,
		Says: "maximum bytes of messages' bodies to deliver per second in the channel, of which each node has the share " +
			"that it leads; 0 means no limit",
		Zero: "no limit",
		Of: func(s *ChannelSettings) settings.Field {
			return settings.Number(&s.RateBytes, 0, MaxRateBytes, settings.Bytes)
		},
	},
	{
		Tag: 6, Name: "max_in_flight", Flag: "max-in-flight", Level: 1, Harmless: true,
		Says: "maximum messages in flight in the channel; in a cluster each partition has a share; 0 means as many as " +
			"consumers ask for",
		Zero: "what consumers ask for",
		Of: func(s *ChannelSettings) settings.Field {
			return settings.Number(&s.MaxInFlight, 0, maxUint32, settings.Count)
		},
	},
	{
		Tag: 7, Name: "sample_rate", Flag: "sample-rate", Level: 1, Must: true,
		Says: "percentage of messages to deliver, 1 to 99, in addition to the consumers' own samples; 0 means all",
		Zero: "all",
		Of: func(s *ChannelSettings) settings.Field {
			return settings.Number(&s.SampleRate, 0, MaxSampleRate, settings.Percent)
		},
	},
	{
		Tag: 8, Name: "filter.rules", Flag: "filter", Level: 1, Must: true,
		Says: "RULE that messages must match; repeat the flag for several rules. Existing rules are replaced",
		Zero: "none",
		Of:   func(s *ChannelSettings) settings.Field { return &rulesField{f: &s.Filter} },
	},
	{
		Tag: 9, Name: "filter.all", Flag: "filter-all", Level: 1, Must: true,
		Says: "require messages to match all rules, not just one",
		Of:   func(s *ChannelSettings) settings.Field { return settings.Flag(&s.Filter.All) },
	},
	{
		Tag: 10, Name: "filter.invert", Flag: "filter-invert", Level: 1, Must: true,
		Says: "deliver the messages that do not match",
		Of:   func(s *ChannelSettings) settings.Field { return settings.Flag(&s.Filter.Invert) },
	},
}

// Limits and defaults of ChannelSettings.
const (
	DefaultKeyHeader = "key"
	DeadLetterSuffix = ".DLQ"

	MaxFilterRules    = 16
	MaxHeaderName     = 256 // bytes
	MaxPatternBytes   = 256
	MaxTopicNameBytes = 64
	MaxSampleRate     = 99      // percent; more is everything, which is 0
	MaxRateBytes      = 1 << 40 // a second

	// MaxUnknownBytes bounds ChannelSettings.Unknown.
	MaxUnknownBytes = 1024

	// MaxSettingsBytes bounds the encoding of valid settings.
	MaxSettingsBytes = 96 + MaxUnknownBytes + MaxHeaderName + MaxTopicNameBytes +
		MaxFilterRules*(8+MaxHeaderName+MaxPatternBytes)
)

// ErrSettings says that settings are not valid. Nothing was changed.
var ErrSettings = errors.New("engine: the channel's settings are not valid; nothing was changed")

// Order says which messages of a channel are delivered one after the other.
type Order uint8

const (
	OrderNone      Order = iota // many messages in flight, in any order
	OrderPartition              // one message of a partition at a time
	OrderKey                    // one message of a key at a time
	// as OrderPartition, but only consumers that declare to expect it may subscribe (youzan's SUB_ORDERED)
	OrderDeclared
)

var orderNames = [...]string{"none", "partition", "key", "declared"}

func (o Order) String() string               { return nameOf(orderNames[:], int(o)) }
func (o Order) MarshalText() ([]byte, error) { return marshalName("order", orderNames[:], int(o)) }

// UnmarshalText parses a name; the empty name is OrderNone.
func (o *Order) UnmarshalText(p []byte) error {
	i, err := unmarshalName("order", orderNames[:], string(p))
	if err == nil {
		*o = Order(i)
	}
	return err
}

func nameOf(names []string, i int) string {
	if i >= len(names) {
		return fmt.Sprintf("unknown %d", i)
	}
	return names[i]
}

func marshalName(what string, names []string, i int) ([]byte, error) {
	if i >= len(names) {
		return nil, fmt.Errorf("%w: there is no %s %d", ErrSettings, what, i)
	}
	return []byte(names[i]), nil
}

func unmarshalName(what string, names []string, text string) (int, error) {
	if text == "" {
		return 0, nil
	}
	for i, name := range names {
		if name == text {
			return i, nil
		}
	}
	return 0, fmt.Errorf("%w: %s %q is none of %s", ErrSettings, what, text, strings.Join(names, ", "))
}

// DeadLetterTopic returns the topic for dead letters of a channel of the given topic; "" while MaxAttempts is not set.
func (s *ChannelSettings) DeadLetterTopic(topic string) string {
	switch {
	case s.MaxAttempts == 0:
		return ""
	case s.DeadLetter != "":
		return s.DeadLetter
	}
	return topic + DeadLetterSuffix
}

// Key returns the name of the header that holds the key of an OrderKey channel.
func (s *ChannelSettings) Key() string {
	if s.KeyHeader == "" {
		return DefaultKeyHeader
	}
	return s.KeyHeader
}

// LacksShares says whether a topic with this many partitions has some that get no share of max_in_flight.
func (s *ChannelSettings) LacksShares(partitions int) bool {
	return s.MaxInFlight != 0 && int(s.MaxInFlight) < partitions
}

// Validate returns nil, or an ErrSettings that says in one sentence what to change. It does not check Version.
func (s *ChannelSettings) Validate() error {
	if why := s.invalid(); why != "" {
		return fmt.Errorf("%w: %s", ErrSettings, why)
	}
	if s.DeadLetter != "" && !validTopicName(s.DeadLetter) {
		return fmt.Errorf("%w: dead-letter topic %q: a topic's name has 1 to %d letters, digits and . _ -",
			ErrSettings, s.DeadLetter, MaxTopicNameBytes)
	}
	_, err := s.Filter.Matcher()
	return err
}

// invalid says which limit of the encoding the settings break; "": none. Decoding checks these limits and no others: a
// log must stay readable when the meaning of a pattern changes.
func (s *ChannelSettings) invalid() string {
	if why := ChannelRows.Invalid(s); why != "" {
		return why
	}
	if _, err := ChannelRows.Decode(s.Unknown, new(ChannelSettings)); err != nil || len(s.Unknown) > MaxUnknownBytes {
		return "unknown is not what a later version wrote, or too long"
	}
	return ""
}

func validTopicName(name string) bool {
	if len(name) == 0 || len(name) > MaxTopicNameBytes {
		return false
	}
	for _, b := range []byte(name) {
		if !('a' <= b && b <= 'z' || 'A' <= b && b <= 'Z' || '0' <= b && b <= '9' || b == '.' || b == '_' || b == '-') {
			return false
		}
	}
	return true
}
