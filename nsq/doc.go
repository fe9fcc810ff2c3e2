// Package nsq serves an [penstock/engine.Engine] to NSQ's clients: the V2 TCP protocol
// (all but TLS, compression and AUTH) and nsqd's HTTP API. Unmodified NSQ clients work;
// every error string is nsqd's.
//
// What differs from nsqd: "OK" means that the message is on stable storage; PUBs that a client
// pipelines are read ahead, stored together and answered in order; output is flushed as
// soon as nothing more is ready, so output_buffer_timeout never delays a message; what a
// client had in flight goes back to the channel when its connection ends.
//
// A command's way through the package: input.go (bytes from the socket) → parse.go (the
// command, or the exact error) → conn.go and commands.go (what it does) → engine → answers.go
// (the answer's turn) → output.go (bytes to the socket). Messages for a consumer come
// through sink.go. sweep.go sends heartbeats and closes dead connections.
//
// # Goroutines and locks
//
// A connection has one goroutine, its reader, which does everything but two things: a
// server-wide flusher writes the answers of completed Puts, so that an answer
// wakes no goroutine of its own; and a writer goroutine lives while the peer's receive window is full.
// Locks are taken in the order answers.mu, output.mu; no system call and no call of the
// engine happens under either.
package nsq
