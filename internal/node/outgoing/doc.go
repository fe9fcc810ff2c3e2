// Package outgoing collects the stored batches of one frame to another replica. Its only caller is
// internal/node/partition: it gets Batches from the pool, collects into them from a partition's log, and passes them to
// the connection with the frame.
//
//	segment.Log ──────────┐
//	                      ├─► Batches.Collect ─► netproto.Frame{Body, Owner} ─► written ─► Batches.Release
//	segment.Log.Memory() ─┘
//
// No bytes are copied: Body refers to the log's memory, which views pin until Release. A crash leaves nothing behind.
package outgoing
