// Package client publishes to a Penstock cluster and consumes from it, over the cluster's native protocol. It runs on
// every system that Go supports, and needs neither the engine nor an NSQ client.
//
// Five nouns describe it:
//
//   - A [Client] knows the cluster: which partitions the topics have and which node leads each. [Dial] makes one; a
//     program needs one.
//   - A [Message] is a body, with a key and headers if you like. The cluster gives it an [ID], which never changes.
//   - A [Producer] publishes messages to one topic. It collects them in batches, sends each batch to the leader of its
//     partition, and repeats what got no answer. Each message is stored once, in order, through every failure of nodes
//     and connections.
//   - A [Consumer] takes messages from a channel, which shares them out among its consumers, and delivers a message
//     again until somebody has finished it.
//   - A [Reader] reads one partition from a place in it. The cluster keeps no state for it, so it disturbs no consumer.
//
// # What an answer means
//
// The done function of [Producer.Produce] gets the message's id and no error once the message is on stable storage on
// every replica that must have it. With an error the message was not stored, and never will be, unless the error
// matches [ErrUnknown]: then nobody can say.
//
// ErrUnknown is rare. The client repeats a batch, with the same sequence numbers, until it knows the outcome or
// [ProducerOptions.DeliveryTimeout] is over; a node that has stored the batch before answers with the ids of then.
// After an ErrUnknown the client goes on repeating the batch until its fate is known, and stores later messages of
// the partition behind it, never before it.
//
// # Consume
//
// A loop over [Consumer.Next] handles each message, then says so with [Delivery.Finish], or [Delivery.FinishThrough]
// for all so far. Each message is delivered at least once. It is delivered again if it is requeued, if its time is over
// ([ConsumerOptions.Timeout]) or if its leader is lost before the finish is stored; while none of that happens, it is
// delivered once. Finishing does not wait: [Consumer.Sync] does, and says whether everything so far is stored.
//
// A consumer is subscribed at every node that leads partitions of its topic, follows leaders that move, and connects
// again by itself. Messages that were in flight at a lost leader come again from the new one.
//
// # Names
//
// A producer without a name is forgotten when it is closed. One with a name survives its program: the next program that
// opens it goes on with the sequence numbers ([Producer.LastSequence]), and the old one, should it still live, gets
// [ErrFenced]. A cluster forgets a producer that was not used for 7 days. A partition knows 4096 names at most, and
// 1024 of one token: a further one gets [ErrTooManyProducers].
//
// # Memory and goroutines
//
// A producer holds at most MaxBufferedBytes of messages, and about as much again while it compresses; Produce waits
// when that is used up. A reader holds [ReadCreditBytes], or one batch. A consumer holds MaxInFlightBytes of messages
// which are not finished, and what the program keeps. A connection holds about 170 KiB when idle. There are three
// goroutines per connected node, one per partition that a producer uses, one per consumer, one per consumer and node,
// and one per client.
package client
