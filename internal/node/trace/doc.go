// Package trace tells the life of one message from the log of its partition, for an operator: when and where it was
// stored, and what became of it in each channel. Package topic calls it on the node that leads the partition.
//
// A trace reads the log from the message on, in steps, without a lock, so that no client waits for it. It only reads: a
// crash leaves nothing behind. What an entry of the log means for the message is decided by fold.Tracer.
package trace
