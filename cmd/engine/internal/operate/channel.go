package operate

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"net/url"
	"strconv"

	"github.com/spf13/cobra"

	"penstock/cmd/engine/internal/cli"
	"penstock/internal/node"
	"penstock/internal/server/api"
)

// ChannelCommand has the commands of penstock channel below it.
func ChannelCommand() *cobra.Command {
	o := new(operator)
	cmd := &cobra.Command{
		Use:   "channel",
		Short: "Show and change channels",
		Long: "Show and change channels through the HTTP API of a node. In a cluster, this can be any node.\n" +
			"If the node requires a token, name a file that holds it with --token-file.",
	}
	o.Flags(cmd)
	cmd.AddCommand(o.channelListCommand(), o.consumersCommand(), o.channelSettingsCommand(), o.channelSetCommand(),
		o.AsksBefore(o.seekCommand(), 1, o.channelSeekLoses),
		o.channelPeekCommand(), o.waitingCommand("pending", "Show messages in flight", "SINCE"),
		o.waitingCommand("deferred", "Show deferred messages", "DUE"), o.AsksBefore(o.redriveCommand(), 1, o.redriveSays),
		o.channelCreateCommand(), o.channelForkCommand(),
		o.AsksBefore(o.channelDeleteCommand(), 1, o.channelDeleteLoses),
		o.AsksBefore(o.channelVerb("empty",
			"Discard a channel's backlog, including messages in flight and deferred messages", "was emptied"),
			1, o.channelEmptyLoses),
		o.channelVerb("pause", "Stop delivering messages; they stay in the channel", "is paused"),
		o.channelVerb("unpause", "Resume deliveries after pause", "is no longer paused"),
		o.AsksBefore(o.channelVerb("skip", "Discard messages instead of delivering them, until unskip",
			"now discards its messages"), 1, o.channelSkipLoses),
		o.channelVerb("unskip", "Stop discarding messages and deliver them again",
			"no longer discards its messages"))
	return cmd
}

// channelVerb makes a command for a change that takes no parameters besides the names.
func (o *operator) channelVerb(verb, short, done string) *cobra.Command {
	return o.Action(verb+" TOPIC CHANNEL", short, cobra.ExactArgs(2), func(ctx context.Context, args []string) error {
		if err := o.Client.Post(ctx, "/channel/"+verb, cli.QueryOf(args[0], args[1]), nil, nil); err != nil {
			return err
		}
		return o.Done("channel %s of topic %s %s", args[1], args[0], done)
	})
}

func (o *operator) channelDeleteCommand() *cobra.Command {
	return o.Action("delete TOPIC CHANNEL", "Delete a channel and its backlog", cobra.ExactArgs(2),
		func(ctx context.Context, args []string) error {
			letters := o.outboxOf(ctx, args[0], args[1])
			if err := o.Client.Post(ctx, "/channel/delete", cli.QueryOf(args[0], args[1]), nil, nil); err != nil {
				return err
			}
			if letters == 0 {
				return o.Done("channel %s of topic %s was deleted", args[1], args[0])
			}
			return o.Done("channel %s of topic %s was deleted, with %s that its dead-letter topic did not have yet",
				args[1], args[0], cli.Counted(letters, "dead letter"))
		})
}

// outboxOf returns how many dead letters of the channel wait to be moved; 0 also if nobody says that.
func (o *operator) outboxOf(ctx context.Context, topic, channel string) int {
	all, _, err := o.TopicsNow(ctx, topic)
	if err != nil || len(all) == 0 {
		return 0
	}
	for _, c := range all[0].Channels {
		if c.Name == channel {
			return c.OutboxCount
		}
	}
	return 0
}

func (o *operator) channelCreateCommand() *cobra.Command {
	var from string
	cmd := o.Action("create TOPIC CHANNEL", "Create a channel, unless it exists", cobra.ExactArgs(2),
		func(ctx context.Context, args []string) error {
			q := cli.QueryOf(args[0], args[1])
			if from != "" {
				q.Set("from", from)
			}
			if err := o.Client.Post(ctx, "/channel/create", q, nil, nil); err != nil {
				return err
			}
			return o.Done("channel %s of topic %s exists", args[1], args[0])
		})
	cmd.Long = "Create a channel, unless it exists. It gets the messages that are published from now on, and the first\n" +
		"channel of a topic also those that have waited for it. --from names another place:\n" +
		"  oldest  the oldest message that is kept in each partition\n" +
		"  newest  after the newest message of each partition\n" +
		"  ID      the message with this id; in the other partitions, the channel starts as without --from\n" +
		"  TIME    the first message stored at TIME or later, such as 2026-01-31T12:00:00Z, in each partition\n" +
		"A channel that exists stays where it is."
	cmd.Flags().StringVar(&from, "from", "", "oldest, newest, a message id or a time")
	cli.Must(cmd.RegisterFlagCompletionFunc("from", cobra.FixedCompletions(
		[]string{"oldest", "newest"}, cobra.ShellCompDirectiveNoFileComp)))
	return cmd
}

