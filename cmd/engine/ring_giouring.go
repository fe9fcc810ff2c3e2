//go:build giouring

package main

// ring names the io_uring layer that this binary was built with.
const ring = "giouring"
