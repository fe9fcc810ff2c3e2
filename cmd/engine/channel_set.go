package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"penstock/internal/node"
	"penstock/internal/node/fold"
)

// channelFlags are a channel's settings as flags. Only flags that are given change a setting.
type channelFlags struct {
	order, keyHeader, deadLetter string
	maxAttempts, sampleRate      int
	rate, maxInFlight            uint32
	rules                        []string
	filterAll, filterInvert      bool
	noFilter                     bool
	file                         string
}

func (o *operator) channelSetCommand() *cobra.Command {
	f := new(channelFlags)
	var cmd *cobra.Command
	var set *pflag.FlagSet
	cmd = o.action("set TOPIC CHANNEL", "Change a channel's settings", cobra.ExactArgs(2),
		func(ctx context.Context, args []string) error {
			if !anyOwn(cmd) {
				return &exitError{exitUsage, errors.New("say what to set; see engine channel set --help")}
			}
			var s node.ChannelSettings
			q := of(args[0], args[1])
			if err := o.client.Get(ctx, "/channel/settings", q, &s); err != nil {
				return err
			}
			if err := f.apply(set, o.in, &s); err != nil {
				return &exitError{exitUsage, err}
			}
			if err := o.client.Post(ctx, "/channel/settings", q, &s, &s); err != nil {
				return err
			}
			return o.showChannelSettings(&s)
		})
	cmd.Long = "Change a channel's settings. Only settings whose flags are given change. --file replaces all settings:\n" +
		"those that the file does not contain get their defaults. The command fails if somebody else changes the settings\n" +
		"at the same time.\n\n" +
		"A filter consists of rules. A RULE is HEADER=VALUE, HEADER^=PREFIX, HEADER*=GLOB, HEADER~=REGEXP, or HEADER for\n" +
		"messages that have this header. A message matches if one rule matches, with --filter-all if all rules match. The\n" +
		"channel delivers the messages that match, with --filter-invert those that do not. All others count as confirmed."
	set = cmd.Flags()
	set.StringVar(&f.order, "order", "none",
		"order of delivery: none; partition or key: one message of each in flight; declared: like partition, for "+
			"consumers that use SUB_ORDERED")
	set.StringVar(&f.keyHeader, "key-header", "", "header that holds the key; empty means "+fold.DefaultKeyHeader)
	set.IntVar(&f.maxAttempts, "max-attempts", 0,
		"number of deliveries after which a message is moved to the dead-letter topic; 0 means no limit")
	set.StringVar(&f.deadLetter, "dead-letter", "", "dead-letter topic; empty means TOPIC"+fold.DeadLetterSuffix)
	set.Uint32Var(&f.rate, "rate", 0,
		"maximum messages to deliver per second in the channel, of which each node has the share that it leads; 0 means "+
			"no limit")
	set.Uint32Var(&f.maxInFlight, "max-in-flight", 0,
		"maximum messages in flight in the channel; in a cluster each partition has a share; 0 means as many as consumers "+
			"ask for")
	set.IntVar(&f.sampleRate, "sample-rate", 0, "percentage of messages to deliver, 1 to 99; 0 means all")
	set.StringArrayVar(&f.rules, "filter", nil,
		"RULE that messages must match; repeat the flag for several rules. Existing rules are replaced")
	set.BoolVar(&f.filterAll, "filter-all", false, "require messages to match all rules, not just one")
	set.BoolVar(&f.filterInvert, "filter-invert", false, "deliver the messages that do not match")
	set.BoolVar(&f.noFilter, "no-filter", false, "remove the filter and deliver every message")
	set.StringVar(&f.file, "file", "",
		"file with all settings, in the JSON format of engine channel settings --json; - means standard input")
	for _, name := range []string{"filter", "filter-all", "filter-invert"} {
		cmd.MarkFlagsMutuallyExclusive(name, "no-filter")
	}
	return cmd
}

