package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"penstock/internal/meta"
)

type topicSettings = meta.TopicSettings

// nodesDefault describes a retention of 0, and noLimit one of -1.
const (
	nodesDefault = "the node's default"
	noLimit      = "no limit"
)

func formatCount(n int64) string { return strconv.FormatInt(n, 10) }

func formatAge(ms int64) string { return formatDuration(time.Duration(ms) * time.Millisecond) }

func parseCount(s string) (int64, error) {
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil || n < 0 {
		return 0, fmt.Errorf("%q is not a number of messages", s)
	}
	return n, nil
}

func parseAge(s string) (int64, error) {
	d, err := parseDuration(s)
	if err != nil || d < 0 || d%time.Millisecond != 0 {
		return 0, fmt.Errorf("%q is not a time in whole milliseconds, such as 30m, 72h or 10d", s)
	}
	return d.Milliseconds(), nil
}

// leastRetentionBytes is what a retention keeps at least: with less the topic would keep next to nothing, and whoever
// says 10 means 10GiB.
const leastRetentionBytes = 4096

// parseRetention reads how many bytes to keep.
func parseRetention(s string) (int64, error) {
	n, err := parseBytes(s)
	if err == nil && n > 0 && n < leastRetentionBytes {
		return 0, fmt.Errorf("%s keeps %s, less than one block of the disk (%s): say a unit, such as %sGiB", s,
			counted(n, "byte"), formatBytes(leastRetentionBytes), s)
	}
	return n, err
}

// kept describes a retention.
func kept(n int64, text func(int64) string) string {
	switch n {
	case 0:
		return nodesDefault
	case -1:
		return noLimit
	}
	return text(n)
}

// keptConfirmed describes a setting that keeps confirmed messages.
func keptConfirmed(n int64, text func(int64) string) string {
	if n == 0 {
		return "not set"
	}
	return kept(n, text)
}

func limited(n int64, text func(int64) string) string {
	if n == 0 {
		return noLimit
	}
	return text(n)
}

// keepValue is a retention as a flag: a figure, "none" for no limit, or 0 for the node's default.
type keepValue struct {
	p      *int64
	parse  func(string) (int64, error)
	format func(int64) string
	kind   string
}

func (v keepValue) Set(s string) error {
	if s == "none" {
		*v.p = -1
		return nil
	}
	n, err := v.parse(s)
	if err == nil {
		*v.p = n
	}
	return err
}

func (v keepValue) String() string {
	if v.p == nil || *v.p == -1 {
		return "none"
	}
	return v.format(*v.p)
}

func (v keepValue) Type() string { return v.kind + "|none" }

// topicFlags are a topic's settings as flags. Only flags that are given change a setting.
type topicFlags struct {
	retentionBytes, retentionCount, retentionAgeMs int64
	keepBytes, keepAgeMs                           int64
	quotaBytes, quotaCount                         int64
	quotaMode                                      string
	minISR, partitions                             int
	durability                                     string
	file                                           string
}

