// Package powercut is the witness of what an OK means: on stable storage. It runs the engine on a real kernel and on
// disks whose write cache is lost when the power is cut (package volatile), cuts the power under load, and demands
// every acknowledged message afterwards: with io_uring, with pwritev2, and with neither, on ext4 and xfs, one node, and
// three nodes whose power is cut at once. Backups are cut as well: they are written with plain files, which the
// simulated disk (tests/support/faultaio) does not have.
//
// The tests carry the build tag `powercut` and need root: make power-cut CUTS=25. The test's process is the disks and
// the judge; a child of it runs the engines and says which messages were acknowledged. It is killed after each cut, and
// the next one starts on what is left.
//
// All runs in a mount namespace of its own: what the test does not unmount itself goes with its processes.
package powercut
