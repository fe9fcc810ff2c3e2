package fold

import (
	"encoding/binary"
	"errors"
	"fmt"
	"strings"

	"penstock/internal/settings"
)

// Settings have two formats. Format 1 has a fixed list of fields, and every version reads it. Format 2 has the fields
// of ChannelRows by their tags, so that it can hold later ones; it belongs to feature level 6. Settings are written in
// the first format that can say them.
const (
	settingsFormat1 = 1
	settingsFormat  = 2
	settingsLevel   = 6 // the first feature level of settingsFormat

	settingsFlagAll    = 1
	settingsFlagInvert = 2

	minRuleBytes = 3 // match, two lengths
)

// format returns the format in which the settings are written.
func (s *ChannelSettings) format() byte {
	if level, _ := ChannelRows.Level(s); level < settingsLevel && len(s.Unknown) == 0 {
		return settingsFormat1
	}
	return settingsFormat
}

// Level returns the lowest feature level whose versions read and obey the settings, and the setting that needs it.
func (s *ChannelSettings) Level() (level int, name string) {
	if level, name = ChannelRows.Level(s); level < settingsLevel && s.format() != settingsFormat1 {
		return settingsLevel, "unknown"
	}
	return level, name
}

// Append appends the encoding of FORMAT.md. It panics if the settings break its limits or have version 0, which
// Validate and the engine refuse long before.
func (s *ChannelSettings) Append(dst []byte) []byte {
	if why := s.invalid(); why != "" || s.Version == 0 {
		panic("BUG: channel settings that are not valid reach the log: " + why)
	}
	if s.format() == settingsFormat1 {
		return s.append1(dst)
	}
	rows := ChannelRows.Append(nil, s, s.Unknown)
	dst = binary.AppendUvarint(append(dst, settingsFormat), s.Version)
	return append(binary.AppendUvarint(dst, uint64(len(rows))), rows...)
}

// append1 writes format 1.
func (s *ChannelSettings) append1(dst []byte) []byte {
	flags := byte(0)
	if s.Filter.All {
		flags |= settingsFlagAll
	}
	if s.Filter.Invert {
		flags |= settingsFlagInvert
	}
	dst = append(dst, settingsFormat1, flags, byte(s.Order), s.SampleRate)
	dst = binary.AppendUvarint(dst, s.Version)
	dst = binary.AppendUvarint(dst, uint64(s.MaxAttempts))
	dst = binary.AppendUvarint(dst, uint64(s.RatePerSecond))
	dst = binary.AppendUvarint(dst, uint64(s.MaxInFlight))
	dst = appendText(dst, s.KeyHeader)
	dst = appendText(dst, s.DeadLetter)
	return s.Filter.appendRules(dst)
}

func (f *Filter) appendRules(dst []byte) []byte {
	dst = binary.AppendUvarint(dst, uint64(len(f.Rules)))
	for _, r := range f.Rules {
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

// rules decodes what appendRules wrote.
func (d *decoder) rules() (rules []Rule) {
	for n := d.count(minRuleBytes); n > 0 && d.bad == "" && len(rules) <= MaxFilterRules; n-- {
		rules = append(rules, Rule{Match: Match(d.byte()), Header: d.text(), Pattern: d.text()})
	}
	return rules
}

// settings decodes what Append wrote. A newer format, and a setting that must be known, are errors (decoder.newer).
func (d *decoder) settings() (s ChannelSettings) {
	format := d.byte()
	switch {
	case d.bad != "":
	case format == settingsFormat1:
		d.settings1(&s)
	case format == settingsFormat:
		s.Version = d.uvarint()
		var err error
		if s.Unknown, err = ChannelRows.Decode(d.bytes(d.count(1)), &s); err != nil {
			d.newer = errors.Is(err, settings.ErrUnknown)
			d.fail(err.Error())
		}
	default:
		d.newer = format > settingsFormat
		d.fail("format of a channel's settings")
	}
	if why := s.invalid(); d.bad == "" && why != "" {
		d.fail(why)
	}
	if d.bad == "" && (s.Version == 0 || s.format() != format) {
		d.fail("settings of version 0, or that an earlier format can say")
	}
	return s
}

// settings1 decodes what append1 wrote behind the format.
func (d *decoder) settings1(s *ChannelSettings) {
	flags := d.byte()
	if flags > settingsFlagAll|settingsFlagInvert {
		d.fail("flags of a channel's settings")
	}
	s.Filter.All, s.Filter.Invert = flags&settingsFlagAll != 0, flags&settingsFlagInvert != 0
	s.Order, s.SampleRate = Order(d.byte()), d.byte()
	s.Version = d.uvarint()
	s.MaxAttempts = uint16(d.atMost(MaxAttempts))
	s.RatePerSecond, s.MaxInFlight = uint32(d.atMost(maxUint32)), uint32(d.atMost(maxUint32))
	s.KeyHeader, s.DeadLetter = d.text(), d.text()
	s.Filter.Rules = d.rules()
}

// rulesField is the setting of a filter's rules.
type rulesField struct {
	f   *Filter
	set bool // Set was called: the next call adds a rule
}

func (r *rulesField) IsZero() bool             { return len(r.f.Rules) == 0 }
func (r *rulesField) Type() string             { return "text, several times" }
func (r *rulesField) Append(dst []byte) []byte { return r.f.appendRules(dst) }
func (r *rulesField) Invalid() string          { return r.f.invalid() }

// Set adds a rule, in the notation of ParseRule. The first call replaces the rules that there were.
func (r *rulesField) Set(text string) error {
	if !r.set {
		r.f.Rules, r.set = nil, true
	}
	r.f.Rules = append(r.f.Rules, ParseRule(text))
	return nil
}

func (r *rulesField) String() string {
	if r.f == nil {
		return ""
	}
	rules := make([]string, len(r.f.Rules))
	for i := range r.f.Rules {
		rules[i] = r.f.Rules[i].String()
	}
	return strings.Join(rules, ", ")
}

func (r *rulesField) Decode(value []byte) error {
	d := decoder{p: value}
	r.f.Rules = d.rules()
	if d.bad != "" || len(d.p) != 0 {
		return fmt.Errorf("its rules are damaged: %s", d.bad)
	}
	return nil
}

func (r *rulesField) Try(n int) string { return [...]string{"h=1", "h^=2", "h*=3*", "h~=4", "h"}[n%5] }
