// Package migrate reads what an nsqd of NSQ leaves on the disk and publishes it into a [Target].
//
// The way of a message: nsqd.dat names topics and channels (metadata.go); each of them may have a queue of files, whose
// records are nsqd's messages (queue.go); [Open] finds them all and holds nsqd's own lock (source.go); a plan says in
// which order one topic's messages must be published so that each channel ends with its own backlog (plan.go); [Import]
// carries the plan out and records how far it came (run.go, state.go).
//
// Nothing in nsqd's directory is written, renamed or deleted. What is not carried over, because the target has no place
// for it: message ids, publish times, counts of attempts, and the remaining delay of deferred messages, which nsqd
// itself drops when it stops.
package migrate
