package batch

// MsgID numbers the messages of one partition, densely, from 0. It fits in 48 bits.
type MsgID uint64

// Position numbers the batches of one partition, densely, from 0.
type Position uint64

// Epoch numbers the leaderships of a partition; it only grows.
type Epoch uint64

// MaxMsgID is the largest id a partition can give out: an ID keeps 16 bits for the partition.
const MaxMsgID MsgID = 1<<48 - 1
