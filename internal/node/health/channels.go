package health

import (
	"fmt"
	"time"
)

// Channel is a channel that does not go on by itself, for a sentence.
type Channel struct {
	Topic, Name string
	Count       int    // of dead letters, of partitions, or of messages
	Why         string // of dead letters: why the last one could not be moved; of one that skips: since when
	// Before: it skipped already before the time in Why, and may have discarded more than Count says.
	Before bool
	More   int // how many other channels there are of the kind
}

// With returns the first of the channels of a kind, of which c is the first so far (nil: there was none), after one
// more. One whose Count is 0 is not of the kind.
func (c *Channel) With(one Channel) *Channel {
	if one.Count == 0 {
		return c
	}
	return c.And(one)
}

// And is With for one that is of the kind whatever its Count.
func (c *Channel) And(one Channel) *Channel {
	if c == nil {
		return &one
	}
	c.More++
	return c
}

// Channels returns how many channels of the kind there are.
func (c *Channel) Channels() int {
	if c == nil {
		return 0
	}
	return 1 + c.More
}

// channelNotes says which channels are paused, skip, lose messages, have dead letters aside, and are full.
func channelNotes(f *Facts) (note string) {
	if c := f.PausedTopic; c != nil {
		note += "; " + c.PausedWords()
	}
	if c := f.QuotaTopic; c != nil {
		note += "; " + c.QuotaWords()
	}
	if c := f.DelaysRefused; c != nil {
		note += "; " + c.DelaysRefusedWords()
	}
	if c := f.PausedChannel; c != nil {
		note += "; " + c.PausedWords()
	}
	if c := f.SkippingChannel; c != nil {
		note += "; " + c.SkippingWords()
	}
	if c := f.DroppingChannel; c != nil {
		note += "; " + c.DroppingWords()
	}
	if c := f.AsideLetters; c != nil {
		note += "; " + c.AsideWords()
	}
	if c := f.FullChannel; c != nil {
		note += "; " + c.FullWords()
	}
	if c := f.StarvedChannel; c != nil {
		note += "; " + c.StarvedWords()
	}
	return note
}

// AsideWords says that dead letters of the channel are aside, what that means for the data, and what to do.
func (c *Channel) AsideWords() string {
	they, are, them := "they", "They are", "them"
	if c.Count == 1 {
		they, are, them = "it", "It is", "it"
	}
	return fmt.Sprintf("channel %s of topic %s has %s aside: %s could not be moved to the dead-letter topic (%s). %s "+
		"kept and tried again: remove the cause, and do not delete the channel, which would delete %s, too%s",
		c.Name, c.Topic, plural(c.Count, "dead letter"), they, c.Why, are, them, c.more())
}

// FullWords says that the channel is full, what that means for the data, and what to do.
func (c *Channel) FullWords() string {
	return fmt.Sprintf("channel %s of topic %s is full in %s: too many messages wait between finished ones, so it "+
		"delivers no new messages of these. Nothing is lost, and it goes on when the oldest are finished or become dead "+
		"letters: see penstock channel pending and deferred%s",
		c.Name, c.Topic, plural(c.Count, "partition"), c.more())
}

// DroppingWords says that the channel lost messages lately, what that means for the data, and what to do.
func (c *Channel) DroppingWords() string {
	return fmt.Sprintf("channel %s of topic %s is dropping messages: retention or a quota removed %s before they were "+
		"finished. What was removed is gone, and the depth does not count it: make the consumers faster, or let the topic "+
		"keep more with penstock topic set%s", c.Name, c.Topic, plural(c.Count, "message"), c.more())
}

// PausedWords says that the channel, or the topic, is paused, what that means for the data, and what to do.
func (c *Channel) PausedWords() string {
	if c.Name == "" {
		return fmt.Sprintf("topic %s is paused: what is published waits for its channels until penstock topic unpause%s",
			c.Topic, c.more())
	}
	return fmt.Sprintf("channel %s of topic %s is paused: its messages wait until penstock channel unpause%s",
		c.Name, c.Topic, c.more())
}

// QuotaWords says that the topic is over its quota, what that means for the data, and what to do.
func (c *Channel) QuotaWords() string {
	return fmt.Sprintf("topic %s is over its quota in %s: what is published there is refused until its channels have "+
		"finished more; nothing that was answered OK is lost: make the consumers faster, delete a channel that nobody "+
		"consumes, or raise the quota with penstock topic set%s", c.Topic, plural(c.Count, "partition"), c.more())
}

// StarvedWords says that the channel's consumers take nothing, what that means for the data, and what to do.
func (c *Channel) StarvedWords() string {
	return fmt.Sprintf("channel %s of topic %s is starved: messages wait and it has consumers, but none was delivered "+
		"for 10s: no consumer asks for messages (RDY 0), because it backs off after failures or stands still; nothing is "+
		"lost: see penstock channel consumers, and the consumers' logs%s", c.Name, c.Topic, c.more())
}

// DelaysRefusedWords says that the topic refuses delayed messages, what that means for the data, and what to do.
func (c *Channel) DelaysRefusedWords() string {
	return fmt.Sprintf("topic %s refuses delayed messages in %s: as many wait as max-ranges, max-state-bytes "+
		"or token-share allows. Nothing is lost, messages without a delay are stored and delivered, and it ends as delayed "+
		"messages are finished%s", c.Topic, plural(c.Count, "partition"), c.more())
}

// ReadOnlyWords says that the topic is read-only, what that means for the data, and what to do.
func (c *Channel) ReadOnlyWords() string {
	return fmt.Sprintf("topic %s is read only in %s: a part of its log is missing, damaged or of a newer version, so "+
		"what is published and confirmed there is refused; what reads back is kept, and delivered as far as it can be: put "+
		"the missing file back, start the newer version or restore a backup, and restart the node; penstock topic delete "+
		"gives up what is left%s", c.Topic, plural(c.Count, "partition"), c.more())
}

// SkippingWords says that the channel skips, what that means for the data, and what to do.
func (c *Channel) SkippingWords() string {
	return fmt.Sprintf("channel %s of topic %s is skipping: it discards all that is published instead of delivering it, "+
		"%s, until penstock channel unskip%s", c.Name, c.Topic, c.Skipped(), c.more())
}

// Skipped says how many messages a channel that skips has discarded, and since when. A leader that found the channel
// skipping knows neither what an earlier leader discarded nor when it began.
func (c *Channel) Skipped() string {
	if c.Before {
		return fmt.Sprintf("at least %s since %s or earlier", plural(c.Count, "message"), c.Why)
	}
	return fmt.Sprintf("%s since %s", plural(c.Count, "message"), c.Why)
}

// Since writes when a state began, for Channel.Why and for JSON; "" of the zero time.
func Since(at time.Time) string {
	if at.IsZero() {
		return ""
	}
	return at.UTC().Format(time.RFC3339)
}

// Earlier returns the earlier of two texts of Since; one that is "" does not count.
func Earlier(a, b string) string {
	if a == "" || b != "" && b < a {
		return b
	}
	return a
}

func (c *Channel) more() string {
	if c.More == 0 {
		return ""
	}
	kind := "more channel"
	if c.Name == "" {
		kind = "more topic"
	}
	return "; the same holds for " + plural(c.More, kind)
}
