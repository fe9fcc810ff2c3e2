// Package platform defines what a node needs of the machine that it runs on, except the disk: clocks, goroutines,
// waiting, randomness, the network, and the goroutine that runs the commit log. Package node and the packages below it
// that wait, or talk to other nodes, use it. It imports only netproto, replicate and replicate/peer.
//
// There are two implementations of Host. Machine is a real machine: Go's clocks, goroutines and timers, and TCP. The
// other (tests/support/stepped) belongs to a simulation: code that waits is a coroutine, exactly one coroutine runs at
// a time, and time passes only between two of its steps, so one seed gives one history. The node has no other way to
// start, or wait for, anything that a simulation runs, and does not know which of the two it has.
package platform
