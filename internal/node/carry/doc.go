// Package carry keeps deferred messages while the segments that hold them are removed: it copies them into control
// batches at the end of their partition's log. It also finds the messages that were lost because retention removed
// their segments nevertheless.
//
// Each partition has a [Carrier], which the flusher starts, and which works on the committer and on goroutines of its
// own. The package has no lock. A crash leaves each message in its old place, in its new one, or in both.
package carry
