// Package core makes the engine's decisions and does nothing else: no file, no socket, no clock, no goroutine, no lock,
// and no iteration over a map. One goroutine at a time owns a value of any type here, except a Matcher, which never
// changes. If several goroutines use a value, its owner's lock guards it (Channel.mu of package channel for a Channel).
// The time is an argument, and results are values. Every history can therefore be replayed, from a text file (testdata)
// or from a seed.
//
// The types of the consumer side, in the order in which a message meets them:
//
//   - Channel is the state machine of one channel (a consumer group) of a topic, on the leader, over all partitions of
//     the topic. It decides which message goes to which client, and it knows the messages that are in flight, that wait
//     for their time, and that are confirmed.
//   - Control is one entry of a control batch: a decision of the Channel that must survive a crash (these ids are
//     confirmed, this message waits until then).
//   - Cursors is the fold of one partition's control batches: the state of all channels that followers, recovery and
//     checkpoints have. A Channel starts from it.
//   - ChannelSettings is what an operator configures for a channel: order, attempts, rate, filter. A lane
//     (channel_order.go) is a queue of messages that are delivered one after the other. The outbox (channel_dead.go)
//     holds dead letters.
//   - IDSet, Wheel and ID are the parts that the types above are built of.
//
// A Channel never reads a Control back. It hands Controls out (TakeControls), the engine appends them to the log, and
// every replica folds them (Cursors.Apply). A crash leaves only the fold. Messages that were confirmed but whose
// confirmation is not in the log are delivered again. A message that the fold calls confirmed is never delivered again,
// unless the channel is reset.
package machine
