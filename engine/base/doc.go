// Package base has what all rooms of the engine share: errors that callers act on, messages and their headers, what a
// consumer is and what it asks for, names of topics and channels, the engine's clock, and notices. Package engine gives
// its public types and errors under their own names; programs use those.
//
// Nothing here knows of partitions, channels or other nodes, does I/O or starts a goroutine.
package base
