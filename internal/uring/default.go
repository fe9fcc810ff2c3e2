//go:build !giouring

package uring

// Engine names the implementation behind Open.
const Engine = "uring"

// Open opens a ring of at least entries submissions for the calling thread.
func Open(entries uint32) (Ring, error) {
	r, err := openKernelRing(entries)
	if err != nil {
		return nil, err
	}
	return r, nil
}
