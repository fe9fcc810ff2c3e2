// Package netproto carries frames between nodes, and between native clients and nodes. It does not know what the frames
// contain.
//
// Four nouns describe it:
//
//   - A [Frame] is a 32-byte [Header] with its own checksum, and a payload. FORMAT.md has the bytes.
//   - A [Hello] is what each side says about itself before anything else: who it is, which versions and features it
//     has, what it accepts. Until a peer has sent its Hello, nothing is read from it but a Hello of at most
//     MaxHelloBytes.
//   - A [Conn] is a connection after the handshake: a bounded queue with one goroutine that writes, and one goroutine
//     that reads and calls the [Handler].
//   - A [RecvBuf] holds the bytes of one or more reads; payloads are slices of it.
//
// # The way of a frame
//
//  1. Send computes the payload's checksum without the lock, then takes room in the queue. The queue limits both frames
//     and bytes.
//  2. The header, the head and bodies shorter than MinBorrowBytes are copied into chunks that the frames in the queue
//     share. Longer bodies are kept by reference, and their owner is released after the write.
//  3. If the connection is idle (the writer sleeps, nothing is queued, nothing was written for 100 µs) and the frame is
//     small, the sender writes it itself, without blocking; the writer writes what the socket did not take. See
//     spot.go.
//  4. Otherwise the writer takes everything that is queued and hands it to the kernel with one writev. Frames that
//     arrive meanwhile go into the next writev. Nothing waits for a timer: an idle connection writes at once, a busy
//     one in large pieces. (A write per frame costs about 5 µs, 27 times the cost of coalescing.) A server that answers
//     many clients at a time queues its frames (Queue), and has all connections written by one system call (Lend).
//  5. The reader reads as much as is available, checks each header before it makes room for the payload, checks the
//     payload, and calls Handler.Frames once per read with all whole frames, so that an answer can be one cumulative
//     frame.
//
// # Invariants
//
//   - Frames arrive in the order in which Send took them. Every frame arrives whole and intact, or the connection ends.
//   - If Send took a frame, the frame's owner is released exactly once, however the connection ends. If Send refused
//     the frame, the owner is never released.
//   - queued frames <= MaxQueueFrameCount and queued bytes <= MaxQueueBytes, except that one frame always fits in an
//     empty queue. A frame counts until it is written.
//   - Receive buffers in use are at most MaxHeldBytes. At that limit the socket is not read, and the peer's queue
//     fills.
//   - A Conn has two goroutines. When Done is closed the two have ended, every owner is released and Handler.Closed has
//     returned.
//
// # How a connection ends
//
//	Close, a Goodbye, a frame that is not intact, an error of the handler:   open → closing → dead
//	Abort, a failed read or write, a silent or stuck peer:                   open or closing → dead
//
// A closing connection takes no new frames, writes the queue and a Goodbye, and ends writing. The reader goes on until
// the peer has done the same, or CloseTimeout is over. Either way it is unknown what the peer did with frames that it
// has not answered: the user's protocol (request ids, epochs, positions) must make repeating them harmless.
//
// A rejected design: the goroutine that sends writes to the socket whenever the queue is empty, and blocks there. A
// partition's single goroutine would then be stuck in write(2) for as long as the peer likes, and frames that come
// close together would cost a write each.
//
// The package limits memory per connection: about 130 KiB when idle, plus at most MaxQueueBytes and MaxHeldBytes. The
// caller limits how many connections there are (see [Serve]).
package netproto
