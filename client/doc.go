// Package client publishes to a Penstock cluster and consumes from it, over the cluster's native protocol. It runs on
// every system that Go supports, and needs neither the engine nor an NSQ client.
//
//   - A Client knows the cluster. Dial makes one; a program needs one.
//   - A Producer publishes messages to one topic, in batches to the leaders of their partitions. It repeats what got no
//     answer; each message is stored once, in order, through failures of nodes and connections.
//   - A Consumer takes messages from a channel, which shares them out among its consumers and delivers a message again
//     until one has finished it. It follows leaders that move, and connects again by itself.
//   - A Reader reads one partition from a place in it, without a channel.
//
// # What an answer means
//
// Without an error, a message is on stable storage on every replica that must have it. With an error it was not stored
// and never will be, unless the error matches ErrUnknown: then nobody can say. ErrUnknown is rare, because the client
// repeats a batch with the same sequence numbers until ProducerOptions.DeliveryTimeout is over. It goes on afterwards,
// and stores later messages of the partition behind that batch, never before it.
//
// A loop over Consumer.Next handles each message, then calls Delivery.Finish, which does not wait: Consumer.Sync does.
// A message is delivered again if it is requeued, if its time is over (ConsumerOptions.Timeout), or if its leader is
// lost before the finish is stored.
//
// # Names
//
// A producer with a name survives its program: the next program that opens it goes on with its sequence numbers
// (Producer.LastSequence), and an older one gets ErrFenced. A name that was not used for 7 days is forgotten. A
// partition knows 4096 names, and 1024 of one token; more get ErrTooManyProducers.
//
// # Memory and goroutines
//
// A producer holds MaxBufferedBytes and as much again while it compresses; a consumer MaxInFlightBytes; a reader
// ReadCreditBytes, or one batch; an idle connection 130 KiB. There are three goroutines per connected node, one per
// partition that a producer uses, one per consumer, one per consumer and node, and one per client.
package client