func (o *operator) topicSetCommand() *cobra.Command {
	f := new(topicFlags)
	var cmd *cobra.Command
	var set *pflag.FlagSet
	cmd = o.action("set TOPIC", "Change a topic's settings", cobra.ExactArgs(1),
		func(ctx context.Context, args []string) error {
			if !anyOwn(cmd) {
				return &exitError{exitUsage, errors.New("say what to set; see engine topic set --help")}
			}
			s, err := o.topicSettings(ctx, args[0])
			if err != nil {
				return err
			}
			now := *s
			if err := f.apply(set, o.in, s); err != nil {
				return &exitError{exitUsage, err}
			}
			if err := o.postTopicSettings(ctx, args[0], &now, s); err != nil {
				return err
			}
			return o.showTopicSettings(s)
		})
	cmd.Long = "Change a topic's settings. Only settings whose flags are given change. --file replaces all settings:\n" +
		"those that the file does not contain get their defaults, except the number of partitions, which stays the same.\n" +
		"The command fails if somebody else changes the settings at the same time. Retention and quotas apply to each\n" +
		"partition."
	set = cmd.Flags()
	set.Var(keepValue{&f.retentionBytes, parseRetention, formatBytes, "bytes"}, "retention-bytes",
		"number of bytes to keep; 0 means "+nodesDefault+", none means "+noLimit)
	set.Var(keepValue{&f.retentionCount, parseCount, formatCount, "count"}, "retention-count",
		"number of messages to keep; 0 means "+nodesDefault+", none means "+noLimit)
	set.Var(keepValue{&f.retentionAgeMs, parseAge, formatAge, "duration"}, "retention-age",
		"how long to keep messages, such as 72h or 10d; 0 means "+nodesDefault+", none means "+noLimit)
	set.Var(keepValue{&f.keepBytes, parseRetention, formatBytes, "bytes"}, "keep-bytes",
		"how much of the log to keep although all channels have confirmed it; 0 means nothing, none means "+noLimit)
	set.Var(keepValue{&f.keepAgeMs, parseAge, formatAge, "duration"}, "keep-age",
		"how long to keep what all channels have confirmed, such as 24h; 0 means not at all, none means "+noLimit)
	set.Var(size64(&f.quotaBytes, 0), "quota-bytes",
		"maximum bytes that are not confirmed by all channels; 0 means "+noLimit)
	set.Int64Var(&f.quotaCount, "quota-count", 0,
		"maximum messages that are not confirmed by all channels; 0 means "+noLimit)
	set.Var(choice(&f.quotaMode, "reject", "drop-oldest"), "quota-mode",
		"what to do at the quota: reject (also if empty) refuses new messages, drop-oldest removes the oldest ones, "+
			"confirmed or not")
	set.IntVar(&f.minISR, "min-isr", 0, "number of replicas that must be in sync for a write; 0 means a majority")
	set.IntVar(&f.partitions, "partitions", 0,
		"number of partitions, which can only be raised; afterwards a key may belong to another partition")
	set.StringVar(&f.durability, "durability", "", "what an OK guarantees. The only value is "+
		string(meta.DurabilitySynced)+": the message is on stable storage on every in-sync replica")
	set.StringVar(&f.file, "file", "",
		"file with all settings, in the JSON format of engine topic settings --json; - means standard input")
	completesChoices(cmd)
	return cmd
}

// postTopicSettings replaces the settings now of a topic by s, and sets s to what the node answers.
func (o *operator) postTopicSettings(ctx context.Context, topic string, now, s *topicSettings) error {
	body := struct {
		*topicSettings
		KeepAgeMs *int64 `json:"keep_age_ms,omitempty"`
		KeepBytes *int64 `json:"keep_bytes,omitempty"`
	}{topicSettings: s}
	// A node leaves these two as they are if they are not named, and an older node refuses their names.
	if s.KeepAgeMs != 0 || now.KeepAgeMs != 0 {
		body.KeepAgeMs = &s.KeepAgeMs
	}
	if s.KeepBytes != 0 || now.KeepBytes != 0 {
		body.KeepBytes = &s.KeepBytes
	}
	var answer topicSettings
	if err := o.client.Post(ctx, "/topic/settings", of(topic, ""), &body, &answer); err != nil {
		return err
	}
	*s = answer
	return nil
}

// apply changes s according to the flags that were given.
func (f *topicFlags) apply(set *pflag.FlagSet, stdin io.Reader, s *topicSettings) error {
	if set.Changed("file") {
		version := s.Version // the version of the current settings, in case the file has none
		*s = topicSettings{}
		if err := readSettingsFile(f.file, stdin, s); err != nil {
			return err
		}
		s.Version = cmp.Or(s.Version, version)
	}
	for name, apply := range map[string]func(){
		"retention-bytes": func() { s.RetentionBytes = f.retentionBytes },
		"retention-count": func() { s.RetentionCount = f.retentionCount },
		"retention-age":   func() { s.RetentionAgeMs = f.retentionAgeMs },
		"keep-bytes":      func() { s.KeepBytes = f.keepBytes },
		"keep-age":        func() { s.KeepAgeMs = f.keepAgeMs },
		"quota-bytes":     func() { s.QuotaBytes = f.quotaBytes },
		"quota-count":     func() { s.QuotaCount = f.quotaCount },
		"quota-mode":      func() { s.QuotaMode = meta.QuotaMode(f.quotaMode) },
		"min-isr":         func() { s.MinISR = f.minISR },
		"partitions":      func() { s.Partitions = f.partitions },
		"durability":      func() { s.Durability = meta.Durability(f.durability) },
	} {
		if set.Changed(name) {
			apply()
		}
	}
	if set.Changed("partitions") && f.partitions == 0 {
		return errors.New("--partitions is 0: a topic has one or more")
	}
	return s.Validate()
}
