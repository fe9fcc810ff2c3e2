// Package nsq serves an [penstock/internal/node.Engine] to NSQ's clients over TCP: the V2 protocol with TLS, snappy,
// deflate and AUTH, and what clients of youzan's NSQ say beyond it. Unmodified NSQ clients work; every error string is
// nsqd's. Package server opens the listener, and gives the [Server] what it shares with the other ports (Options).
//
// The differences from nsqd are these. "OK" means that the message is on stable storage. PUBs that a client pipelines
// are read ahead, stored together and answered in order. Output is flushed as soon as no more of it is ready, so
// output_buffer_timeout never delays a message. When a connection ends, the messages in flight to its client go back to
// the channel.
//
// A command passes through the package like this: input.go (bytes from the socket) → command/parse.go (the command, or
// nsqd's exact error) → conn.go and commands.go (its execution) → engine → answers.go (answers in the order of the
// commands) → output.go (bytes to the socket). Messages for a consumer come through sink.go. sweep.go sends heartbeats
// and closes dead connections.
//
// A connection that negotiates TLS or compression gets a wire (codec.go, upgrade.go) between the socket and the
// connection's input and output. TLS and the compressors read from the wire and write to it, in memory. So the
// connection needs no additional goroutines, and blocks only where a plain connection would. A plain connection has no
// wire and pays one comparison. Whenever the output is flushed, so is the compressor.
//
// Package auth determines who a client is and what it may do; auth_conn.go asks it before commands. Package publish
// has what commands share with requests over HTTP.
//
// # Goroutines and locks
//
// A connection has one goroutine, its reader, which does everything except three things. The answers of completed Puts
// are written by the commit log's goroutine or the node's netio.Flusher, so that no answer has to wake a
// goroutine of its connection; a lone answer is written by the goroutine that completes its Put (conn.answerNow). A
// writer goroutine exists only while the peer's receive window is full, or while there is much to encode. A crowd of
// publishers is read by one goroutine, while their readers sleep (poll.go). The reader of a busy consumer reads every
// 50 µs what has arrived (moderate.go).
//
// Locks are taken in the order netio.Flusher.logMu, answers.mu, output.mu, wire.mu, publisherPoll.mu, and in the order
// Server.mu, flight.mu; the other locks of the package are leaves. No call of the engine happens under any of them, and
// no system call that waits: only the write of a held frame (held.go), those of a TLS handshake (codec.go), sends under
// logMu, and epoll_ctl under publisherPoll.mu.
package nsq
