package cluster

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"

	"penstock/internal/meta"
)

// One process holds a node's name. When another one wants it while the row of the name has a living process, these
// decide: whether the newcomer's directory is the one that the living process registered with, and what is to be found
// at the living one's address.
//
//	that address                         the directory      the newcomer
//	the row's process answers            any                is refused, and both are shown
//	nobody is there, or the newcomer     not unknown        takes over at once: kill -9 and restart
//	nobody is there, or the newcomer     unknown            waits until the lease ends
//	silence                              any                waits until the lease ends
//
// The process of an unknown directory waits although nobody is at the address, because its original or its copy may
// live elsewhere. The process that is replaced hears of it through its watch, and stops serving at once.

// claimed says what a newcomer may do about a living process of its name.
type claimed int

const (
	takeOver claimed = iota
	refused
	awaitLease
)

// claim decides about a name whose process holds a lease. It has no side effects.
func claim(life meta.Life, holder meta.Holder) claimed {
	switch {
	case holder == meta.HolderAnswers:
		return refused
	case holder == meta.HolderGone && life != meta.LifeUnknown:
		return takeOver
	}
	return awaitLease
}

// heldError says that another process has the name.
type heldError struct {
	row    *meta.Node
	own    string // the newcomer's address
	silent bool   // the other process may be gone: its lease may end
}

func (e *heldError) since() string {
	if e.row.SinceMs == 0 {
		return "an unknown time"
	}
	return time.UnixMilli(e.row.SinceMs).UTC().Format(time.RFC3339)
}

func (e *heldError) Error() string {
	says := "it answers. Stop that one, or give this one another node-id and an empty directory"
	if e.silent {
		says = "it does not answer, and its lease does not end. Find out what runs there, and stop it"
	}
	return fmt.Sprintf("cluster: node %q has a process already, at %s since %s: %s (this one is at %s): %v",
		e.row.Name, e.row.Peer, e.since(), says, e.own, meta.ErrNameHeld)
}

func (e *heldError) Unwrap() error { return meta.ErrNameHeld }

// claimName returns nil if r's process may take the name. row is what the store has under it; nil: nothing. It changes
// nothing.
func (s *store) claimName(ctx context.Context, st *state, r *meta.Registration, row *meta.Node, life meta.Life) error {
	if row == nil || !row.Live || row.Boot == r.Node.Boot || row.Boot == uuid.Nil || r.Holder == nil {
		return nil
	}
	switch claim(life, r.Holder(ctx, row, st.snap.Cluster)) {
	case refused:
		return &heldError{row: row, own: r.Node.Peer}
	case awaitLease:
		return &heldError{row: row, own: r.Node.Peer, silent: true}
	}
	return nil
}
