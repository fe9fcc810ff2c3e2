// Package route decides where the puts and the consumers of partitions go that other nodes lead. Its machines are pure:
// no I/O, no clock, no goroutine, no lock. The engine owns them, tells them what happened, and does what they say.
//
//	Lane      the puts of one partition, on their way to its leader: when the next one may leave
//	Refusals  at that leader: which puts it refuses because it has refused one before them
//	Legs      at which leaders a client is subscribed
//	Credit    its RDY, divided among them
//	Adoption  which partitions of a topic the channels of this node have
//
// Lane and Refusals together keep the puts of a partition in their order, whatever becomes of its leader: see Lane.
package route
