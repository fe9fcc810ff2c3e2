// Package peer keeps the connections between the nodes of a cluster: one per pair, for the frames of all partitions.
//
// # Who dials
//
// The node with the smaller id dials the one with the larger, and never the other way round, so there are never two
// connections. It keeps dialing as long as the other node is in the table, with growing pauses. The accepting side
// admits a node that SetNodes knows by that name and with that store. It accepts any boot, because a process that was
// just started may connect before the news of it arrives.
//
// # Up and Down
//
// Per node, the calls are Up, Frames …, Down, Up, Frames …, Down, one after the other, never two at a time. A newer
// connection from the same node ends the older one: the node would not dial if it still had the older one. Up for the
// newer connection comes only when everything about the older one is over.
//
//	dialing side                               accepting side
//	1 Connect: Hello, HelloAck                 1 Accept: Hello, admitted by name, store and id; HelloAck
//	2 takes the link's turn                    2 ends the previous connection, and takes the link's turn
//	                                             when that connection's Down has returned
//	3 TrySend finds the connection; Up         3 the same
//	4 Frames                                   4 Frames, which waited for Up
//	5 the connection ended                     5 the same
//	6 TrySend no longer finds it;              6 the same
//	  probe; Down; gives the turn back
//	7 dials again
//
// # Whether the process is dead
//
// A closed connection says little: the network or a decision of the peer may have closed it. A port that refuses shows
// that the host is there and nobody listens. Both together mean, unless a firewall forges the refusal, that the process
// has ended. Then Down says refused, and nobody needs to wait for the lease of that process. So after a connection
// closed, either side dials the other's address to see, without a Hello. A process that dies closes its connections and
// its listener one after the other, so a dial that succeeds is repeated within ProbeSpan. Silence is never taken for a
// dead process: a network that is cut looks the same. An Up with another boot also shows that the old process is gone:
// a node has one process at a time.
//
// A rejected design: both sides dial, and one of the two connections is dropped afterwards. It connects a little
// sooner, but needs a rule for every order in which two half-open connections can fail.
package peer
