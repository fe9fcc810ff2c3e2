package native

import (
	"errors"
	"sync/atomic"
)

var errNumberTaken = errors.New("the request has the number of one whose reader or subscription is open")

// opened has the readers, or the subscriptions, that one client has opened and not ended, by the number of the request
// that opened each. It keeps the limits of the connection and of the node. A session has one of each kind, and calls it
// with session.mu held. After a crash nothing of it is left: clients open theirs anew.
type opened[T any] struct {
	byRequest map[uint64]*T
	max       int           // of this connection
	all       *atomic.Int64 // how many there are on all connections
	maxAll    int
}

func newOpened[T any](limit int, all *atomic.Int64, maxAll int) opened[T] {
	return opened[T]{byRequest: map[uint64]*T{}, max: limit, all: all, maxAll: maxAll}
}

// add keeps v until remove is called. It returns false and keeps nothing if a limit is reached, and an error if the
// number is taken.
func (o *opened[T]) add(request uint64, v *T) (bool, error) {
	switch {
	case o.byRequest[request] != nil:
		return false, errNumberTaken
	case len(o.byRequest) >= o.max:
		return false, nil
	case o.all.Add(1) > int64(o.maxAll):
		o.all.Add(-1)
		return false, nil
	}
	o.byRequest[request] = v
	return true, nil
}

// remove removes what add has added.
func (o *opened[T]) remove(request uint64) {
	delete(o.byRequest, request)
	o.all.Add(-1)
}
