// Package delivery decides on the leader of a channel's partitions which message goes to which client, and when. It
// does nothing else: no file, no socket, no clock, no goroutine, no lock, and no iteration over a map whose order could
// reach a result. The time is an argument, and results are values. Every history can therefore be replayed, from a text
// file (testdata) or from a seed. Package channel owns a Channel and guards it with its lock.
//
// Channel is the state machine of one channel (a consumer group) of a topic, over all partitions of the topic. It knows
// the messages that are in flight, that wait for their time, and that are confirmed. A Channel starts from the folds of
// the partitions' logs (fold.Cursor) and never reads them again. It hands out control entries (TakeControls), which the
// engine appends to the log, and which every replica folds. A crash leaves only the fold. Messages that were confirmed
// but whose confirmation is not in the log are delivered again. A message that the fold calls confirmed is never
// delivered again, unless the channel is reset.
//
// Aside, Claim and DeadLetterCycle decide about dead letters outside of the machine: which of them to try to move
// again, who may move them back, and whether they would come back by themselves.
//
// It imports batch, segment and fold.
package delivery
