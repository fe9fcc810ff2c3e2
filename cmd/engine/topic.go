package main

import (
	"cmp"
	"context"
	"fmt"
	"net/url"
	"strconv"

	"github.com/spf13/cobra"
)

func topicCommand() *cobra.Command {
	o := new(steward)
	cmd := &cobra.Command{
		Use:   "topic",
		Short: "Show and change topics",
		Long: "Show and change topics through the HTTP address of a node; in a cluster of any node, whatever it leads.\n" +
			"Where nodes ask for a token it is taken from " + envToken +
			". Replicas and leaders are the business of engine cluster.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	o.flags(cmd)
	cmd.AddCommand(o.topicListCommand(), o.topicSettingsCommand(), o.topicSetCommand(), o.topicPeekCommand(),
		o.topicCreateCommand(),
		o.topicVerb("delete", "Delete a topic with all its messages and channels", "is deleted"),
		o.topicVerb("empty", "Drop what waits at a topic that is paused or has no channel", "is empty"),
		o.topicVerb("pause", "Hold back from all channels what is published from now on", "is paused"),
		o.topicVerb("unpause", "Let the channels have what was held back", "goes on"))
	return cmd
}

// topicVerb makes a command for a change that takes no parameters besides the name.
func (o *steward) topicVerb(verb, short, done string) *cobra.Command {
	return o.action(verb+" TOPIC", short, cobra.ExactArgs(1), func(ctx context.Context, args []string) error {
		if err := o.client.post(ctx, "/topic/"+verb, of(args[0], ""), nil, nil); err != nil {
			return err
		}
		return o.done("topic %s %s", args[0], done)
	})
}

func (o *steward) topicCreateCommand() *cobra.Command {
	partitions := 0
	cmd := o.action("create TOPIC", "Create a topic, and nothing if it is there", cobra.ExactArgs(1),
		func(ctx context.Context, args []string) error {
			q := of(args[0], "")
			if partitions != 0 {
				q.Set("partitions", strconv.Itoa(partitions))
			}
			if err := o.client.post(ctx, "/topic/create", q, nil, nil); err != nil {
				return err
			}
			return o.done("topic %s is there", args[0])
		})
	cmd.Flags().IntVar(&partitions, "partitions", 0, "of a new topic; 0: the node's default")
	return cmd
}

func (o *steward) topicListCommand() *cobra.Command {
	cmd := o.action("list [TOPIC]", "Show topics and their numbers", cobra.MaximumNArgs(1),
		func(ctx context.Context, args []string) error {
			all, err := o.topics(ctx, args...)
			if err != nil {
				return err
			}
			if o.asJSON {
				return printJSON(o.out, all)
			}
			return printTopicNumbers(o.out, all)
		})
	cmd.Long = "Show topics and their numbers. In a cluster the numbers of all nodes are added; messages are counted " +
		"since each was started."
	return cmd
}

func (o *steward) topicPeekCommand() *cobra.Command {
	var ask func(url.Values) url.Values
	cmd := o.action("peek TOPIC", "Show stored messages, whatever channels have done with them", cobra.ExactArgs(1),
		func(ctx context.Context, args []string) error {
			return o.peek(ctx, "/topic/peek", ask(of(args[0], "")))
		})
	ask = o.peekFlags(cmd)
	return cmd
}

func (o *steward) topicSettingsCommand() *cobra.Command {
	return o.action("settings TOPIC", "Show a topic's settings", cobra.ExactArgs(1),
		func(ctx context.Context, args []string) error {
			s, err := o.topicSettings(ctx, args[0])
			if err != nil {
				return err
			}
			return o.showTopicSettings(s)
		})
}

func (o *steward) topicSettings(ctx context.Context, topic string) (*topicSettings, error) {
	s := new(topicSettings)
	if err := o.client.get(ctx, "/topic/settings", of(topic, ""), s); err != nil {
		return nil, err
	}
	return s, nil
}

func (o *steward) showTopicSettings(s *topicSettings) error {
	if o.asJSON {
		return printJSON(o.out, s)
	}
	t := table(o.out)
	row := func(name, value string) { fmt.Fprintf(t, "%s\t%s\n", name, value) }
	row("version", orText(s.Version, "0: never configured"))
	row("keep bytes", kept(s.RetentionBytes, formatBytes))
	row("keep messages", kept(s.RetentionCount, formatCount))
	row("keep for", kept(s.RetentionAgeMs, formatAge))
	row("quota bytes", limited(s.QuotaBytes, formatBytes))
	row("quota messages", limited(s.QuotaCount, formatCount))
	row("quota mode", cmp.Or(string(s.QuotaMode), "reject"))
	row("min isr", orText(s.MinISR, "majority of the replicas"))
	row("partitions", strconv.Itoa(s.Partitions))
	row("durability", string(s.Durability))
	return t.Flush()
}
