// Package wire has the payloads of the frames between native clients and nodes: types 64 and above of
// [penstock/netproto]. FORMAT.md has the bytes.
//
// Package native (the server) and package client use it. It does no I/O, keeps no state, and runs on every system that
// Go supports. [Append] writes every message and [Decode] reads it, which copies strings and borrows everything else;
// it returns an error that wraps ErrInvalid for bytes that no version can have written, and ignores bytes behind the
// fields that it knows, so that a later version may add some. Deliveries have functions of their own.
package wire
