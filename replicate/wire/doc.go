// Package wire is what frames between nodes carry: messages of replication, puts on the way to a leader (forward.go),
// operations for leaders (operation.go), subscriptions at leaders (subscription.go, label.go, held.go), and why any of
// it is refused (reason.go). FORMAT.md has the bytes. Everything decoded borrows from the payload, but what is JSON:
// operations, their results and labels.
//
// A replicate.Message travels as a head that carries everything but the batches, and behind it the sealed batches as
// they stand in memory and in the segment files, whole and back to back.
//
//	leader    Encode(&frame, id, m, runs); frame.Body = the batches' bytes; Send
//	follower  Decoder.Decode(&received.Header, received.Payload); Decoder.Message, Runs, Batch(i)
//
// Batches are never copied or hashed on the way out: such a frame is self-checked, its checksum covers the head. Decode
// verifies the two checksums of every batch instead, so what it returns can be appended as it is. Messages without
// batches are short, and the frame's checksum covers them whole.
//
// What Decode checks is whether bytes are a message at all: sizes, bounds, checksums, and that each batch lies in the
// segment that its run names. Whether the message fits the receiver's log is for the machines to say: they answer with
// what the leader has to do.
package wire
