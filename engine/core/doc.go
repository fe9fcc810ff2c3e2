// Package core holds the engine's decisions and nothing else: no file, no socket,
// no clock, no goroutine, no lock, no map iteration. Every type here is owned by
// one goroutine at a time; time comes in as an argument, results go out as values.
// So every history can be replayed from a text file (testdata) or from a seed.
//
// The nouns of the consumer side, in the order a message meets them:
//
//   - Channel is the machine of one channel (consumer group) of a topic on the
//     leader, over all partitions of the topic: which message goes to which
//     client, what is in flight, what waits for its time, what is confirmed.
//   - Control is one entry of a control batch: what the Channel decided and what
//     must survive (these ids are confirmed, this one waits until then).
//   - Cursors is the fold of one partition's control batches: what followers,
//     recovery and checkpoints know about all channels. A Channel starts from it.
//   - ChannelSettings is what an operator asks of a channel: order, attempts, rate, filter. A lane (channel_order.go)
//     is a row of messages that leave one after the other; the outbox (channel_dead.go) holds dead letters.
//   - IDSet, Wheel and ID are what the three are made of.
//
// A Channel never reads a Control back: it hands them out (TakeControls), the
// engine appends them to the log, and whoever appended folds them (Cursors.Apply).
// After a crash the fold is what is left. What was confirmed but not yet in the
// log is delivered again; what the fold says is confirmed is never delivered again
// unless a reset asks for it.
package core
