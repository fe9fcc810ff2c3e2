// Package puretest checks packages that only decide, such as state machines. Such a package must not reach a clock, a
// file, a socket, a lock or another goroutine, and must not depend on the random order of maps. The tests of each
// machine use it. It imports only the standard library.
package puretest
