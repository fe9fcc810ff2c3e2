package definitions

import (
	"strings"
	"testing"

	"penstock/internal/meta"
	"penstock/internal/node/fold"
)

// What the engine made for a channel that stays is not pruned, although no document names it: its dead-letter topics,
// also those of the settings that it has no more, and their channels from which letters are sent back.
func TestPruneKeepsDeadLetters(t *testing.T) {
	channel := func(name string, attempts uint16, dead string) channelDefinition {
		return channelDefinition{name, &fold.ChannelSettings{MaxAttempts: attempts, DeadLetter: dead}}
	}
	topic := func(name string, channels ...channelDefinition) topicDefinition {
		return topicDefinition{Name: name, Settings: new(meta.TopicSettings), Channels: channels}
	}
	is := &definitions{nodes: 1, Topics: []topicDefinition{
		topic("orders", channel("billing", 5, ""), channel("audit", 3, "letters"), channel("goes", 3, "unused")),
		topic("orders.DLQ", channel("redrive", 0, ""), channel("mine", 2, "")),
		topic("orders.DLQ.DLQ", channel("redrive", 0, "")),
		topic("letters", channel("redrive", 0, ""), channel("watch", 0, "")),
		topic("unused", channel("redrive", 0, "")), topic("other", channel("redrive", 0, "")),
	}}
	want := &definitions{Topics: []topicDefinition{
		topic("orders", channel("billing", 0, ""), channelDefinition{Name: "audit"}), topic("letters"),
	}}
	changes, err := changesTo(is, want, true)
	must(t, err)
	var got []string
	for i := range changes {
		if strings.HasPrefix(changes[i].Action, "delete") {
			got = append(got, changes[i].String())
		}
	}
	if text := strings.Join(got, "\n"); text != strings.TrimSpace(`
- delete channel orders/goes with its backlog
- delete channel letters/watch with its backlog
- delete topic unused with all its messages
- delete topic other with all its messages`) {
		t.Errorf("it prunes\n%s", text)
	}
}

// A channel's limit is raised before its topic gets more partitions than the limit was: a cluster refuses it the other
// way round.
func TestDefinitionsRaiseLimitsBeforePartitions(t *testing.T) {
	topic := func(n int) *definitions {
		c := channelDefinition{Name: "c", Settings: &fold.ChannelSettings{MaxInFlight: uint32(n)}}
		return &definitions{nodes: 3, Topics: []topicDefinition{{
			Name: "t", Partitions: n, Settings: new(meta.TopicSettings), Channels: []channelDefinition{c},
		}}}
	}
	changes, err := changesTo(topic(3), topic(5), false)
	if err != nil || len(changes) != 2 || changes[0].Action != "set-channel" || changes[1].Action != "set-topic" {
		t.Errorf("%+v, %v", changes, err)
	}
	wrong := topic(5)
	wrong.Topics[0].Channels[0].Settings.MaxInFlight = 4
	if _, err := changesTo(topic(3), wrong, false); err == nil || !strings.Contains(err.Error(), "4 with 5 partitions") {
		t.Errorf("4 for 5 partitions: %v", err)
	}
	single := topic(3)
	single.nodes = 1
	if _, err := changesTo(single, wrong, false); err != nil {
		t.Errorf("4 for 5 partitions on a single node: %v", err)
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
