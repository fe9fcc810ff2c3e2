// Package clog implements a node's commit log. A batch counts as written once it is in the commit log; everything else
// on disk can be rebuilt from the commit log and the segments.
//
// Four nouns describe it:
//
//   - A Record is a placement and a payload, mostly one batch.
//   - A [Group] is a header and the records, of all partitions, that arrived while earlier groups were on their way to
//     the disk. A group is contiguous in one aio.Buf, and one aligned write with one flush makes it durable.
//   - A file is a sequence of groups that begins with a checkpoint. Files have growing numbers and are overwritten in
//     place: a file is prepared before use (see preparer) and recycled when nothing in it is needed.
//   - A [Source] supplies records and learns what became of them. A log has one source, and one goroutine drives the
//     log.
//
// # Steps
//
//  1. The source has records and calls Wake.
//  2. Gather: the source reserves room in the group's buffer and seals its batches there. Nothing is copied after that.
//  3. The header gets the chain (the checksum of the previous group) and two promises: which group was already durable,
//     and which file is the oldest that recovery needs.
//  4. The log's goroutine writes the group. One above DirectBytes is submitted to the queue instead, so that the next
//     one is gathered meanwhile: up to InFlight groups are on their way to the disk. Records that arrive during a write
//     form the next group. No step waits for a timer.
//  5. Completions arrive in any order; the log calls Durable strictly in the order of groups.
//  6. When a file is full, the log waits for the groups in flight, takes the prepared file, writes the source's
//     checkpoint to it, notes in log.mark that the file is begun, and continues there.
//  7. When the source has stored the records of old files elsewhere, it calls Release. The header of the next group
//     says so, and once that group is durable the files become spares.
//
// # Invariants
//
//   - durable <= seq, and durable grows by one group at a time: a hole is never reported.
//   - A header promises only what is true when it is sealed. Recovery relies on this to tell a torn tail from
//     corruption.
//   - A file has records of the source only if log.mark, outside of the folder, durably names it.
//   - A file has groups only if every group of the files before it is durable (step 6 drains).
//   - A file leaves the folder only after a durable group said that it is not needed; files leave one at a time, oldest
//     first.
//   - A file number is never used twice, and Open never appends to an existing file, so bytes from an earlier use of a
//     file never verify.
//   - After the first failed write or flush nothing is reported durable and nothing is written (ErrFailed). Nothing is
//     retried: the kernel may have dropped the bytes and forgotten the error. A write that finds no room is no failure:
//     all that was not reported is written again, whole and at its place, before anything else (noroom.go).
//   - GroupBytes (or one record) bounds a group, FileBytes a file, MaxLiveBytes all files, and the arena all buffers.
//     When one of these limits is reached, the log waits and counts the wait; Wake, Release and returned buffers end
//     it. The two limits of files are raised when checkpoints need more (size.go): no checkpoint stops the log. The
//     source bounds its own state.
//
// # Races
//
// The driving goroutine owns everything except the preparer's queue of files, the number that Release sets, and the
// flags named below. (StepOnSpot does the driving goroutine's work for it, under Log.mu.) The queue
// handles the races of Wake (package aio). The log has two races of its own: the wait for a buffer (see nextBuf), and
// Release against an idle log:
//
//	anyone                                  log
//	------                                  ---
//	B1 released = n                         A1 reads released: old, so no mark is due
//	B2 Wake                                 A2 sleeps in the queue
//
// If B1 comes before A1, the log writes the mark. If A1 comes before B1, then B2 comes after the queue's last return
// and ends A2 at once. A file that becomes ready is the same race, with the preparer in the left column.
//
// # Recovery
//
// Open flushes the files it finds, reads them around the page cache, and replays the longest chain of valid groups,
// beginning with the oldest file that is needed (unneeded.go). Open flushes first so that everything it replays is
// durable: a killed process leaves bytes in the page cache that a later power cut would take away. Open judges by a
// truth table (decide.go) and changes nothing before the judgement is complete; then it only removes files that hold no
// valid group of the chain. A crash during recovery therefore just repeats recovery, with the same result. FORMAT.md
// has the rules.
//
// A file that is gone at the end breaks no chain. So recovery compares the chain's end with log.mark (judge.go). A log
// that ends before its mark has forgotten: Open refuses it, unless another replica may have what is missing.
//
// A rejected design: writing a mark after every group, so that even the last group is promised. That costs a second
// flush for each acknowledgement. As it is, recovery cannot tell damage from a torn write in the last InFlight groups
// before a crash; the other replicas can.
package clog