// apply changes s according to the flags that were given.
func (f *channelFlags) apply(set *pflag.FlagSet, stdin io.Reader, s *node.ChannelSettings) error {
	if set.Changed("file") {
		version := s.Version // the version of the current settings, in case the file has none
		*s = node.ChannelSettings{}
		if err := readSettingsFile(f.file, stdin, s); err != nil {
			return err
		}
		if s.Version == 0 {
			s.Version = version
		}
	}
	for name, apply := range map[string]func() error{
		"order":      func() error { return s.Order.UnmarshalText([]byte(f.order)) },
		"key-header": func() error { s.KeyHeader = f.keyHeader; return nil },
		"max-attempts": func() error {
			s.MaxAttempts = uint16(f.maxAttempts)
			return within("max-attempts", f.maxAttempts, fold.MaxAttempts)
		},
		"dead-letter":   func() error { s.DeadLetter = f.deadLetter; return nil },
		"rate":          func() error { s.RatePerSecond = f.rate; return nil },
		"max-in-flight": func() error { s.MaxInFlight = f.maxInFlight; return nil },
		"sample-rate": func() error {
			s.SampleRate = uint8(f.sampleRate)
			return within("sample-rate", f.sampleRate, fold.MaxSampleRate)
		},
		"no-filter":     func() error { s.Filter = fold.Filter{}; return nil },
		"filter":        func() error { s.Filter.Rules = parseRules(f.rules); return nil },
		"filter-all":    func() error { s.Filter.All = f.filterAll; return nil },
		"filter-invert": func() error { s.Filter.Invert = f.filterInvert; return nil },
	} {
		if !set.Changed(name) {
			continue
		}
		if err := apply(); err != nil {
			return err
		}
	}
	return s.Validate()
}

func within(name string, n, most int) error {
	if n < 0 || n > most {
		return fmt.Errorf("--%s is %d; it must be 0 to %d", name, n, most)
	}
	return nil
}

// readSettingsFile parses JSON strictly, so that a misspelled name is an error and not ignored.
func readSettingsFile(name string, stdin io.Reader, into any) error {
	var data []byte
	var err error
	if name == "-" {
		data, err = io.ReadAll(stdin)
	} else {
		data, err = os.ReadFile(name)
	}
	if err != nil {
		return fmt.Errorf("cannot read the settings: %w", err)
	}
	d := json.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields()
	if err := d.Decode(into); err != nil {
		return fmt.Errorf("%s holds no settings as engine prints them with --json: %w", name, err)
	}
	return nil
}

// ruleOperators are the operators of a rule. The one that occurs first in the text counts; at the same place, the first
// in this list.
var ruleOperators = []struct {
	text  string
	match fold.Match
}{
	{"^=", fold.MatchPrefix},
	{"*=", fold.MatchGlob},
	{"~=", fold.MatchRegexp},
	{"=", fold.MatchExact},
}

func parseRules(rules []string) []fold.Rule {
	out := make([]fold.Rule, len(rules))
	for i, r := range rules {
		out[i] = parseRule(r)
	}
	return out
}

// parseRule parses a rule. It cannot fail: a text without an operator is the name of a header. The node checks names
// and patterns.
func parseRule(rule string) fold.Rule {
	at, found := len(rule), fold.Rule{Header: rule, Match: fold.MatchExists}
	for _, op := range ruleOperators {
		if i := strings.Index(rule, op.text); i >= 0 && i < at {
			at = i
			found = fold.Rule{Header: rule[:i], Match: op.match, Pattern: rule[i+len(op.text):]}
		}
	}
	return found
}

// ruleText returns a rule in the notation that parseRule reads.
func ruleText(r *fold.Rule) string {
	for _, op := range ruleOperators {
		if op.match == r.Match {
			return r.Header + op.text + r.Pattern
		}
	}
	return r.Header
}

func (o *operator) showChannelSettings(s *node.ChannelSettings) error {
	if o.asJSON {
		return printJSON(o.out, s)
	}
	t := table(o.out)
	row := func(name, value string) { fmt.Fprintf(t, "%s\t%s\n", name, value) }
	row("version", orText(s.Version, "0: never configured"))
	row("order", s.Order.String())
	if s.Order == fold.OrderKey {
		row("key header", s.Key())
	}
	row("max attempts", orText(s.MaxAttempts, "no limit"))
	if s.MaxAttempts != 0 {
		row("dead letters", s.DeadLetterTopic("TOPIC"))
	}
	row("rate per second", orText(s.RatePerSecond, "no limit"))
	row("max in flight", orText(s.MaxInFlight, "what consumers ask for"))
	row("sample rate", orText(s.SampleRate, "all"))
	row("filter", filterText(&s.Filter))
	return t.Flush()
}

// orText returns n as text, or the text zero if n is 0.
func orText[N ~uint8 | ~uint16 | ~uint32 | ~uint64 | ~int | ~int64](n N, zero string) string {
	if n == 0 {
		return zero
	}
	return fmt.Sprint(n)
}

func filterText(f *fold.Filter) string {
	if len(f.Rules) == 0 {
		return "none"
	}
	var rules []string
	for i := range f.Rules {
		rules = append(rules, ruleText(&f.Rules[i]))
	}
	how := "any of"
	switch {
	case f.All && f.Invert:
		how = "not all of"
	case f.All:
		how = "all of"
	case f.Invert:
		how = "none of"
	}
	return how + " " + strings.Join(rules, ", ")
}
