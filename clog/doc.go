// Package clog is a node's commit log: what is in it is written, everything else can be rebuilt from it and the
// segments.
//
// Four nouns carry it:
//
//   - A Record is a placement and a payload, mostly one batch.
//   - A [Group] is a header and the records that arrived while earlier groups were on the disk, of all partitions. It
//     is contiguous in one aio.Buf, and one aligned write with one flush makes it durable.
//   - A file is a row of groups; it begins with a checkpoint. Files have growing numbers and are overwritten in place:
//     a file is prepared before use (see preparer) and recycled when nothing in it is needed.
//   - A [Source] supplies records and learns their fate. There is one, and one goroutine runs the log.
//
// # Steps
//
//  1. The source has records and calls Wake.
//  2. Gather: the source reserves room in the group's buffer and seals its batches there. Nothing is copied after that.
//  3. The header gets the chain (the checksum of the group before) and two promises: which group was durable, which
//     file is the oldest needed.
//  4. The group goes to the queue. Up to InFlight groups are on the disk; what arrives meanwhile becomes the next
//     group. Nothing waits on a timer. A group with one waiter on an idle disk is written on the spot (SetSolo).
//  5. Completions come in any order; Durable goes out strictly in the order of groups.
//  6. When a file is full the log waits for the groups in flight, takes the prepared file, writes the source's
//     checkpoint, goes on.
//  7. When the source has stored the records of old files elsewhere it calls Release; the next durable group says so,
//     then the files become spares.
//
// # Invariants
//
//   - durable <= seq, and durable grows by one group at a time: a hole is never reported.
//   - A header never promises what is not so at that moment. Recovery relies on it to tell a torn tail from corruption.
//   - A file has groups only if every group of the files before it is durable (step 6 drains).
//   - A file leaves the folder only after a durable group said that it is not needed, and one at a time, oldest first.
//   - A file number is never used twice, and an old file is never appended to, so bytes of another life never verify.
//   - After the first failed write or flush nothing is reported durable and nothing is written (ErrFailed). Nothing is
//     retried: the kernel may have dropped the bytes and forgotten the error.
//   - Groups are bounded by GroupBytes (or one record), files by FileBytes, all files by MaxLiveBytes, buffers by the
//     arena. When one of them is used up, the log waits and counts it; Wake, Release and returning buffers end the
//     wait. The two limits of files give way to checkpoints that need more (size.go): no checkpoint stops the log. The
//     source bounds its state.
//
// # Races
//
// One goroutine owns everything except the preparer's queue of files, Release's number, and the flags named below.
// Wake's race is the queue's (package aio). The log's own is the wait for a buffer (see nextBuf), and Release against
// an idle log:
//
//	anyone                                  log
//	------                                  ---
//	B1 released = n                         A1 reads released: old, so no mark is due
//	B2 Wake                                 A2 sleeps in the queue
//
// B1 before A1: the mark is written. A1 before B1: B2 comes after the queue's last return and ends A2 at once. A file
// that becomes ready is the same race with the preparer in the left column.
//
// # Recovery
//
// Open flushes the files it finds, reads them around the page cache, and replays the longest chain of valid groups from
// the oldest file on that is needed (unneeded.go). Flushing comes first so that everything it hands out is durable: a
// killed process leaves bytes that a later power cut would take back. It judges by a truth table (decide.go) and
// changes nothing before the judgement is complete; then it only removes files without a group that counts. So a crash
// during recovery repeats it, and recovery of recovery is the identity. FORMAT.md has the rules.
//
// A rejected design: asking for a mark after every group, so that even the last one is promised. It costs a second
// flush for each acknowledgement. Instead the last InFlight groups before a crash cannot tell damage from a torn write;
// replicas can.
package clog
