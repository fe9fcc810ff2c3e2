// Package wire encodes the payloads of frames between nodes: messages of replication, puts on the way to a leader
// (forward.go), operations for leaders (operation.go), subscriptions at leaders (subscription.go, label.go, held.go),
// and the reasons for refusing them (reason.go). FORMAT.md has the bytes. Decoded values borrow from the payload,
// except those that travel as JSON: operations, their results and labels.
//
// A replicate.Message travels as a head, which has everything but the batches. Behind the head come the sealed batches
// exactly as they are in memory and in the segment files, whole and back to back.
//
//	leader    Encode(&frame, id, m, runs); frame.Body = the batches' bytes; Send
//	follower  Decoder.Decode(&received.Header, received.Payload); Decoder.Message, Runs, Batch(i)
//
// The sender never copies or hashes batches: the checksum of such a frame covers only its head (a self-checked frame).
// Decode verifies the two checksums of every batch instead, so the batches that it returns can be appended as they are.
// Messages without batches are short, and the frame's checksum covers them whole.
//
// Decode checks whether the bytes are a message at all: sizes, bounds, checksums, and that each batch lies in the
// segment that its run names. Whether the message fits the receiver's log is for the machines to decide: their answer
// tells the leader what to do.
package wire
