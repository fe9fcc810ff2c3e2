package main

import (
	"context"
	"errors"

	"github.com/spf13/cobra"

	"penstock/internal/meta"
)

type topicSettings = meta.TopicSettings

func (o *operator) topicSetCommand() *cobra.Command {
	f := &settingFlags[topicSettings]{rows: meta.TopicRows}
	var cmd *cobra.Command
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
			if err := f.apply(o.in, s, &s.Version); err != nil {
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
	f.add(cmd, "engine topic settings --json")
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
