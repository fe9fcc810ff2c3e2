package operate

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"net/url"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"penstock/cmd/engine/internal/cli"
	"penstock/cmd/engine/internal/client"
	"penstock/internal/meta"
)

// operator is cli.Operator with the commands of this package.
type operator struct{ cli.Operator }

// TopicCommand has the commands of penstock topic below it.
func TopicCommand() *cobra.Command {
	o := new(operator)
	cmd := &cobra.Command{
		Use:   "topic",
		Short: "Show and change topics",
		Long: "Show and change topics through the HTTP API of a node. In a cluster, this can be any node.\n" +
			"If the node requires a token, name a file that holds it with --token-file.\n" +
			"To manage replicas and leaders, use penstock cluster.",
	}
	o.Flags(cmd)
	cmd.AddCommand(o.topicListCommand(), o.topicSettingsCommand(), o.topicSetCommand(), o.topicPeekCommand(),
		o.topicCreateCommand(),
		o.AsksBefore(o.topicVerb("delete", "Delete a topic with all its messages and channels", "was deleted"), 0,
			o.topicDeleteLoses),
		o.topicVerb("empty", "Discard messages held in the topic because it is paused or has no channel", "was emptied"),
		o.topicVerb("pause", "Hold back new messages from all channels", "is paused"),
		o.topicVerb("unpause", "Give held-back messages to the channels and end the pause", "is no longer paused"))
	return cmd
}

// topicVerb makes a command for a change that takes no parameters besides the name.
func (o *operator) topicVerb(verb, short, done string) *cobra.Command {
	return o.Action(verb+" TOPIC", short, cobra.ExactArgs(1), func(ctx context.Context, args []string) error {
		return o.Change(ctx, "/topic/"+verb, cli.QueryOf(args[0], ""), "topic %s %s", args[0], done)
	})
}

func (o *operator) topicCreateCommand() *cobra.Command {
	partitions, replicas, madeBy := 0, 0, ""
	cmd := o.Action("create TOPIC", "Create a topic, unless it exists", cobra.ExactArgs(1),
		func(ctx context.Context, args []string) error {
			q := cli.QueryOf(args[0], "")
			if partitions != 0 {
				q.Set("partitions", strconv.Itoa(partitions))
			}
			if replicas != 0 {
				q.Set("replicas", strconv.Itoa(replicas))
			}
			if madeBy != "" {
				q.Set("made_by", madeBy)
			}
			if err := o.Client.Post(ctx, "/topic/create", q, nil, nil); err != nil {
				return err
			}
			if partitions != 0 { // one that existed stays as it was
				if err := o.checkPartitions(ctx, args[0], partitions); err != nil {
					return err
				}
			}
			return o.Done("topic %s exists", args[0])
		})
	cmd.Flags().IntVar(&partitions, "partitions", 0, "number of partitions of the new topic; 0 means the node's default")
	cmd.Flags().IntVar(&replicas, "replicas", 0,
		"number of nodes of a cluster that store each partition of the new topic; 0 means the node's default")
	cmd.Flags().StringVar(&madeBy, "made-by", "",
		"name of the token for whose share the new topic counts (token-share), as if that token had made it; empty means "+
			"the token of this command, or none if it administers the node")
	return cmd
}

// checkPartitions refuses a topic that has another number of partitions than was asked for.
func (o *operator) checkPartitions(ctx context.Context, topic string, want int) error {
	var have struct {
		Partitions int `json:"partitions"`
	}
	if err := o.Client.Get(ctx, "/topic/settings", cli.QueryOf(topic, ""), &have); err != nil {
		return fmt.Errorf("topic %s exists, and it is not known with how many partitions: %w", topic, err)
	}
	switch {
	case have.Partitions < want:
		return fmt.Errorf("topic %s existed before, with %s and not %d; nothing was changed: penstock topic set "+
			"--partitions adds some", topic, cli.Counted(have.Partitions, "partition"), want)
	case have.Partitions > want:
		return fmt.Errorf("topic %s existed before, with %s and not %d; nothing was changed: partitions cannot be taken "+
			"away, choose another name", topic, cli.Counted(have.Partitions, "partition"), want)
	}
	return nil
}

func (o *operator) topicListCommand() *cobra.Command {
	cmd := o.Action("list [TOPIC]", "List topics with their depth and counters", cobra.MaximumNArgs(1),
		func(ctx context.Context, args []string) error {
			all, missing, err := o.Topics(ctx, args...)
			if err != nil {
				return err
			}
			return cmp.Or(o.Print(all, func(w io.Writer) error { return PrintTopicNumbers(w, all) }), missing)
		})
	cmd.Long = "List topics with their depth and counters. In a cluster, the figures of all live nodes are added up.\n" +
		"MESSAGES counts all that were ever published. BYTES STORED is what the leaders' copies hold now, on the disk or\n" +
		"in the commit log; the other replicas hold as much again, each. PRODUCERS counts the open connections\n" +
		"that have published to the topic; a native producer has one to each leader. MADE BY is the token for whose share\n" +
		"a topic counts (see token-share); the column is there if any counts for one. If a node does not answer, or no\n" +
		"node serves some partitions, the figures of the others are shown, and the exit code is 11."
	return cmd
}

func (o *operator) topicPeekCommand() *cobra.Command {
	var ask func(url.Values) url.Values
	var what searched
	cmd := o.Action("peek TOPIC", "Show stored messages, confirmed or not", cobra.ExactArgs(1),
		func(ctx context.Context, args []string) error {
			q := ask(cli.QueryOf(args[0], ""))
			wanted, err := what.add(q, time.Now())
			switch {
			case err != nil:
				return err
			case wanted:
				return o.search(ctx, q)
			}
			return cli.Show(ctx, &o.Operator, "/topic/peek", q, printPeeked)
		})
	cmd.Long = "Show stored messages, confirmed or not, the oldest first. With --key, --header, --contains or --since\n" +
		"the topic is searched, one partition after the other, until --count messages are found that have all of it."
	ask = o.peekFlags(cmd)
	what.flags(cmd)
	return cmd
}

func (o *operator) topicSettingsCommand() *cobra.Command {
	return o.Action("settings TOPIC", "Show a topic's settings", cobra.ExactArgs(1),
		func(ctx context.Context, args []string) error {
			return cli.Show(ctx, &o.Operator, "/topic/settings", cli.QueryOf(args[0], ""), printTopicSettings)
		})
}

// TopicSettingsOf returns the settings of a topic.
func TopicSettingsOf(ctx context.Context, c *client.Client, topic string) (*meta.TopicSettings, error) {
	s := new(meta.TopicSettings)
	if err := c.Get(ctx, "/topic/settings", cli.QueryOf(topic, ""), s); err != nil {
		return nil, err
	}
	return s, nil
}

func printTopicSettings(w io.Writer, s *meta.TopicSettings) error {
	return printSettings(w, s.Version, s, meta.TopicRows)
}
