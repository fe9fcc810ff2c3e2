package machine

import "penstock/batch"

// ID is the id of a message among all partitions of a topic. Package batch has it, because clients use it too.
type ID = batch.ID

// MaxPartition is the largest partition number an ID can carry.
const MaxPartition = batch.MaxPartition
