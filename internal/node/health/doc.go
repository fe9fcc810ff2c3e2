// Package health judges what a node knows about itself and its cluster. It has no I/O, no clock and no goroutine: its
// inputs are facts with their ages, and its output is a [Verdict].
//
//	Engine.Facts ─► Facts ─► Judge ─► Verdict ─► /ping, /livez, /readyz, /health, /stats, penstock cluster status
//	Snapshot, View ─► Look ─► Cluster ─┘
//
// A [View] is what the node learned itself and when: until when it has a lease, how long ago the metadata store
// answered, which nodes it is connected to, and which processes it saw end. The store's rows are older than that when
// the store is silent. Then the younger fact counts: [View.Presence] never calls a node live because of an old row.
//
// [Startup] says how far the start of a node has come, before there is an engine that could be asked.
package health
