// Package kv is the part of etcd that a cluster's metadata stands on, as an interface: an ordered map of strings with
// revisions, transactions that compare, watches without gaps, and leases. Package etcd implements it on etcd v3,
// package memory in the process (tests, simulation), package file in one file (a single node).
package kv

import (
	"context"
	"errors"
	"time"
)

// Errors, tested with errors.Is.
var (
	ErrUnavailable = errors.New("kv: the store does not answer")
	// ErrCompacted ends a watch whose revision is not kept any more: read everything again.
	ErrCompacted = errors.New("kv: the revision is not kept any more")
	// ErrLeaseGone says that the lease ran out: its keys are gone.
	ErrLeaseGone = errors.New("kv: the lease ran out")
	ErrClosed    = errors.New("kv: closed")
)

// LeaseID names a lease. 0: none.
type LeaseID int64

// Entry is one key at a revision.
type Entry struct {
	Key         string
	Value       []byte
	ModRevision int64   // of its last change
	Lease       LeaseID // its key goes with the lease
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
	Entry        // of a deletion: Key and ModRevision
	Deleted bool // or its lease ran out
}

// Store is the map. Methods are safe for concurrent use. An error of Txn other than ErrLeaseGone may hide a transaction
// that was applied: read before repeating.
type Store interface {
	// List returns all entries under a prefix, in order of key, and the revision that they are of. It is linearizable.
	List(ctx context.Context, prefix string) ([]Entry, int64, error)
	// Txn applies all ops if all conds hold, and says whether it did and the revision. It allows any number of ops that
	// etcd allows by its default (128); a caller with more divides them.
	Txn(ctx context.Context, conds []Cond, ops []Op) (ok bool, revision int64, err error)
	// Watch calls changed with the events of each revision above after, in order, none missing, until ctx ends (nil) or
	// the watch cannot go on (ErrCompacted, ErrClosed). Losing the connection is not an end.
	Watch(ctx context.Context, prefix string, after int64, changed func(events []Event, revision int64)) error
	// Grant makes a lease. KeepAlive extends it; the TTL that remains is counted from before the call was sent.
	Grant(ctx context.Context, ttl time.Duration) (LeaseID, error)
	KeepAlive(ctx context.Context, id LeaseID) (ttl time.Duration, err error)
	Revoke(ctx context.Context, id LeaseID) error
	Close() error
}
