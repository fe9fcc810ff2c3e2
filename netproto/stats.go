package netproto

import "sync/atomic"

// Stats are counts since the connection began, and current values. Frames of the connection itself (Ping, Pong,
// Goodbye) count as sent, but not as received.
type Stats struct {
	SentFrames uint64
	SentBytes  uint64
	Writes     uint64 // writes and writevs; SentFrames / Writes shows the coalescing

	ReceivedFrames uint64
	ReceivedBytes  uint64 // bytes of those frames
	Reads          uint64
	ReadBytes      uint64 // all bytes that were read
	Bursts         uint64 // calls of Handler.Frames

	QueueFull uint64 // how often Send found no room
	HeldFull  uint64 // how often the reader waited for the handler to release buffers

	QueuedFrames int   // frames taken and not written yet
	QueuedBytes  int   // bytes of those frames
	HeldBytes    int64 // bytes of receive buffers in use, including the reader's own
}

type counters struct {
	sentFrames, sentBytes, writes         atomic.Uint64
	receivedFrames, receivedBytes, bursts atomic.Uint64
	reads, readBytes, queueFull, heldFull atomic.Uint64
}

func (c *counters) countSent(d *drain) {
	c.sentFrames.Add(uint64(d.frames))
	c.sentBytes.Add(uint64(d.bytes))
	c.writes.Add(1)
}

func (c *counters) countReceived(frames, bytes int) {
	c.receivedFrames.Add(uint64(frames))
	c.receivedBytes.Add(uint64(bytes))
	c.bursts.Add(1)
}

// Stats returns the counts. It may be called at any time, also after the connection has ended.
func (c *Conn) Stats() Stats {
	c.mu.Lock()
	frames, bytes := c.queuedFrames, c.queuedBytes
	c.mu.Unlock()
	return Stats{
		SentFrames: c.sentFrames.Load(), SentBytes: c.sentBytes.Load(), Writes: c.writes.Load(),
		ReceivedFrames: c.receivedFrames.Load(), ReceivedBytes: c.receivedBytes.Load(), Bursts: c.bursts.Load(),
		Reads: c.reads.Load(), ReadBytes: c.readBytes.Load(), QueueFull: c.queueFull.Load(), HeldFull: c.heldFull.Load(),
		QueuedFrames: frames, QueuedBytes: bytes, HeldBytes: c.held.Load(),
	}
}
