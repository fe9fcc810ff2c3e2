// Package relay is a network with a round trip, for measurements on one machine: hosts in network namespaces of their
// own, and a forwarder that takes each packet from the device of one host, keeps it for half of a round trip, and gives
// it to another. Kernels with netem need no such thing; this works without.
//
//	host 0: this process's namespace, where the client is   host 1 … n: a namespace each, with a node
//	      pr…  (TUN)                                              eth0 (TUN)
//	        └───────────────── forwarder: one thread ───────────────┘
//
// The devices carry what a network card with segmentation offload takes: up to 64 KiB of TCP at once, with its checksum
// left to the card (TUN's virtio header). So the forwarder copies few large pieces and computes nothing. Its thread has
// a real-time priority, so that it is as exact as a wire while the nodes fight for the processors, and sleeps in ppoll
// until a packet arrives or is due: what it costs is what the packets cost. Measure tells what the relay itself adds.
//
// A namespace has no name: it lasts as long as the relay or a process in it. The devices end with the relay's files. So
// nothing is left behind, whichever way the process ends.
package relay
