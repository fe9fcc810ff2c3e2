// Package migrate reads the files that an nsqd of NSQ leaves on disk, and publishes their messages into a [Target].
//
// An import works like this. nsqd.dat names the topics and channels (metadata.go). Each of them may have a queue of
// files, whose records are nsqd's messages (queue.go). [Open] finds them all and takes nsqd's own lock (source.go). A
// plan says in which order the messages of one topic must be published so that each channel ends up with its own
// backlog (plan.go). [Import] carries the plan out and records its progress (run.go, importer.go, state.go).
//
// Nothing in nsqd's directory is written, renamed or deleted. Some things are not imported, because the target has no
// place for them: message ids, publish times, attempt counts, and the remaining delays of deferred messages, which nsqd
// itself drops when it stops.
package migrate
