package node

// ConfirmedInLog returns the number of the first message of a partition that is still needed: every durable channel has
// confirmed all earlier messages, or a control batch carries them.
func ConfirmedInLog(t *Topic, n int) uint64 { return uint64(t.PartitionList()[n].State().Needed) }
