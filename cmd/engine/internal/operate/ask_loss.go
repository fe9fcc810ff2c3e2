package operate

import (
	"cmp"
	"context"
	"fmt"

	"penstock/cmd/engine/internal/cli"
	"penstock/internal/node/fold"
	"penstock/internal/node/topic"
)

// one returns the numbers of a topic.
func (o *operator) one(ctx context.Context, topic string) (*cli.TopicNumbers, error) {
	all, missing, err := o.TopicsNow(ctx, topic)
	if err == nil {
		err = missing
	}
	if err != nil {
		return nil, err
	}
	return &all[0], nil
}

// channelOf returns the numbers of a channel.
func (o *operator) channelOf(ctx context.Context, args []string) (*cli.ChannelNumbers, error) {
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

func (o *operator) topicDeleteLoses(ctx context.Context, args []string) (string, error) {
	t, err := o.one(ctx, args[0])
	if err != nil {
		return "", err
	}
	var all cli.ChannelNumbers
	for i := range t.Channels {
		c := &t.Channels[i]
		all.Depth += c.Depth
		all.InFlightCount += c.InFlightCount
		all.DeferredCount += c.DeferredCount
		all.OutboxCount += c.OutboxCount
	}
	return fmt.Sprintf("Topic %s is deleted FOR EVER, with all that it stores (%s in the leaders' copies, of %s that "+
		"were\never published) and with %s, in which %s, and %s not moved yet.", args[0], cli.Counted(t.StoredBytes, "byte"),
		cli.InNumber(t.Published, "message", "messages"), cli.Counted(len(t.Channels), "channel"), all.Unfinished(),
		cli.Counted(all.OutboxCount, "dead letter")), nil
}

// channelLoses returns what says what is lost of a channel, from its numbers, its name and that of its topic.
func (o *operator) channelLoses(
	says func(c *cli.ChannelNumbers, channel, topic string) string,
) func(context.Context, []string) (string, error) {
	return func(ctx context.Context, args []string) (string, error) {
		c, err := o.channelOf(ctx, args)
		if err != nil {
			return "", err
		}
		return says(c, args[1], args[0]), nil
	}
}

func channelDeleteLoses(c *cli.ChannelNumbers, channel, topic string) string {
	return fmt.Sprintf("Channel %s of topic %s is deleted with its place in the topic: %s,\nand %s not moved yet. "+
		"Its %s disconnected.", channel, topic, c.Unfinished(), cli.Counted(c.OutboxCount, "dead letter"),
		cli.InNumber(c.ClientCount, "consumer is", "consumers are"))
}

func channelEmptyLoses(c *cli.ChannelNumbers, channel, topic string) string {
	return fmt.Sprintf("All that channel %s of topic %s has not finished counts as finished and is delivered to "+
		"nobody:\n%s.", channel, topic, c.Unfinished())
}

func channelSkipLoses(c *cli.ChannelNumbers, channel, topic string) string {
	return fmt.Sprintf("Channel %s of topic %s discards what waits, and ALL THAT IS PUBLISHED until penstock channel "+
		"unskip:\nnow %s.", channel, topic, c.Unfinished())
}

func channelSeekLoses(c *cli.ChannelNumbers, channel, topic string) string {
	return fmt.Sprintf("Channel %s of topic %s goes on at another place. What lies before it counts as finished, what "+
		"lies\nbehind it is delivered, also again. Now %s.", channel, topic, c.Unfinished())
}

func (o *operator) redriveSays(ctx context.Context, args []string) (string, error) {
	var s fold.ChannelSettings
	if err := o.Client.Get(ctx, "/channel/settings", cli.QueryOf(args[0], args[1]), &s); err != nil {
		return "", err
	}
	dead := cmp.Or(s.DeadLetter, args[0]+fold.DeadLetterSuffix)
	waits, err := o.channelOf(ctx, []string{dead, topic.RedriveChannel})
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("The dead letters of channel %s are published to topic %s again, for this channel only, and "+
		"their\nattempts begin anew: of the %s in topic %s, those that are of this channel.", args[1], args[0],
		cli.InNumber(waits.Depth, "dead letter", "dead letters"), dead), nil
}
