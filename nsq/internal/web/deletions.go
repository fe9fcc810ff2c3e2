package web

import (
	"errors"
	"sync"
	"time"

	"penstock/engine"
)

// maxDeletionCount bounds how many names a Deletions remembers.
const maxDeletionCount = 4096

// Deletions makes the deletion of a topic or channel that is gone already succeed once.
//
// NSQ's tools delete a topic or a channel at every nsqlookupd and then at every nsqd, since each of them has its own.
// Here the first request deletes it everywhere, and the others would be told that there is none, which nsqadmin shows
// as a warning. So each service of a node (nsqd's HTTP interface, nsqlookupd's) has a Deletions and, for as long as the
// engine remembers that the name was deleted, answers one request as if it had done it. The next one is told the truth,
// as by nsqd.
//
// The zero value is ready to use, by any goroutine. It is lost with the process: a request after a restart is told the
// truth.
type Deletions struct {
	mu sync.Mutex
	// at is when this service last answered that a name is deleted; len(at) ≤ maxDeletionCount.
	at map[string]time.Time
}

// Answer is what to answer to a deletion that began at that time and ended with err.
func (d *Deletions) Answer(name string, began time.Time, err error) error {
	var gone *engine.GoneError
	deletedNow := err == nil
	if !deletedNow && !errors.As(err, &gone) {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	// gone.Ago counts back from some moment after the request began. Counted from began, the deletion seems to be at most
	// as late as it was: a client that deletes twice at this service must not be told twice that it did.
	if last, ok := d.at[name]; !deletedNow && ok && !began.Add(-gone.Ago).After(last) {
		return err
	}
	if d.at == nil || len(d.at) >= maxDeletionCount {
		d.at = map[string]time.Time{}
	}
	d.at[name] = time.Now()
	return nil
}
