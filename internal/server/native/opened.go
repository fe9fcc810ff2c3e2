package native

import (
	"errors"

	"penstock/internal/node/errs"
	"penstock/internal/shares"
)

var errNumberTaken = errors.New("the request has the number of one whose reader or subscription is open")

// opened has the readers, or the subscriptions, that one client has opened and not ended, by the number of the request
// that opened each. It keeps the limits of the connection, of the node, and of the token or address that the node
// allows a share. A session has one of each kind, and calls it with session.mu held. After a crash nothing of it is
// left: clients open theirs anew.
type opened[T any] struct {
	what      string // readers or subscriptions
	byRequest map[uint64]*T
	max       int            // of this connection
	all       *shares.Budget // those of all connections
	maxAll    int
}

func newOpened[T any](what string, limit int, all *shares.Budget, maxAll int) opened[T] {
	return opened[T]{what: what, byRequest: map[uint64]*T{}, max: limit, all: all, maxAll: maxAll}
}

// add keeps v until remove is called, as one of who's. If a limit is reached, it returns that and keeps nothing. It
// returns an error if the number is taken.
func (o *opened[T]) add(who string, request uint64, v *T) (*errs.LimitError, error) {
	if o.byRequest[request] != nil {
		return nil, errNumberTaken
	}
	if n := len(o.byRequest) + 1; n > o.max {
		return &errs.LimitError{
			What: "with this one the number of the connection's open " + o.what, Value: n, Most: o.max,
		}, nil
	}
	switch err := o.all.TryTake(who, 1); {
	case errors.Is(err, shares.ErrShare):
		return &errs.LimitError{
			What: "with this one the number of open " + o.what + " of this token or address", Value: o.all.Share() + 1,
			Most: o.all.Share(),
		}, nil
	case err != nil:
		return &errs.LimitError{
			What: "with this one the number of open " + o.what + " of all connections", Value: o.maxAll + 1, Most: o.maxAll,
		}, nil
	}
	o.byRequest[request] = v
	return nil, nil
}

// remove removes what add has added for who.
func (o *opened[T]) remove(who string, request uint64) {
	delete(o.byRequest, request)
	o.all.Give(who, 1)
}
