package datadir

import (
	"slices"

	"github.com/google/uuid"

	"penstock/internal/meta"
)

// A directory knows its lives: node.json has the boots of the processes that ran on it. The cluster's row of the node
// has the boot of the process that registered last. A process compares the two before it registers, and before it
// raises or serves anything:
//
//	row's boot                                        the directory is
//	registered last here, or tried since              current
//	an older life of the list                         current, and the row is of the past: the metadata are older
//	not in the list                                   an older state of itself, or the original of a copy that ran on
//	there is no row, or no version kept lives for it  not known to be either; it is trusted once
//
// The row also says how far the commit log of the directory went at least (meta.Node.Logged). If the log ends before
// that, the directory is an older state of itself, even if the row's process ran on it: a state that was taken while
// that process ran. The metadata's past goes first: a row of the past may tell of a log that was lost since, which the
// node has dealt with.
//
// A life is in the file before its process registers, so a process that died in between is found either way: the row
// then has the life before it, or this one. That a life is known to be registered is written later. If that is lost,
// more lives count as current than need to, and the metadata's past is not noticed by them.

const (
	// LivesLevel is the feature level from which on a directory keeps its lives.
	LivesLevel = 4
	// MaxLifeCount bounds Node.Lives.
	MaxLifeCount = 64
)

// Life is a process that registered in the cluster with this directory, or was about to.
type Life struct {
	Boot       uuid.UUID `json:"boot"`
	Registered bool      `json:"registered,omitempty"` // it is known that the process registered
}

// lastRegistered returns the index of the last life that is known to have registered, or -1.
func lastRegistered(lives []Life) int {
	for i, l := range slices.Backward(lives) {
		if l.Registered {
			return i
		}
	}
	return -1
}

func lifeOf(lives []Life, boot uuid.UUID) int {
	return slices.IndexFunc(lives, func(l Life) bool { return l.Boot == boot })
}

// judge says what a directory with these lives, oldest first, is to the row that the cluster has of its node; nil:
// none. store is the directory's id, and end the number of the last group of its commit log. It has no side effects.
func judge(lives []Life, store uuid.UUID, end uint64, row *meta.Node) meta.Life {
	if row == nil {
		return meta.LifeFirst
	}
	switch at := lifeOf(lives, row.Boot); {
	case at >= 0 && at < lastRegistered(lives):
		return meta.LifePast
	case row.Store == store && end < row.Logged: // whatever the lives say
	case at >= 0:
		return meta.LifeCurrent
	case len(lives) == 0 && (row.Store != store || row.StoreLevel < LivesLevel):
		return meta.LifeFirst // it began empty, or no version has kept lives for it
	}
	return meta.LifeUnknown
}

// begun returns the lives of a directory whose process boot is about to replace row, which judge gave the verdict v. It
// does not change lives. The oldest lives go if there are too many, but never the last registered one: what was tried
// since counts as current only behind it.
func begun(lives []Life, store uuid.UUID, row *meta.Node, v meta.Life, boot uuid.UUID) []Life {
	next := slices.Clone(lives)
	switch {
	case v == meta.LifeCurrent:
		next[lifeOf(next, row.Boot)].Registered = true
	case v == meta.LifeFirst && row != nil && row.Store == store && row.Boot != uuid.Nil:
		next = append(next, Life{Boot: row.Boot, Registered: true})
	}
	if lifeOf(next, boot) < 0 {
		next = append(next, Life{Boot: boot})
	}
	for len(next) > MaxLifeCount {
		oldest := 0
		if lastRegistered(next) == 0 {
			oldest = 1
		}
		next = slices.Delete(next, oldest, oldest+1)
	}
	return next
}

// registered returns the lives with the mark that boot has registered. It does not change lives.
func registered(lives []Life, boot uuid.UUID) []Life {
	next := slices.Clone(lives)
	if at := lifeOf(next, boot); at >= 0 {
		next[at].Registered = true
	}
	return next
}

// Behind says whether the cluster's row of this node is of a later moment than the directory, whose commit log ends
// with group end, or math.MaxUint64 if that is not known: a process ran that the directory does not know, or it wrote
// more. It is Life as far as it can be told before recovery, for a node that runs a member of the metadata store: an
// older member must not vote. It takes mu.
//
// A directory that never registered says nothing of its age: the row is of the one before it.
func (f *NodeFile) Behind(row *meta.Node, end uint64) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return behind(f.node.Lives, f.node.StoreID, end, row)
}

func behind(lives []Life, store uuid.UUID, end uint64, row *meta.Node) bool {
	if row == nil || row.Store != store && lastRegistered(lives) < 0 {
		return false
	}
	return judge(lives, store, end, row) == meta.LifeUnknown
}
