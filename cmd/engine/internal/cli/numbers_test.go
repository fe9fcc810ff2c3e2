package cli

import (
	"testing"

	"penstock/internal/server/stats"
)

// A topic that is read-only says so in the list of topics, in that of channels, and in top, with its other states; and
// what the nodes say is added up.
func TestStatesOnTheList(t *testing.T) {
	one := TopicNumbers{Name: "orders", Paused: true, Channels: []ChannelNumbers{
		{Name: "c", Trouble: stats.Trouble{Skipping: true}},
	}}
	one.Add(&TopicNumbers{Name: "orders", ReadOnly: 1, DelaysRefused: 1})
	if got := one.OwnState(); got != "paused, read only, delays refused" {
		t.Errorf("the topic's state is %q", got)
	}
	if got := one.StateOf(&one.Channels[0]); got != "paused, read only, skipping, delays refused" {
		t.Errorf("the channel's state is %q", got)
	}
}

// What the nodes say of a channel is added up.
func TestSumOfChannels(t *testing.T) {
	one := TopicNumbers{Name: "orders", Channels: []ChannelNumbers{
		{Name: "c", Trouble: stats.Trouble{OutboxCount: 1, FullPartitions: 1, DroppedCount: 1, SkippedCount: 2}},
	}}
	one.Add(&TopicNumbers{Name: "orders", Channels: []ChannelNumbers{
		{
			Name: "c", Trouble: stats.Trouble{
				OutboxCount: 5, AsideCount: 4, AsideWhy: "too big", FullPartitions: 2, DroppedCount: 7, Dropping: true,
				SkippedCount: 8, Skipping: true, SkippedBefore: true,
			},
		},
	}})
	want := ChannelNumbers{
		Name: "c", Trouble: stats.Trouble{
			OutboxCount: 6, AsideCount: 4, AsideWhy: "too big", FullPartitions: 3, DroppedCount: 8, Dropping: true,
			SkippedCount: 10, Skipping: true, SkippedBefore: true,
		},
	}
	if len(one.Channels) != 1 || one.Channels[0] != want {
		t.Errorf("%+v, want %+v", one.Channels, want)
	}
}
