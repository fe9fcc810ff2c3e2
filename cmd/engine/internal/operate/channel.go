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
	"penstock/cmd/engine/internal/values"
	"penstock/internal/node/channel"
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
		o.AsksBefore(o.seekCommand(), 1, o.channelLoses(channelSeekLoses)),
		o.channelPeekCommand(), o.waitingCommand("pending", "Show messages in flight", printPending),
		o.waitingCommand("deferred", "Show deferred messages", printDeferred),
		o.AsksBefore(o.redriveCommand(), 1, o.redriveSays),
		o.channelFinishCommand(),
		o.channelCreateCommand(), o.channelForkCommand(),
		o.AsksBefore(o.channelDeleteCommand(), 1, o.channelLoses(channelDeleteLoses)),
		o.AsksBefore(o.channelVerb("empty",
			"Discard a channel's backlog, including messages in flight and deferred messages", "was emptied"),
			1, o.channelLoses(channelEmptyLoses)),
		o.channelVerb("pause", "Stop delivering messages; they stay in the channel", "is paused"),
		o.channelVerb("unpause", "Resume deliveries after pause", "is no longer paused"),
		o.AsksBefore(o.channelVerb("skip", "Discard messages instead of delivering them, until unskip",
			"now discards its messages"), 1, o.channelLoses(channelSkipLoses)),
		o.channelVerb("unskip", "Stop discarding messages and deliver them again",
			"no longer discards its messages"))
	return cmd
}

// channelVerb makes a command for a change that takes no parameters besides the names.
func (o *operator) channelVerb(verb, short, done string) *cobra.Command {
	return o.Action(verb+" TOPIC CHANNEL", short, cobra.ExactArgs(2), func(ctx context.Context, args []string) error {
		return o.Change(ctx, "/channel/"+verb, cli.QueryOf(args[0], args[1]), "channel %s of topic %s %s",
			args[1], args[0], done)
	})
}

func (o *operator) channelDeleteCommand() *cobra.Command {
	return o.Action("delete TOPIC CHANNEL", "Delete a channel and its backlog", cobra.ExactArgs(2),
		func(ctx context.Context, args []string) error {
			letters := o.outboxOf(ctx, args[0], args[1])
			with := ""
			if letters > 0 {
				with = fmt.Sprintf(", with %s that its dead-letter topic did not have yet", cli.Counted(letters, "dead letter"))
			}
			return o.Change(ctx, "/channel/delete", cli.QueryOf(args[0], args[1]), "channel %s of topic %s was deleted%s",
				args[1], args[0], with)
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
				p, err := cli.ParsePlace("from", from, time.Now())
				if err != nil {
					return err
				}
				q.Set("from", p.String())
			}
			return o.Change(ctx, "/channel/create", q, "channel %s of topic %s exists", args[1], args[0])
		})
	cmd.Long = "Create a channel, unless it exists. It gets the messages that are published from now on, and the first\n" +
		"channel of a topic also those that have waited for it. --from names another place:\n" +
		"  oldest  the oldest message that is kept in each partition\n" +
		"  newest  after the newest message of each partition\n" +
		"  ID      the message with this id; in the other partitions, the channel starts as without --from\n" +
		"  TIME    the first message stored at TIME or later, in each partition, such as\n" +
		"          " + values.TimeHelp + "\n" +
		"A channel that exists stays where it is."
	cli.PlaceFlag(cmd, &from, "from", "oldest, newest, a message id or a time")
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
				p, err := cli.ParsePlace("at", at, time.Now())
				if err != nil {
					return err
				}
				q.Set("at", p.String())
				place = "at " + p.String()
			}
			return o.Change(ctx, "/channel/fork", q,
				"channel %s of topic %s exists, with the settings of channel %s, and starts %s", args[2], args[0], args[1], place)
		})
	cmd.Long = "Create a channel with the settings of another one, which goes on undisturbed. The new channel starts\n" +
		"at the oldest message that the other one has not confirmed. --at names another place among what is kept:\n" +
		"  oldest  the oldest message that is kept in each partition\n" +
		"  newest  after the newest message of each partition\n" +
		"  ID      the message with this id; in the other partitions, where the other channel stands\n" +
		"  TIME    the first message stored at TIME or later, in each partition, such as\n" +
		"          " + values.TimeHelp + "\n" +
		"It fails if the new channel exists. Whether the other channel is paused is not copied."
	cli.PlaceFlag(cmd, &at, "at", "oldest, newest, a message id or a time")
	return cmd
}

