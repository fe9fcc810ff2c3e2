// Package machine has three small state machines that decide and do nothing else: no file, no socket, no clock, no
// goroutine, no lock, and no iteration over a map. The time is an argument, and results are values.
//
//   - Partition decides what may be appended to the log of a partition, and where. Package partition owns one for each
//     partition.
//   - DiskWatch judges how well the node's disk works. Package diskwatch tells it of writes.
//   - ClockPeers judges whether this node's clock is right. The cluster node tells it of other nodes' clocks.
//
// Two larger ones have packages of their own: fold computes from a partition's log what its channels have confirmed,
// and delivery decides on the leader which message goes to which client.
//
// It imports only segment. A crash loses the values; their owners make new ones.
package machine
