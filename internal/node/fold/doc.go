// Package fold computes, from the log of a partition, what the log says about channels and producers. The committer,
// followers, recovery and checkpoints use it: equal logs give equal folds, and equal bytes, on every replica. The tools
// read logs with it.
//
// It decides and does nothing else: no file, no socket, no clock, no goroutine, no lock, and no iteration over a map.
// One goroutine at a time owns a value of any type here, except a Matcher, which never changes.
//
//   - Control is one entry of a control batch: a decision that must survive a crash (these ids are confirmed, this
//     message waits until then). FORMAT.md has its bytes.
//   - Cursors is the fold of one partition's control batches: the state of all channels (Cursor), of the messages that
//     wait for their time, of carried copies, and of producers.
//   - ChannelSettings is what an operator configures for a channel: order, attempts, rate, filter.
//   - Tracer tells what the entries of a log did to one message.
//   - IDSet is a set of message ids; package delivery uses it, too.
//
// A crash loses a fold in memory. Recovery computes it again from the last checkpoint and the entries behind it.
//
// It imports batch and segment.
package fold
