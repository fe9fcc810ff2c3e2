// Package logread reads what the log of a partition says at one place: the header of a batch, a message, the state of
// the log in front of its first batch, and the state and the fold at a position.
//
// Partitions use it: when a copy is opened, cut or trimmed, when a deferred message is carried along, for operators and
// for readers. Package trace reads the life of a message with it. All functions may wait for the device, except those
// that say otherwise, so their callers hold no lock. The package writes nothing, and a crash leaves nothing behind.
//
// It imports segment, replicate's table of epochs, and the packages fold, replay and inflate, which know what batches
// contain.
package logread
