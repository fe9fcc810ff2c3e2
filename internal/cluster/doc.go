// Package cluster lets the nodes agree on which nodes are alive, which topics exist, and which nodes replicate and lead
// each partition. It implements meta.Store for the engine on a kv.Store: etcd, one file, or the memory of a test.
// FORMAT.md has the keys and rows.
//
// # Principles
//
// There is no lock, and no state besides the rows. To change something, a node takes the rows as its watch has brought
// them, decides, and writes the result in one transaction, which compares the rows that the decision is based on. If
// one of them has changed, the node reads and decides again. So it does not matter how old a node's view is, or how
// long its process stood still: the store refuses an outdated decision. The changes of many partitions that one node
// makes at the same time share transactions: those of the ISR in isr.go, and those of the controller in controller.go.
//
// Time only decides when somebody is asked to act. When a lease runs out, the controller elects. The election is safe
// because of the epoch in the partition's row, which the replicas enforce (package replicate).
//
//	row                      is changed by                        which compares
//	parts/…                  the leader, through ChangeISR,       the row, the leader's epoch, version and boot, the
//	                         HandOver                             disks of new members
//	parts/…, moves/…         the controller                       the row, the chosen node's live row and the
//	                                                              controller's row
//	nodes/…, live/…          the node itself                      the row
//	topics/…, names/…        any node                             the row, live rows of nodes that get replicas
//	rebalance                the controller, operators            the row
//
// # Who acts
//
// Each node runs three goroutines after Join. The first follows the store and hands changes to the engine. The second
// keeps the lease. The third is the controller, if no other node is ([store.control]). The controller's decisions are a
// pure function of the state: plan.go has elections, moves, drains and cleaning up.
//
// # Races
//
// A process that stood still for longer than its lease resumes:
//
//	stopped leader                        controller
//	1 stands still
//	                                      2 its lease runs out, its live row goes: another node leads, epoch 2
//	3 goes on; its lease is gone
//	4 writes its live row anew
//	5 waits until its watch has
//	  delivered step 4, and so step 2
//	6 only then tells the engine that
//	  it may serve
//
// A process is reported gone, but it is not:
//
//	reported process                      controller
//	                                      1 down/ names its boot: other nodes take what they can lead
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
//	  from before step 2, and is refused
//
// # Rejected alternatives
//
// Elections by leases, with each partition's leadership a leased key: there would be thousands of keys to keep alive,
// and when a node loses its lease, the only record of who led what is gone.
//
// Copying a dead node's replicas to other nodes as soon as its lease has ended: that would move much data because of a
// reboot. The controller waits for Options.RebalanceAfter. An operator who knows that a node is gone for good drains
// it, although it is dead.
package cluster