func (o *operator) channelForkCommand() *cobra.Command {
	var at string
	cmd := o.Action("fork TOPIC CHANNEL NEW", "Create a channel with the settings and the place of another one",
		cobra.ExactArgs(3),
		func(ctx context.Context, args []string) error {
			q := cli.QueryOf(args[0], args[1])
			q.Set("new", args[2])
			place := "where channel " + args[1] + " stands"
			if at != "" {
				q.Set("at", at)
				place = "at " + at
			}
			if err := o.Client.Post(ctx, "/channel/fork", q, nil, nil); err != nil {
				return err
			}
			return o.Done("channel %s of topic %s exists, with the settings of channel %s, and starts %s",
				args[2], args[0], args[1], place)
		})
	cmd.Long = "Create a channel with the settings of another one, which goes on undisturbed. The new channel starts\n" +
		"at the oldest message that the other one has not confirmed. --at names another place among what is kept:\n" +
		"  oldest  the oldest message that is kept in each partition\n" +
		"  newest  after the newest message of each partition\n" +
		"  ID      the message with this id; in the other partitions, where the other channel stands\n" +
		"  TIME    the first message stored at TIME or later, such as 2026-01-31T12:00:00Z, in each partition\n" +
		"It fails if the new channel exists. Whether the other channel is paused is not copied."
	cmd.Flags().StringVar(&at, "at", "", "oldest, newest, a message id or a time")
	cli.Must(cmd.RegisterFlagCompletionFunc("at", cobra.FixedCompletions(
		[]string{"oldest", "newest"}, cobra.ShellCompDirectiveNoFileComp)))
	return cmd
}

func (o *operator) channelListCommand() *cobra.Command {
	cmd := o.Action("list [TOPIC]", "List channels with their depth and counters", cobra.MaximumNArgs(1),
		func(ctx context.Context, args []string) error {
			all, missing, err := o.Topics(ctx, args...)
			if err != nil {
				return err
			}
			channels := cli.ChannelsOf(all)
			return cmp.Or(o.Print(channels, func(w io.Writer) error { return PrintChannels(w, all) }), missing)
		})
	cmd.Long = "List channels with their depth and counters. In a cluster, the figures of all live nodes are added up.\n" +
		"Only CONSUMERS is the number of subscriptions at the leader that has the most, because most consumers subscribe\n" +
		"at each leader; it is too low if consumers choose their partitions. penstock channel consumers lists all\n" +
		"subscriptions, and top and the console count as this list does.\n" +
		"If a node does not answer, or no node serves some partitions, the figures of the others are shown, and the exit\n" +
		"code is 11."
	return cmd
}

func (o *operator) channelSettingsCommand() *cobra.Command {
	return o.Action("settings TOPIC CHANNEL", "Show a channel's settings", cobra.ExactArgs(2),
		func(ctx context.Context, args []string) error {
			var set node.ChannelSettings
			if err := o.Client.Get(ctx, "/channel/settings", cli.QueryOf(args[0], args[1]), &set); err != nil {
				return err
			}
			return o.showChannelSettings(&set)
		})
}

func (o *operator) seekCommand() *cobra.Command {
	var to, value string
	cmd := o.Action("seek TOPIC CHANNEL --to PLACE [--value VALUE]", "Move a channel to another position in its topic",
		cobra.ExactArgs(2),
		func(ctx context.Context, args []string) error {
			q := cli.QueryOf(args[0], args[1])
			q.Set("to", to)
			if value != "" {
				q.Set("value", value)
			}
			if err := o.Client.Post(ctx, "/channel/seek", q, nil, nil); err != nil {
				return err
			}
			place := "the " + to
			if value != "" {
				place = to + " " + value
			}
			return o.Done("channel %s of topic %s continues at %s", args[1], args[0], place)
		})
	cmd.Long = "Move a channel to another position in its topic, backward or forward. Messages in flight are\n" +
		"forgotten: a consumer that answers one of them gets an error.\n\n" +
		"PLACE is one of:\n" +
		"  beginning  the oldest stored message of each partition\n" +
		"  end        after the newest message of each partition\n" +
		"  id         the message with the id VALUE; other partitions are not affected\n" +
		"  time       the first message stored at VALUE or later, in each partition; VALUE is a time such as\n" +
		"             2026-01-31T12:00:00Z, or in nanoseconds since 1970\n" +
		"  count      VALUE messages after the oldest unconfirmed one, or before it if VALUE is negative, in each partition"
	cmd.Flags().StringVar(&to, "to", "", "beginning, end, id, time or count")
	cmd.Flags().StringVar(&value, "value", "", "the message id, the time or the number of messages")
	cli.Must(cmd.MarkFlagRequired("to"))
	cli.Must(cmd.RegisterFlagCompletionFunc("to", cobra.FixedCompletions(
		[]string{"beginning", "end", "id", "time", "count"}, cobra.ShellCompDirectiveNoFileComp)))
	return cmd
}

