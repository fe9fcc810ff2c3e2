// Package batch packs messages into batches, the sealed unit that travels unchanged from a producer to every replica,
// file and consumer. FORMAT.md has the layout.
//
// A [Builder] seals batches; [Header] and [BatchIter] read them; [RecordIter] walks over the messages of one batch.
// [AppendRecord] and [Stamp] are for the server, which seals batches in the buffers of its commit log. [ID] numbers
// the messages of a topic.
//
// Servers and clients import this package. It keeps no state, does no I/O, and runs on every system that Go supports:
// applications publish and read from any of them.
//
// Reading the source: numbers.go, batch.go, record.go, builder.go, id.go, key.go.
package batch
