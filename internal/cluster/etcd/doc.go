// Package etcd implements [kv.Store] on etcd v3, and runs an etcd member inside this process.
//
// [Dial] returns a client of any etcd of version 3.5.8 or newer. [Start] runs a [Member]: if a cluster brings no etcd
// of its own, one, three or five of its nodes each run a member, and all nodes are clients of these. No package below
// package cluster imports this one, so embedding the engine does not pull in etcd.
//
// # The client
//
// A store uses one endpoint while it works. It goes to the next endpoint when the connection breaks, when an attempt
// gets no answer, or when the member says that it has no leader. So a node talks to the member in its own process, and
// a member that is frozen or cut off costs one attempt (1 s), not a lease. A call that may be repeated without harm is
// repeated until the request's time is over. A transaction is repeated only if the member certainly did not take it.
//
// After every second of silence, a watch asks the member about its progress. It leaves a member that does not answer,
// and goes on at the next member from the revision after the last one that it handed over. So no event is missed, and a
// stalled watch is always noticed.
//
// # The member
//
// An etcd member that lost its disk must never vote again under its old identity: it has forgotten entries that it
// acknowledged, and together with a member that lags it could undo committed changes. etcd derives identities from the
// configuration, so an empty directory alone does not distinguish a first start from a lost disk. Hence this order
// (formation.go):
//
//  1. A directory with a write-ahead log starts as it is.
//  2. A member with an empty directory asks the other voters. If one of them runs a cluster that knows this name, that
//     cluster removes the old identity and adds a new one, for which it needs its majority.
//  3. A new cluster begins only if every other voter is empty as well. So the first start of a cluster needs all voters
//     once; later starts need a majority.
//
// etcd's ports are behind fronts (front.go). If etcd lacks descriptors or space, it ends, the node goes on, and the
// member starts etcd again (run.go).
//
// [Seed] makes the exception: a directory of a member that is alone, with entries, for a cluster all of whose members
// are lost. The other voters, with empty directories, are added to it (2).
package etcd
