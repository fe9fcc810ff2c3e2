// Package netproto carries frames between nodes, and between native clients and nodes. It knows nothing of what is in
// them.
//
// Four nouns carry it:
//
//   - A [Frame] is a 32-byte [Header] with its own checksum, and a payload. FORMAT.md has the bytes.
//   - A [Hello] is what each side says of itself before anything else: who it is, which versions and features it has,
//     what it accepts. Nothing but a Hello of at most MaxHelloBytes is read from a peer that has not said it.
//   - A [Conn] is a connection after the handshake: a bounded queue with one goroutine that writes, and one goroutine
//     that reads and calls the [Handler].
//   - A [RecvBuf] holds what one or more reads brought; payloads are slices of it.
//
// # The way of a frame
//
//  1. Send checksums the payload outside the lock, then takes room in the queue: frames and bytes are both limited.
//  2. Header, head and bodies shorter than MinBorrowBytes are copied into chunks that the frames in the queue share;
//     longer bodies are kept by reference, and their owner is released after the write.
//  3. If the connection is idle (the writer sleeps, nothing is queued, nothing was written for 100 µs) and the frame is
//     small, the sender writes it itself, without blocking; what the socket does not take is the writer's. See spot.go.
//  4. Otherwise the writer takes everything that is queued and hands it to the kernel by one writev. What arrives
//     meanwhile is the next one. Nothing waits on a timer: an idle connection writes at once, a busy one in large
//     pieces. (A write per frame costs about 5 µs, 27 times what coalescing costs.)
//  5. The reader reads as much as there is, checks each header before it makes room for the payload, checks the
//     payload, and calls Handler.Frames once per read with all whole frames in it, so that an answer can be one
//     cumulative frame.
//
// # Invariants
//
//   - Frames arrive in the order in which Send took them. A frame is whole and intact, or the connection ends.
//   - An owner whose frame Send took is released exactly once, on any way out; of a frame that Send refused, never.
//   - queued frames <= MaxQueueFrameCount and queued bytes <= MaxQueueBytes, except that one frame always fits in an
//     empty queue. A frame counts until it is written.
//   - Receive buffers that a handler holds are at most MaxHeldBytes, and then the socket is not read: the peer's queue
//     fills.
//   - A Conn has two goroutines. When Done is closed both have ended, every owner is released and Handler.Closed has
//     returned.
//
// # How a connection ends
//
//	Close, a Goodbye, a frame that is not intact, an error of the handler:   open → closing → dead
//	Abort, a failed read or write, a silent or stuck peer:                   open or closing → dead
//
// closing takes no new frames, writes the queue and a Goodbye, and ends writing; the reader goes on until the peer does
// the same, or CloseTimeout is over. What the peer did with frames that it has not answered is unknown either way: it
// is the user's protocol (request ids, epochs, positions) that makes a repetition harmless.
//
// A rejected design: letting the goroutine that sends write to the socket whenever the queue is empty, and block there.
// A partition's single goroutine would stand still in write(2) for as long as the peer likes, and frames that come
// close together would cost a write each.
//
// The package limits memory per connection: about 170 KiB when idle, MaxQueueBytes and MaxHeldBytes more at most. How
// many connections there are is for its caller to limit (see [Serve]).
package netproto
