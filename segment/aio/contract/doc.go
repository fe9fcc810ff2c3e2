// Package contract holds the checks that every Disk must make in the same way, so that a caller that works on one
// implementation works on all of them. Package aio uses it, and the disk of the tests (tests/support/faultaio). It
// imports only the standard library.
package contract
