// Package cluster is the agreement of the nodes: who is alive, which topics exist, who replicates and who leads each
// partition. It implements meta.Store for the engine, on a kv.Store: etcd, one file, or the memory of a test. FORMAT.md
// has the keys and rows.
//
// # What it stands on
//
// There is no lock and no state besides the rows. Every change reads the rows as the watch has brought them, decides,
// and writes what should be in one transaction that compares what the decision rests on. If that has changed, it reads
// and decides again. So it does not matter how old a node's view is, or how long it stood still: an outdated decision
// is refused by the store.
//
// Time decides nothing but when somebody is asked to act. A lease that runs out makes the controller elect; what makes
// the election safe is the epoch in the partition's row, which the replicas enforce (package replicate).
//
//	row                      is changed by                        comparing
//	parts/…                  the leader, through ChangeISR,       the row, the leader's epoch, version and boot, the
//	                         HandOver                             disks of new members
//	parts/…, moves/…         the controller                       the row, the chosen node's live row and the
//	                                                              controller's row
//	nodes/…, live/…          the node itself                      the row
//	topics/…, names/…        any node                             the row, the live rows of the nodes that get replicas
//
// # Who acts
//
// Each node runs three goroutines after Join: one follows the store and hands changes to the engine, one keeps the
// lease, and one is the controller wherever nobody else is ([store.control]). The controller's decisions are a pure
// function of the state: see plan.go, which is where elections, moves, drains and cleaning up are.
//
// # Races
//
// A process that stood still for longer than its lease comes back:
//
//	stopped leader                        controller
//	1 stands still
//	                                      2 its lease runs out, its live row goes: another leads, epoch 2
//	3 goes on; its lease is gone
//	4 writes its live row anew
//	5 waits for its watch to have
//	  delivered step 4, so step 2 too
//	6 only now tells the engine that
//	  it may serve
//
// A report says that a process is gone, and it is not:
//
//	reported process                      controller
//	                                      1 down/ names its boot: others lead what they can
//	                                      2 removes down/ and its live row, when step 1 is done
//	3 its live row is missing, its
//	  lease is not: as above, from 4
//
// A controller is slow:
//
//	old controller                        new controller
//	1 decides
//	                                      2 writes the controller row
//	3 its transaction compares the row
//	  of before step 2, and is refused
//
// # Rejected alternatives
//
// Electing inside the leases, each partition's leadership a leased key: thousands of keys to keep alive, and a node
// that loses its lease loses its only copy of who led what.
//
// Waiting a while before a dead node's replicas are copied to others: that moves much data for a reboot. An operator
// who knows that a node is gone for good drains it, dead as it is.
package cluster
