//go:build !giouring

package aio

// ringEngine is the name of the ring's implementation in Info.
const ringEngine = "uring"

// openRing opens a ring for the calling thread.
func openRing(entries uint32) (ring, error) { return openKernelRing(entries) }
