package web

import (
	"errors"
	"sync"
	"time"

	"penstock/internal/node/fanout"
)

// maxDeletionCount bounds the number of names in a Deletions.
const maxDeletionCount = 4096

// Deletions lets one request to delete a topic or channel succeed although another service has already deleted it.
//
// NSQ's tools delete a topic or channel at every nsqlookupd and then at every nsqd, because in NSQ each of them has its
// own copy. Here the first request deletes it everywhere, and each further request would get "not found", which
// nsqadmin shows as a warning. So each service of a node (nsqd's HTTP interface, nsqlookupd's) has a Deletions. For as
// long as the engine remembers that the name was deleted, the service answers one request as if that request had
// deleted it. The next request gets "not found", as from nsqd.
//
// The zero value is ready for use by any goroutine. It is kept in memory only: after a restart a request gets "not
// found".
type Deletions struct {
	mu sync.Mutex
	// at is when this service last answered that the name was deleted; len(at) ≤ maxDeletionCount.
	at map[string]time.Time
}

// Answer returns the error to send for the deletion of name that began at began and ended with err; nil: success.
func (d *Deletions) Answer(name string, began time.Time, err error) error {
	var gone *fanout.GoneError
	deletedNow := err == nil
	if !deletedNow && !errors.As(err, &gone) {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	// gone.Ago is measured from some moment after the request began. Subtracting it from began therefore gives a time
	// no later than the actual deletion. Erring in that direction is safe: a client that deletes twice at this service
	// must not be told twice that it succeeded.
	if last, ok := d.at[name]; !deletedNow && ok && !began.Add(-gone.Ago).After(last) {
		return err
	}
	if d.at == nil || len(d.at) >= maxDeletionCount {
		d.at = map[string]time.Time{}
	}
	d.at[name] = time.Now()
	return nil
}
