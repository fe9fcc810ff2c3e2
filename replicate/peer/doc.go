// Package peer keeps the connections between the nodes of a cluster: one per pair, for the frames of all partitions.
//
// # Who dials
//
// The node with the smaller id dials the one with the larger, and no one else, so there are never two. It goes on for
// as long as the other is in the table, with pauses that grow. The other side takes whoever SetNodes knows by that
// name, with the store that is known there; the boot may be any, since a process that was just started can be here
// before the news of it.
//
// # Up and Down
//
// Per node: Up, Frames …, Down, Up, Frames …, Down, one after the other, never two at a time. A newer connection from
// the same node ends the older one: the node would not dial if it still had that. Everything of the older one is over
// before Up for the newer one.
//
//	dialing side                               accepting side
//	1 Connect: Hello, HelloAck                 1 Accept: Hello, admitted by name, store and id; HelloAck
//	2 takes the link's turn                    2 ends the previous connection and takes the link's turn
//	                                             when the Down of that one has returned
//	3 TrySend finds the connection; Up         3 the same
//	4 Frames                                   4 Frames, which waited for Up
//	5 the connection ended                     5 the same
//	6 TrySend does not find it any more;       6 the same
//	  probe; Down; gives the turn back
//	7 dials again
//
// # Whether the process is dead
//
// A connection that closed says little: the network or the peer's decision may have done it. A port that refuses says
// that nobody listens on a host that is there. Both together mean, if no firewall forges the refusal, that the process
// has ended; then Down says refused, and nobody needs to wait for its lease. So after a connection closed, either side
// dials the other's address once to see, without a Hello. A process that dies closes its connections and its listener
// one after the other, so a dial that succeeds is repeated within ProbeSpan. Silence is never taken for a dead process:
// a network that is cut looks the same. An Up with another boot says it too: a node has one process at a time.
//
// A rejected design: both sides dial and the connections are sorted out afterwards. It connects a little sooner, and
// needs a rule for every order in which two half-open connections can fail.
package peer
