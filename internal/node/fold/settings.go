package fold

import (
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
)

// ChannelSettings is what an operator configures for a channel. It is replicated: the control entry ChannelConfigured
// carries it in every partition's log, and Cursor holds it. The zero value is the behaviour of a channel that was never
// configured. A value that was handed over is never changed in place, because its copies share Filter.Rules.
type ChannelSettings struct {
	Version uint64 `json:"version"` // grows with every change; 0: never configured, all defaults
	Order   Order  `json:"order"`   // which earlier messages must be confirmed before the next one is delivered
	// OrderKey: the header whose value is the key; "": DefaultKeyHeader. A message without the header is not ordered
	KeyHeader string `json:"key_header"`
	// deliveries after which a message goes to the dead-letter topic; 0: no limit
	MaxAttempts uint16 `json:"max_attempts"`
	// where dead letters go; "": with MaxAttempts set, the topic's name followed by DeadLetterSuffix
	DeadLetter    string `json:"dead_letter"`
	RatePerSecond uint32 `json:"rate_per_second"` // messages handed out per second in the whole channel; 0: no limit
	MaxInFlight   uint32 `json:"max_in_flight"`   // messages in flight in the whole channel; 0: what the clients ask for
	// percent of the messages, 1..99, in addition to the consumers' own samples; 0: all
	SampleRate uint8  `json:"sample_rate"`
	Filter     Filter `json:"filter"` // which messages the channel wants; the others count as confirmed
}

// Limits and defaults of ChannelSettings.
const (
	DefaultKeyHeader = "key"
	DeadLetterSuffix = ".DLQ"

	MaxFilterRules    = 16
	MaxHeaderName     = 256 // bytes
	MaxPatternBytes   = 256
	MaxTopicNameBytes = 64
	MaxSampleRate     = 99 // percent; more is everything, which is 0

	// MaxSettingsBytes bounds the encoding of valid settings.
	MaxSettingsBytes = 64 + MaxHeaderName + MaxTopicNameBytes + MaxFilterRules*(8+MaxHeaderName+MaxPatternBytes)
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

// String returns the name that JSON uses.
func (o Order) String() string { return nameOf(orderNames[:], int(o)) }

// MarshalText returns the name; an order that does not exist is an error.
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
	switch {
	case s.Order > OrderDeclared:
		return fmt.Sprintf("there is no order %d", s.Order)
	case len(s.KeyHeader) > MaxHeaderName:
		return fmt.Sprintf("the key header's name has %d bytes, at most %d are allowed", len(s.KeyHeader), MaxHeaderName)
	case s.MaxAttempts > MaxAttempts:
		return fmt.Sprintf("max_attempts is %d, at most %d are counted", s.MaxAttempts, MaxAttempts)
	case len(s.DeadLetter) > MaxTopicNameBytes:
		return fmt.Sprintf("the dead-letter topic's name has %d bytes, at most %d are allowed",
			len(s.DeadLetter), MaxTopicNameBytes)
	case s.SampleRate > MaxSampleRate:
		return fmt.Sprintf("sample_rate is %d percent; 1 to %d take a sample, 0 takes everything",
			s.SampleRate, MaxSampleRate)
	}
	return s.Filter.invalid()
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

const (
	settingsFormat = 1

	settingsFlagAll    = 1
	settingsFlagInvert = 2

	minRuleBytes = 3 // match, two lengths
)

// Append appends the encoding of FORMAT.md. It panics if the settings break its limits or have version 0, which
// Validate and the engine refuse long before.
func (s *ChannelSettings) Append(dst []byte) []byte {
	if why := s.invalid(); why != "" || s.Version == 0 {
		panic("BUG: channel settings that are not valid reach the log: " + why)
	}
	flags := byte(0)
	if s.Filter.All {
		flags |= settingsFlagAll
	}
	if s.Filter.Invert {
		flags |= settingsFlagInvert
	}
	dst = append(dst, settingsFormat, flags, byte(s.Order), s.SampleRate)
	dst = binary.AppendUvarint(dst, s.Version)
	dst = binary.AppendUvarint(dst, uint64(s.MaxAttempts))
	dst = binary.AppendUvarint(dst, uint64(s.RatePerSecond))
	dst = binary.AppendUvarint(dst, uint64(s.MaxInFlight))
	dst = appendText(dst, s.KeyHeader)
	dst = appendText(dst, s.DeadLetter)
	dst = binary.AppendUvarint(dst, uint64(len(s.Filter.Rules)))
	for _, r := range s.Filter.Rules {
		dst = append(dst, byte(r.Match))
		dst = appendText(dst, r.Header)
		dst = appendText(dst, r.Pattern)
	}
	return dst
}

func appendText(dst []byte, text string) []byte {
	return append(binary.AppendUvarint(dst, uint64(len(text))), text...)
}

// text decodes what appendText wrote, and copies the bytes.
func (d *decoder) text() string { return string(d.bytes(d.count(1))) }

// settings decodes what Append wrote. A newer format is an error, because settings must not be ignored.
func (d *decoder) settings() ChannelSettings {
	var s ChannelSettings
	format, flags := d.byte(), d.byte()
	if d.bad == "" && (format != settingsFormat || flags > settingsFlagAll|settingsFlagInvert) {
		d.fail("format of a channel's settings")
	}
	s.Filter.All, s.Filter.Invert = flags&settingsFlagAll != 0, flags&settingsFlagInvert != 0
	s.Order, s.SampleRate = Order(d.byte()), d.byte()
	s.Version = d.uvarint()
	s.MaxAttempts = uint16(d.atMost(MaxAttempts))
	s.RatePerSecond, s.MaxInFlight = uint32(d.atMost(1<<32-1)), uint32(d.atMost(1<<32-1))
	s.KeyHeader, s.DeadLetter = d.text(), d.text()
	for n := d.count(minRuleBytes); n > 0 && d.bad == "" && len(s.Filter.Rules) <= MaxFilterRules; n-- {
		s.Filter.Rules = append(s.Filter.Rules, Rule{Match: Match(d.byte()), Header: d.text(), Pattern: d.text()})
	}
	if why := s.invalid(); d.bad == "" && why != "" {
		d.fail(why)
	}
	if d.bad == "" && s.Version == 0 {
		d.fail("settings of version 0")
	}
	return s
}
