// Package nsq serves an [penstock/engine.Engine] to NSQ's clients: the V2 TCP protocol with TLS, snappy, deflate and
// AUTH, and nsqd's HTTP API, also over TLS. Unmodified NSQ clients work; every error string is nsqd's.
//
// What differs from nsqd: "OK" means that the message is on stable storage; PUBs that a client pipelines are read
// ahead, stored together and answered in order; output is flushed as soon as nothing more is ready, so
// output_buffer_timeout never delays a message; what a client had in flight goes back to the channel when its
// connection ends.
//
// A command's way through the package: input.go (bytes from the socket) → parse.go (the command, or the exact error) →
// conn.go and commands.go (what it does) → engine → answers.go (the answer's turn) → output.go (bytes to the socket).
// Messages for a consumer come through sink.go. sweep.go sends heartbeats and closes dead connections.
//
// A connection that negotiates TLS or compression gets a wire (codec.go, upgrade.go) between the socket and its input
// and output. TLS and the compressors read from it and write to it, in memory, so the connection keeps its goroutines
// and never blocks where a plain one would not. A plain connection has none and pays one comparison. Compressors are
// flushed when the output is.
//
// Package auth finds out who a client is and what it may do. auth_conn.go asks it for commands, http_auth.go for
// requests.
//
// Package lookup is nsqlookupd's part. Every topic that a client names is found or created by it, because a new topic
// begins with the channels that other lookup services know.
//
// # Goroutines and locks
//
// A connection has one goroutine, its reader, which does everything but two things: a server-wide flusher writes the
// answers of completed Puts, so that an answer wakes no goroutine of its own; and a writer goroutine lives while the
// peer's receive window is full, or while there is much to encode. Locks are taken in the order answers.mu, output.mu,
// wire.mu, and Server.mu, flight.mu; the others of the package are leaves. No call of the engine happens under any of
// them, and no system call but two: the write of a held frame, which does not block (held.go), and those of a handshake
// (codec.go).
package nsq
