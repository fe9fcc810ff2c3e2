package engine

// ChannelElsewhere returns a channel for what all leaders do together (settings, lists, seeks, pauses) on a node of a cluster that leads none of its
// partitions and therefore may not have it. Whether it exists is what the leaders say: they ignore operations on one that does not. It
// belongs to the caller, costs nothing to forget, and delivers nothing: Attach to what Channel returns.
func (t *Topic) ChannelElsewhere(name string) *Channel { return newChannel(t, name) }
