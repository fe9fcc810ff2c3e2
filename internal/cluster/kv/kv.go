// Package kv defines the part of etcd that a cluster's metadata is built on, as an interface: an ordered map of strings
// with revisions, conditional transactions, watches without gaps, and leases. Package etcd implements it on etcd v3,
// package memory inside the process (for programs that hold a whole cluster, tests and the simulation). Tests also have
// one in a file (tests/support/kvfile).
package kv

import (
	"context"
	"errors"
	"time"
)

// Errors; test for them with errors.Is.
var (
	ErrUnavailable = errors.New("kv: the store does not answer")
	// ErrCompacted ends a watch whose revision is no longer kept: the caller must read everything again.
	ErrCompacted = errors.New("kv: the revision is not kept any more")
	// ErrLeaseGone says that the lease ran out, and that its keys are gone.
	ErrLeaseGone = errors.New("kv: the lease ran out")
	ErrClosed    = errors.New("kv: closed")
)

// LeaseID identifies a lease; 0 means no lease.
type LeaseID int64

// Entry is one key at a revision.
type Entry struct {
	Key         string
	Value       []byte
	ModRevision int64   // of its last change
	Lease       LeaseID // the key is deleted when this lease ends
}

// Cond is one comparison of a transaction.
type Cond struct {
	Key         string
	ModRevision int64 // 0: the key must not exist
}

// Op is one write of a transaction.
type Op struct {
	Key    string
	Value  []byte
	Delete bool
	Lease  LeaseID
}

// Event is one change that a watch saw.
type Event struct {
	Entry        // for a deletion only Key and ModRevision
	Deleted bool // by an operation, or because its lease ran out
}

// Store is the map. Its methods are safe for concurrent use. If Txn fails with an error other than ErrLeaseGone, the
// transaction may still have been applied: read before repeating it.
type Store interface {
	// List returns all entries under a prefix, in order of key, and the revision at which they were read. It is
	// linearizable.
	List(ctx context.Context, prefix string) ([]Entry, int64, error)
	// Txn applies all ops if all conds hold. It returns whether it did, and the revision. It allows as many ops as etcd
	// does by default (128); a caller with more has to divide them.
	Txn(ctx context.Context, conds []Cond, ops []Op) (ok bool, revision int64, err error)
	// Watch calls changed with the events of all revisions above after, in order and without gaps, until ctx ends (nil)
	// or the watch cannot go on (ErrCompacted, ErrClosed). A call has the events of one or more revisions, and is
	// complete up to revision. One without events says that nothing else has changed up to revision: it comes, perhaps a
	// second or two late, if only keys outside of prefix were changed. A lost connection does not end the watch.
	Watch(ctx context.Context, prefix string, after int64, changed func(events []Event, revision int64)) error
	// Grant creates a lease, and KeepAlive extends it. The TTL that remains is counted from before the call was sent.
	Grant(ctx context.Context, ttl time.Duration) (LeaseID, error)
	KeepAlive(ctx context.Context, id LeaseID) (ttl time.Duration, err error)
	Revoke(ctx context.Context, id LeaseID) error
	Close() error
}
