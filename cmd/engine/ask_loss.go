package main

import (
	"cmp"
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"penstock/internal/node"
	"penstock/internal/node/fold"
)

// asksBefore makes cmd ask on a terminal before it does what cannot be taken back. says returns a sentence that says in
// numbers what is lost; the user answers with the word that is the argument of that index. Where no terminal can
// answer, and with --yes, nothing is asked: scripts go on as before.
func (o *operator) asksBefore(
	cmd *cobra.Command, word int, says func(ctx context.Context, args []string) (string, error),
) *cobra.Command {
	yes := cmd.Flags().Bool("yes", false, "do not ask on a terminal; where nobody can answer, nothing is asked anyway")
	do := cmd.RunE
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if *yes || !isTerminal(cmd.InOrStdin()) {
			return do(cmd, args)
		}
		sentence, err := says(cmd.Context(), args)
		if err != nil {
			return withExitCode(fmt.Errorf("what would be lost is not known, and nothing was changed; --yes does not ask: %w",
				err))
		}
		fmt.Fprintf(cmd.ErrOrStderr(), "%s\nType %s to continue: ", sentence, args[word])
		if err := typed(cmd.InOrStdin(), args[word], "nothing was changed"); err != nil {
			return withExitCode(err)
		}
		return do(cmd, args)
	}
	return cmd
}

// one returns the numbers of a topic.
func (o *operator) one(ctx context.Context, topic string) (*topicNumbers, error) {
	all, missing, err := o.topicsNow(ctx, topic)
	if err == nil {
		err = missing
	}
	if err != nil {
		return nil, err
	}
	return &all[0], nil
}

// channelOf returns the numbers of a channel.
func (o *operator) channelOf(ctx context.Context, args []string) (*channelNumbers, error) {
	t, err := o.one(ctx, args[0])
	if err != nil {
		return nil, err
	}
	for i := range t.Channels {
		if t.Channels[i].Name == args[1] {
			return &t.Channels[i], nil
		}
	}
	return nil, fmt.Errorf("topic %s has no channel %s", args[0], args[1])
}

// unfinished says what a channel has not finished, in numbers.
func (c *channelNumbers) unfinished() string {
	return fmt.Sprintf("%s wait, %d are in flight and %d deferred", inNumber(c.Depth, "message", "messages"),
		c.InFlightCount, c.DeferredCount)
}

func (o *operator) topicDeleteLoses(ctx context.Context, args []string) (string, error) {
	t, err := o.one(ctx, args[0])
	if err != nil {
		return "", err
	}
	var all channelNumbers
	for i := range t.Channels {
		c := &t.Channels[i]
		all.Depth += c.Depth
		all.InFlightCount += c.InFlightCount
		all.DeferredCount += c.DeferredCount
		all.OutboxCount += c.OutboxCount
	}
	return fmt.Sprintf("Topic %s is deleted FOR EVER, with all that it stores (%s in the leaders' copies, of %s that "+
		"were\never published) and with %s, in which %s, and %s not moved yet.", args[0], counted(t.StoredBytes, "byte"),
		inNumber(t.Published, "message", "messages"), counted(len(t.Channels), "channel"), all.unfinished(),
		counted(all.OutboxCount, "dead letter")), nil
}

func (o *operator) channelDeleteLoses(ctx context.Context, args []string) (string, error) {
	c, err := o.channelOf(ctx, args)
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("Channel %s of topic %s is deleted with its place in the topic: %s,\nand %s not moved yet. "+
		"Its %s disconnected.", args[1], args[0], c.unfinished(), counted(c.OutboxCount, "dead letter"),
		inNumber(c.ClientCount, "consumer is", "consumers are")), nil
}

func (o *operator) channelEmptyLoses(ctx context.Context, args []string) (string, error) {
	c, err := o.channelOf(ctx, args)
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("All that channel %s of topic %s has not finished counts as finished and is delivered to "+
		"nobody:\n%s.", args[1], args[0], c.unfinished()), nil
}

func (o *operator) channelSkipLoses(ctx context.Context, args []string) (string, error) {
	c, err := o.channelOf(ctx, args)
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("Channel %s of topic %s discards what waits, and ALL THAT IS PUBLISHED until engine channel "+
		"unskip:\nnow %s.", args[1], args[0], c.unfinished()), nil
}

func (o *operator) channelSeekLoses(ctx context.Context, args []string) (string, error) {
	c, err := o.channelOf(ctx, args)
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("Channel %s of topic %s goes on at another place. What lies before it counts as finished, what "+
		"lies\nbehind it is delivered, also again. Now %s.", args[1], args[0], c.unfinished()), nil
}

func (o *operator) redriveSays(ctx context.Context, args []string) (string, error) {
	var s node.ChannelSettings
	if err := o.client.Get(ctx, "/channel/settings", of(args[0], args[1]), &s); err != nil {
		return "", err
	}
	topic := cmp.Or(s.DeadLetter, args[0]+fold.DeadLetterSuffix)
	waits, err := o.channelOf(ctx, []string{topic, node.RedriveChannel})
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("The dead letters of channel %s are published to topic %s again, for this channel only, and "+
		"their\nattempts begin anew: of the %s in topic %s, those that are of this channel.", args[1], args[0],
		inNumber(waits.Depth, "dead letter", "dead letters"), topic), nil
}
