package engine

// ConfirmedInLog is how many messages of a partition, from the first, every channel has confirmed as the log has it.
func ConfirmedInLog(t *Topic, n int) uint64 { return uint64(t.partitions()[n].State().Needed) }
