package health

import "fmt"

// Channel is a channel that does not go on by itself, for a sentence.
type Channel struct {
	Topic, Name string
	Count       int    // of dead letters, or of partitions
	Why         string // of dead letters: why the last one could not be moved
	More        int    // how many other channels there are of the kind
}

// channelNotes says which channels have dead letters aside, and which are full. Each note says what happened, what it
// means for the data, and what to do.
func channelNotes(f *Facts) (note string) {
	if c := f.AsideLetters; c != nil {
		they, were, them := "they", "They are", "them"
		if c.Count == 1 {
			they, were, them = "it", "It is", "it"
		}
		note = fmt.Sprintf("; channel %s of topic %s has %s aside: %s could not be moved to the dead-letter topic (%s). %s "+
			"kept and tried again: remove the cause, and do not delete the channel, which would delete %s, too%s",
			c.Name, c.Topic, plural(c.Count, "dead letter"), they, c.Why, were, them, c.more())
	}
	if c := f.FullChannel; c != nil {
		note += fmt.Sprintf("; channel %s of topic %s is full in %s: too many messages wait between finished ones, so it "+
			"delivers no new ones of these. Nothing is lost, and it goes on when the oldest are finished or become dead "+
			"letters: see engine channel pending and deferred%s",
			c.Name, c.Topic, plural(c.Count, "partition"), c.more())
	}
	return note
}

func (c *Channel) more() string {
	if c.More == 0 {
		return ""
	}
	return "; the same holds for " + plural(c.More, "more channel")
}
