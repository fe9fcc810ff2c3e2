// Package etcd is [kv.Store] on etcd v3, and an etcd member inside this process.
//
// [Dial] is a client of any etcd of version 3.5.8 or newer. [Start] runs a [Member]: three or five nodes of a cluster
// that brings no etcd of its own each run one, and all nodes are clients of them. Nothing below package cluster imports
// this package, so embedding the engine does not pull in etcd.
//
// # The client
//
// A store uses one endpoint while it works and goes to the next when the connection breaks, an attempt gets no answer
// or the member says that it has no leader. So a node talks to the member in its own process, and a member that is
// frozen or cut off costs one attempt (1 s), not a lease. What may be repeated without harm is repeated until the
// request's time is over; a transaction is repeated only if the member certainly did not take it.
//
// A watch asks the member about its progress every second of silence. A member that does not answer is left, and the
// watch goes on at the next one from the revision after the last that was handed over, so nothing is missed and nothing
// stalls unseen.
//
// # The member
//
// An etcd member that lost its disk must never vote again under its old identity: it has forgotten entries that it
// acknowledged, and together with a member that lags it could undo what was committed. etcd derives identities from the
// configuration, so an empty directory alone cannot tell a first start from a lost disk. Hence this order
// (formation.go):
//
//  1. A directory with a write-ahead log starts as it is.
//  2. An empty one asks the other voters. If one of them runs a cluster that knows this name, the old identity is
//     removed and a new one added by that cluster, which needs its majority.
//  3. Only if every other voter is empty as well, a new cluster begins. So the first start of a cluster needs all
//     voters once; later starts need a majority.
package etcd
