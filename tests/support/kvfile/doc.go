// Package kvfile is a kv.Store in one file, for tests whose cluster must outlive its process: it is package memory with
// a journal, and a transaction is answered when its line is on stable storage. Nodes keep their metadata on etcd.
//
// # Format
//
// The file is text, with one line for each revision:
//
//	8 hex digits, a space, JSON, a newline
//
// The digits are the CRC-32C of the JSON. The first line is {"format":1,"revision":R}, where R is the revision of the
// map when the file was opened last. The entries of that time follow, as writes, with the revision of their last change
// in "mod", and then the journal. A write is {"key":K,"text":V}, or "bytes" in base64 if the value is not UTF-8, or
// {"key":K,"delete":true}. Keys with a lease are not kept: the process that held the lease is gone.
//
// A crash may leave the last line incomplete: its transaction was not answered.
//
// Tests of cluster and node use it, and the power cuts. It imports cluster/kv and cluster/kv/memory.
package kvfile
