// Package native serves native clients: programs that use package client. netproto carries the frames,
// internal/server/native/wire has their payloads. Package server opens and closes the Server together with its own
// listeners, and gives it the same certificates, tokens and audit.
//
// # A connection
//
//	unproven ── Auth ──► known ── Shutdown ──► leaving
//
// A connection begins as that of a stranger, unless the node asks nobody who they are. What a client may send in which
// phase, and what becomes of anything else, is a table ([decide]). A stranger costs little, whatever it sends: the
// connection reads at most Options.MaxStrangerBytes from it, and ends after Options.StrangerTime; of more than
// Options.MaxStrangers the oldest has to go.
//
// The connection's reader calls session.Frames, which decodes requests, looks them up in the table and puts them into
// the session's inbox. It never waits: a request that the inbox has no room for is answered with StatusFull. One
// goroutine per session, session.work, takes them out in their order and may wait: for an auth server, or for a new
// topic.
//
//	netproto reader ─► Frames ─► inbox ─► work ─► engine
//	netproto writer ◄──────── answers ◄───┘
//
// One kind of request needs no switch: a Produce of a client that waits for nothing else (session.lone) is served by
// the reader itself.
//
// # Metadata
//
// A client names the topics that it wants to hear of. It gets an answer, and another one whenever the answer would
// differ: the herald, one goroutine per Server, wakes the sessions after changes of the engine's topics and leaders, at
// most once per heraldPause. A client that does not read its answers loses its own connection and nothing else.
//
// A node that stops sends GoAway with the address of another node: a live one that leads the most partitions of the
// client's topics (place.refuge). It is a hint: the client asks there first.
//
// # Batches
//
// A Produce stays in the connection's receive buffer until the engine has answered it. The engine checks it, stores it
// and calls produce.stored on a goroutine of its own, which queues the answer; one system call sends the answers that
// become due together (session.postSoon, Options.Answers), and a lone one leaves at once. The order of a producer's
// batches is that of their frames: one goroutine at a time passes a connection's batches to the engine.
//
// # Readers
//
// A Read opens a reader, which has a goroutine of its own (reading.run) and no state but its place: an node.Reader.
// It sends while the client's credit lasts (credit), and while there is room for output. What was read lies in memory
// that the commit log uses, too; so only Options.MaxPinnedBytes of it wait for connections, and the rest is copied. A
// reader that finds no room lets go of what it has read, and reads it again when there is room.
//
// # Consumers
//
// A Subscribe makes a subscription (subscribe.go, consume.go), which consumes a channel from the partitions that this
// node leads. The connection's reader passes its frames to its goroutine, subscription.run, which calls the engine and
// pumps:
//
//	Frames ─► orders, wishes ─► run ─► engine.Consumer
//	netproto ◄─ Flush ◄─ packer ◄─ Deliver, on the goroutine that pumps the channel
//
// The packer (pack.go) copies messages into frames under the channel's lock, without an allocation per message. It
// stops the engine when the client's credit or the room for output is used up. A client that does not read holds no
// more than its messages in flight, until they time out. Frames leave only while the client's token allows the
// subscription. Orders take room of the limits of requests until they are carried out; an order that finds none is
// refused by name.
//
// After a crash nothing of this is left: clients connect again, and ask again.
package native
