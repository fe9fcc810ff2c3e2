package topic

import (
	"context"
	"errors"

	"penstock/internal/node/errs"
)

// ChannelElsewhere returns a Channel for operations that the leaders of all partitions execute (settings, lists, seeks,
// pauses). It serves a cluster node that leads no partition of the topic, and so may not have the channel. It creates
// nothing: if no leader has a channel of that name, the operations return ErrNoChannel. The Channel belongs to the
// caller and needs no close. It delivers nothing: to consume, use the result of Topic.Channel.
func (t *Topic) ChannelElsewhere(name string) *Channel { return newChannel(t, name) }

// LacksChannel reports whether it is certain that the topic has no channel of that name. A node of a cluster that has
// none asks the leaders, because it may lead nothing of the topic, and waits for their answers until ctx ends.
func (t *Topic) LacksChannel(ctx context.Context, name string) bool {
	if _, known := t.LookupChannel(name); known {
		return false
	}
	if t.env.Cluster == nil {
		return true
	}
	_, err := t.ChannelElsewhere(name).ReadSettings(ctx)
	return errors.Is(err, errs.ErrNoChannel)
}
