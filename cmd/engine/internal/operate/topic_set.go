package operate

import (
	"context"
	"errors"
	"io"

	"github.com/spf13/cobra"

	"penstock/cmd/engine/internal/cli"
	"penstock/cmd/engine/internal/client"
	"penstock/internal/meta"
)

type topicSettings = meta.TopicSettings

func (o *operator) topicSetCommand() *cobra.Command {
	f := &settingFlags[topicSettings]{rows: meta.TopicRows}
	var cmd *cobra.Command
	cmd = o.Action("set TOPIC", "Change a topic's settings", cobra.ExactArgs(1),
		func(ctx context.Context, args []string) error {
			if !cli.AnyOwn(cmd) {
				return cli.Fail(cli.ExitUsage, errors.New("say what to set; see penstock topic set --help"))
			}
			s, err := TopicSettingsOf(ctx, &o.Client, args[0])
			if err != nil {
				return err
			}
			now := *s
			if err := f.apply(o.In, s, &s.Version); err != nil {
				return cli.Fail(cli.ExitUsage, err)
			}
			if err := PostTopicSettings(ctx, &o.Client, args[0], &now, s); err != nil {
				return err
			}
			return o.Print(s, func(w io.Writer) error { return printTopicSettings(w, s) })
		})
	cmd.Long = "Change a topic's settings. Only settings whose flags are given change. --file replaces all settings:\n" +
		"those that the file does not contain get their defaults, except the number of partitions, which stays the same.\n" +
		"The command fails if somebody else changes the settings at the same time. Retention and quotas apply to each\n" +
		"partition."
	f.add(cmd, "penstock topic settings --json")
	return cmd
}

// PostTopicSettings replaces the settings now of a topic by s, and sets s to what the node answers.
func PostTopicSettings(ctx context.Context, c *client.Client, topic string, now, s *topicSettings) error {
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
	if err := c.Post(ctx, "/topic/settings", cli.QueryOf(topic, ""), &body, &answer); err != nil {
		return err
	}
	*s = answer
	return nil
}
