// Package stepped is a simulated machine for a node: code that waits is a coroutine, exactly one coroutine runs at a
// time, and time passes only between two calls of Step. One seed so gives one history. The simulator (tools/sim) runs
// whole clusters on such machines, and a test of node runs one. It imports node/platform, whose Host it implements, and
// replicate/peer.
package stepped
