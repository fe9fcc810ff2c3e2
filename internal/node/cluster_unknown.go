package node

import (
	"maps"
	"slices"
	"sync/atomic"

	"github.com/google/uuid"
)

// unknownTopics are the topics of this node's data directory that the cluster neither has nor lists as deleted: the
// metadata are of an earlier moment than the data, or were made anew. Their messages are kept and not served. The
// worker calls set; any goroutine may call names. A crash loses nothing: the next process compares again.
type unknownTopics struct {
	byID  map[uuid.UUID]string
	shown atomic.Pointer[[]string]
}

// set notes that the cluster does not know the topic of this name; "": it does, or has deleted it.
func (u *unknownTopics) set(id uuid.UUID, name string) {
	if u.byID[id] == name {
		return
	}
	if u.byID == nil {
		u.byID = map[uuid.UUID]string{}
	}
	if u.byID[id] = name; name == "" {
		delete(u.byID, id)
	}
	names := slices.Sorted(maps.Values(u.byID))
	u.shown.Store(&names)
}

// names returns the names, sorted; read only.
func (u *unknownTopics) names() []string {
	if names := u.shown.Load(); names != nil {
		return *names
	}
	return nil
}
