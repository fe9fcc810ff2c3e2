// Package route decides where puts and consumers go whose partitions are led by other nodes. Its machines are pure: no
// I/O, no clock, no goroutine, no lock. The engine owns them, tells them what happened, and does what they decide.
//
//	Lane      the puts of one partition, on their way to its leader: when the next one may leave
//	Refusals  at that leader: the runs of which it must refuse every further put
//	Answers   at that leader: what became of puts whose answers may be lost
//	Legs      at which leaders a client is subscribed
//	Credit    the client's RDY, divided among these leaders
//	Adoption  which partitions of a topic the channels of this node have
//
// Lane and Refusals together keep the puts of a partition in order, even when its leader changes: see Lane.
package route