func (o *operator) channelListCommand() *cobra.Command {
	partitions := false
	cmd := o.Action("list [TOPIC]", "List channels with their depth and counters", cobra.MaximumNArgs(1),
		func(ctx context.Context, args []string) error {
			if partitions {
				return o.listLags(ctx, args)
			}
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
		"code is 11.\n\n" +
		"--partitions shows what waits in each partition of a topic's channels, at most 200 partitions of each channel,\n" +
		"those with the most first. HELD UP BY is the message behind which the most others of an ordered channel wait:\n" +
		"penstock channel peek --from ID shows its key, penstock trace its life."
	cmd.Flags().BoolVar(&partitions, "partitions", false,
		"show the partitions of the channels of TOPIC, which must be named")
	return cmd
}

func (o *operator) channelSettingsCommand() *cobra.Command {
	return o.Action("settings TOPIC CHANNEL", "Show a channel's settings", cobra.ExactArgs(2),
		func(ctx context.Context, args []string) error {
			return cli.Show(ctx, &o.Operator, "/channel/settings", cli.QueryOf(args[0], args[1]), printChannelSettings)
		})
}

func (o *operator) seekCommand() *cobra.Command {
	var to, value string
	cmd := o.Action("seek TOPIC CHANNEL --to PLACE", "Move a channel to another position in its topic",
		cobra.ExactArgs(2),
		func(ctx context.Context, args []string) error {
			q := cli.QueryOf(args[0], args[1])
			where, err := seekPlace(q, to, value, o.Prompt)
			if err != nil {
				return err
			}
			return o.Change(ctx, "/channel/seek", q, "channel %s of topic %s continues at %s", args[1], args[0], where)
		})
	cmd.Long = "Move a channel to another position in its topic, backward or forward. Messages in flight are\n" +
		"forgotten: a consumer that answers one of them gets an error.\n\n" +
		"PLACE is one of:\n" +
		"  oldest  the oldest stored message of each partition\n" +
		"  newest  after the newest message of each partition\n" +
		"  ID      the message with this id; other partitions are not affected\n" +
		"  TIME    the first message stored at TIME or later, in each partition, such as\n" +
		"          " + values.TimeHelp + "\n" +
		"  +N, -N  N messages after the oldest unconfirmed one, or before it, in each partition"
	cli.PlaceFlag(cmd, &to, "to", "oldest, newest, a message id, a time, or a number of messages with its sign")
	cmd.Flags().StringVar(&value, "value", "", "what belonged to --to in an earlier version")
	cli.Must(cmd.Flags().MarkHidden("value"))
	cli.Must(cmd.MarkFlagRequired("to"))
	return cmd
}

// peekFlags adds the flags of both peek commands to cmd. ask adds their values to a query.
func (o *operator) peekFlags(cmd *cobra.Command) (ask func(q url.Values) url.Values) {
	var from string
	var count, partition int
	cmd.Flags().IntVar(&count, "count", channel.DefaultListCount,
		fmt.Sprintf("maximum number of messages to show, 1 to %d", channel.MaxListCount))
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
			return cli.Show(ctx, &o.Operator, "/channel/peek", ask(cli.QueryOf(args[0], args[1])), printPeeked)
		})
	ask = o.peekFlags(cmd)
	return cmd
}

