package cluster

import (
	"cmp"
	"context"
	"errors"

	"penstock/internal/cluster/kv"
	"penstock/internal/meta"
)

// endurance lets one change outlast an election of the store (O21). One goroutine uses it.
//
// A change that got no answer may have been applied. It is tried again only because all its writes depend on conditions
// on the rows that it read: if the first attempt was applied, or still will be, one of the two finds its conditions
// broken and changes nothing. Then the caller looks at the newest state. It must take its own change there for a
// success, and must not report an error that its own change has caused: explain sees to the latter.
type endurance struct {
	s       *store
	ctx     context.Context // the caller's
	bounded context.Context // ends after electionWait; nil: the store has answered every attempt so far
	cancel  context.CancelFunc
	unknown error // the error of the first attempt without an answer: nobody knows whether it was applied
	fresh   bool  // an attempt found too few nodes, and this node has caught up with the store since
}

// endure begins a change. The caller calls end when the change is over.
func (s *store) endure(ctx context.Context) *endurance { return &endurance{s: s, ctx: ctx} }

func (p *endurance) end() {
	if p.cancel != nil {
		p.cancel()
	}
}

// outlast returns nil if the change may be tried again: the store answers again, and this node has heard of everything
// up to that answer. It returns err if the store does not answer within electionWait of the first attempt that failed,
// or if err is not [meta.ErrUnavailable]. Too few nodes are a reason to try once more: this node may not have heard of
// those that joined a moment ago.
func (p *endurance) outlast(err error) error {
	if errors.Is(err, meta.ErrTooFewNodes) && !p.fresh {
		p.fresh = true
		if late := p.s.CatchUp(p.ctx); late != nil {
			return p.outlast(late)
		}
		return nil
	}
	if !errors.Is(err, meta.ErrUnavailable) || errors.Is(err, kv.ErrClosed) || p.ctx.Err() != nil {
		return err
	}
	if p.bounded == nil {
		p.bounded, p.cancel = p.s.withTimeout(p.ctx, electionWait)
	}
	p.unknown = cmp.Or(p.unknown, err)
	for {
		// A linearizable read of one key is answered only by a store that has a leader.
		_, revision, asked := p.s.kv.List(p.bounded, p.s.key(controllerKey))
		switch {
		case asked == nil && p.s.waitRevision(p.bounded, revision) == nil:
			return nil
		case asked == nil:
			return err
		case !errors.Is(asked, kv.ErrUnavailable), p.s.pause(p.bounded, unavailablePause) != nil:
			return err
		}
	}
}

// final is an error with which a change ends, whatever its kind.
type final struct{ error }

// repeat calls attempt until the store has accepted a change (ok), and then waits for its revision; 0: there was
// nothing to change. It repeats while another node is faster than st, and while the store has no leader. It ends the
// change.
func (p *endurance) repeat(attempt func() (st *state, ok bool, revision int64, err error)) error {
	defer p.end()
	for range maxAttemptCount {
		st, ok, revision, err := attempt()
		if last, ends := err.(final); ends {
			return last.error
		}
		switch {
		case err != nil:
			err = p.outlast(err)
		case ok:
			return p.s.waitRevision(p.ctx, revision)
		default:
			err = p.s.waitChange(p.ctx, st)
		}
		if err != nil {
			return err
		}
	}
	return p.explain(meta.ErrConflict)
}

// tried says whether an attempt got no answer, so that what the state shows may be this change's own work.
func (p *endurance) tried() bool { return p.unknown != nil }

// explain returns the error that a change ends with because of the state that it found. After an attempt without an
// answer, that state may be due to the attempt itself, so the outcome stays unknown.
func (p *endurance) explain(err error) error {
	if err != nil && p.tried() {
		return p.unknown
	}
	return err
}
