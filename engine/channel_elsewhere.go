package engine

// ChannelElsewhere returns a Channel for operations that the leaders of all partitions execute (settings, lists, seeks,
// pauses). It serves a cluster node that leads no partition of the topic, and so may not have the channel. It creates
// nothing: if no leader has a channel of that name, the operations return ErrNoChannel. The Channel belongs to the
// caller and needs no close. It delivers nothing: to consume, use the result of Topic.Channel.
func (t *Topic) ChannelElsewhere(name string) *Channel { return newChannel(t, name) }
