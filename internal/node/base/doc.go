// Package base holds what all packages of the engine share: errors that callers act on, messages and their headers, the
// types of a consumer and its options, names of topics and channels, the engine's clock, and notices. Package engine
// re-exports its public types and errors under their own names, and programs use those.
//
// Nothing here knows of partitions, channels or other nodes, does I/O or starts a goroutine.
package base
