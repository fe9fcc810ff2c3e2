// Package outgoing collects the stored batches of one frame to another replica. engine/part is its only caller: it gets
// Batches from the pool, collects from a partition's log, and gives them to the connection with the frame.
//
//	segment.Log ──────────┐
//	                      ├─► Batches.Collect ─► netproto.Frame{Body, Owner} ─► written ─► Batches.Release
//	segment.Log.Memory() ─┘
//
// Nothing is copied: Body are the bytes of the log, which it keeps until Release. A crash leaves nothing.
package outgoing
