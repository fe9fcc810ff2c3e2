package engine

// ChannelElsewhere returns a channel for operations that all leaders take part in (settings, lists, seeks, pauses), on
// a cluster node that leads none of the topic's partitions and so may not have the channel. The leaders ignore
// operations on a channel that does not exist. The result belongs to the caller, which may simply drop it. It delivers
// nothing: to consume, call Attach on the result of Channel.
func (t *Topic) ChannelElsewhere(name string) *Channel { return newChannel(t, name) }
