// Package relay is a network with a round trip, for measurements on one machine: hosts in network namespaces of their
// own, and a forwarder that takes each packet from the device of one host, keeps it for half of a round trip, and gives
// it to another. On a kernel with netem one would use that instead; this package does not need it.
//
//	host 0: this process's namespace, where the client is   host 1 … n: a namespace each, with a node
//	      pr…  (TUN)                                              eth0 (TUN)
//	        └───────────────── forwarder: one thread ───────────────┘
//
// The devices carry what a network card with segmentation offload takes: up to 64 KiB of TCP at once, with its checksum
// left to the card (TUN's virtio header). So the forwarder copies few large pieces and computes no checksums. Its
// thread has a real-time priority, so that it forwards on time while the nodes use all processors. It sleeps in ppoll
// until a packet arrives or is due, so it uses no processor time while nothing is sent. Measure returns what the relay
// itself adds to a round trip.
//
// A namespace has no name: it lasts as long as the relay or a process in it. The devices end with the relay's files. So
// nothing is left behind, whichever way the process ends.
package relay
