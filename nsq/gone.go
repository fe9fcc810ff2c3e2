package nsq

import (
	"errors"
	"sync"
	"time"

	"penstock/engine"
)

// NSQ's tools delete a topic or a channel at every nsqlookupd and then at every nsqd, since each has its own. Here the first deletes it for all of
// them, and the others would answer that there is none, which nsqadmin shows as a warning. So each of a node's services answers one deletion
// of what is gone for a moment as if it had done it; the next one is told the truth, as by nsqd.

// maxDeletionCount bounds what is remembered of answers.
const maxDeletionCount = 4096

// deletions are when a service answered last that a name is deleted.
type deletions struct {
	mu sync.Mutex
	at map[string]time.Time
}

// answer is what a deletion that began then and ended with err is answered with.
func (d *deletions) answer(name string, began time.Time, err error) error {
	var gone *engine.GoneError
	deletedNow := err == nil
	if !deletedNow && !errors.As(err, &gone) {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	// How long ago counts from before the question was sent: never later than it was, or who deletes twice here would hear OK twice.
	if last, ok := d.at[name]; !deletedNow && ok && !began.Add(-gone.Ago).After(last) {
		return err
	}
	if d.at == nil || len(d.at) >= maxDeletionCount {
		d.at = map[string]time.Time{}
	}
	d.at[name] = time.Now()
	return nil
}