// peekFlags adds the flags of both peek commands to cmd. ask adds their values to a query.
func (o *operator) peekFlags(cmd *cobra.Command) (ask func(q url.Values) url.Values) {
	var from string
	var count, partition int
	cmd.Flags().IntVar(&count, "count", node.DefaultListCount,
		fmt.Sprintf("maximum number of messages to show, 1 to %d", node.MaxListCount))
	cmd.Flags().IntVar(&partition, "partition", -1, "show only this partition; -1 means all")
	cmd.Flags().StringVar(&from, "from", "",
		"first message to show: its id or, with --partition, its number in the partition")
	return func(q url.Values) url.Values {
		q.Set("count", strconv.Itoa(count))
		if partition >= 0 {
			q.Set("partition", strconv.Itoa(partition))
		}
		if from != "" {
			q.Set("from", from)
		}
		return q
	}
}

func (o *operator) channelPeekCommand() *cobra.Command {
	var ask func(url.Values) url.Values
	cmd := o.Action("peek TOPIC CHANNEL", "Show unconfirmed messages without consuming them",
		cobra.ExactArgs(2), func(ctx context.Context, args []string) error {
			return o.peek(ctx, "/channel/peek", ask(cli.QueryOf(args[0], args[1])))
		})
	ask = o.peekFlags(cmd)
	return cmd
}

func (o *operator) peek(ctx context.Context, path string, q url.Values) error {
	var list api.PeekList
	if err := o.Client.Get(ctx, path, q, &list); err != nil {
		return err
	}
	return o.Print(list, func(w io.Writer) error { return printPeeked(w, &list) })
}

// waitingCommand makes the command pending or deferred. when is the column that distinguishes them in the output.
func (o *operator) waitingCommand(what, short, when string) *cobra.Command {
	count := node.DefaultListCount
	cmd := o.Action(what+" TOPIC CHANNEL", short, cobra.ExactArgs(2), func(ctx context.Context, args []string) error {
		q := cli.QueryOf(args[0], args[1])
		q.Set("count", strconv.Itoa(count))
		var list api.WaitingList
		if err := o.Client.Get(ctx, "/channel/"+what, q, &list); err != nil {
			return err
		}
		return o.Print(list, func(w io.Writer) error { return printWaiting(w, &list, when) })
	})
	cmd.Flags().IntVar(&count, "count", count,
		fmt.Sprintf("maximum number of messages to show, 1 to %d", node.MaxListCount))
	return cmd
}

func (o *operator) redriveCommand() *cobra.Command {
	most := 0
	cmd := o.Action("redrive TOPIC CHANNEL", "Publish a channel's dead letters again, for this channel only",
		cobra.ExactArgs(2), func(ctx context.Context, args []string) error {
			if most < 0 {
				return cli.Fail(cli.ExitUsage, fmt.Errorf("%d is not a number of messages", most))
			}
			total := 0
			for most == 0 || total < most {
				q := cli.QueryOf(args[0], args[1])
				ask := node.MaxListCount
				if most > 0 {
					ask = min(ask, most-total)
				}
				q.Set("count", strconv.Itoa(ask))
				var moved api.Redriven
				if err := o.Client.Post(ctx, "/channel/redrive", q, nil, &moved); err != nil {
					if total > 0 {
						return fmt.Errorf("%w; %s moved before that", err, cli.InNumber(total, "message was", "messages were"))
					}
					return err
				}
				if total += moved.Moved; moved.Moved == 0 {
					break
				}
			}
			if o.AsJSON {
				return cli.PrintJSON(o.Out, api.Redriven{Moved: total})
			}
			return o.Done("%s published again for channel %s of topic %s",
				cli.InNumber(total, "message was", "messages were"), args[1], args[0])
		})
	cmd.Long = "Publish a channel's dead letters to its topic again, for this channel only. They are taken from the\n" +
		"dead-letter topic in the channel's settings and from those that they named before, through the channel\n" +
		"\"redrive\" of these topics. Their attempts are counted from the beginning again. One redrive of a channel\n" +
		"runs at a time. Dead letters that cannot be published stay where they are, and are counted."
	cmd.Flags().IntVar(&most, "count", 0, "maximum number of messages to publish; 0 means all")
	return cmd
}