// waitingCommand makes the command pending or deferred. text prints what it shows.
func (o *operator) waitingCommand(
	what, short string, text func(io.Writer, *api.WaitingList) error,
) *cobra.Command {
	count := channel.DefaultListCount
	cmd := o.Action(what+" TOPIC CHANNEL", short, cobra.ExactArgs(2), func(ctx context.Context, args []string) error {
		q := cli.QueryOf(args[0], args[1])
		q.Set("count", strconv.Itoa(count))
		return cli.Show(ctx, &o.Operator, "/channel/"+what, q, text)
	})
	cmd.Flags().IntVar(&count, "count", count,
		fmt.Sprintf("maximum number of messages to show, 1 to %d", channel.MaxListCount))
	return cmd
}

func (o *operator) channelFinishCommand() *cobra.Command {
	cmd := o.Action("finish TOPIC CHANNEL ID", "Finish one message of a channel, whoever has it", cobra.ExactArgs(3),
		func(ctx context.Context, args []string) error {
			q := cli.QueryOf(args[0], args[1])
			q.Set("id", args[2])
			return o.Change(ctx, "/channel/finish", q, "message %s is finished in channel %s of topic %s",
				args[2], args[1], args[0])
		})
	cmd.Long = "Finish one message of a channel, as if a consumer had done it: one that holds up an ordered channel, a\n" +
		"delayed one that is not to be delivered, or one that no consumer can handle. It is not delivered to this channel\n" +
		"any more; other channels and the topic keep it. A consumer that has it just then gets an error when it answers."
	return cmd
}

func (o *operator) redriveCommand() *cobra.Command {
	most := 0
	var ids, filter []string
	cmd := o.Action("redrive TOPIC CHANNEL", "Publish a channel's dead letters again, for this channel only",
		cobra.ExactArgs(2), func(ctx context.Context, args []string) error {
			if most < 0 {
				return cli.Fail(cli.ExitUsage, fmt.Errorf("%d is not a number of messages", most))
			}
			total, path := 0, "/channel/redrive"
			if len(ids) > 0 || len(filter) > 0 {
				path += "/chosen"
			}
			for most == 0 || total < most {
				q := cli.QueryOf(args[0], args[1])
				q["filter"], q["id"] = filter, ids
				ask := channel.MaxListCount
				if most > 0 {
					ask = min(ask, most-total)
				}
				if len(ids) == 0 {
					q.Set("count", strconv.Itoa(ask))
				}
				var moved api.Redriven
				if err := o.Client.Post(ctx, path, q, nil, &moved); err != nil {
					if total > 0 {
						return fmt.Errorf("%w; %s moved before that", err, cli.InNumber(total, "message was", "messages were"))
					}
					return err
				}
				if total += moved.Moved; moved.Moved == 0 || len(ids) > 0 {
					break
				}
			}
			return o.redriven(total, args)
		})
	cmd.Long = "Publish a channel's dead letters to its topic again, for this channel only. They are taken from the\n" +
		"dead-letter topic in the channel's settings and from those that they named before, through the channel\n" +
		"\"redrive\" of these topics. Their attempts are counted from the beginning again. One redrive of a channel\n" +
		"runs at a time. Dead letters that cannot be published stay where they are, and are counted."
	cmd.Flags().IntVar(&most, "count", 0, "maximum number of messages to publish; 0 means all")
	cmd.Flags().StringSliceVar(&ids, "id", nil,
		"publish only the dead letters of the messages that had these IDs (header penstock-origin-id)")
	cmd.Flags().StringArrayVar(&filter, "filter", nil, "publish only dead letters with such a header, in the notation of "+
		"channel set --filter; several: with one of them")
	cmd.MarkFlagsMutuallyExclusive("id", "count")
	cmd.MarkFlagsMutuallyExclusive("id", "filter")
	return cmd
}

// redriven says how many dead letters were published again.
func (o *operator) redriven(count int, args []string) error {
	if o.AsJSON {
		return cli.PrintJSON(o.Out, api.Redriven{Moved: count})
	}
	return o.Done("%s published again for channel %s of topic %s",
		cli.InNumber(count, "message was", "messages were"), args[1], args[0])
}
