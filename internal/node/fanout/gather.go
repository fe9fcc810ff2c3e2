package fanout

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"

	"penstock/internal/node/errs"
	"penstock/replicate"
	"penstock/replicate/wire"
)

// Topic is the topic of an operation, as this node sees it. The engine implements it; any goroutine may call it.
type Topic interface {
	ID() uuid.UUID
	Name() string
	// Deleted says whether this node has heard that the topic was deleted. Then nobody leads it any more.
	Deleted() bool
	// Leaders returns the leader of each partition, indexed by partition number; 0: this node knows of none.
	Leaders() []replicate.NodeID
	// Execute executes op on this node, for the partitions that op names. It returns errs.ErrNoLeader if this node does
	// not lead all of them.
	Execute(ctx context.Context, op wire.Operation) (result []byte, err error)
}

// OnAllLeaders executes op on every node that leads a partition of t, and returns when all of them have committed it.
// While leaders change it repeats op, until ctx ends or Node.Timeout has passed.
func (o *Operations) OnAllLeaders(ctx context.Context, t Topic, op wire.Operation) error {
	return o.Gather(ctx, t, op, nil, nil)
}

// Gather is OnAllLeaders for an operation with a result. It passes the result of each leader to take, unless take is
// nil. Together the results cover every partition exactly once. If only is not nil, op concerns only the partitions
// whose numbers it selects. It returns errs.ErrDeleted if the topic is deleted before all have answered.
func (o *Operations) Gather(
	ctx context.Context, t Topic, op wire.Operation, only func(partition uint32) bool, take func(result []byte) error,
) error {
	ctx, cancel := o.host.WithTimeout(ctx, o.n.Timeout())
	defer cancel()
	op.Topic = t.ID()
	var done []bool // by partition, of all that are known so far; true: nothing is left to do for it
	var last error
	for pause := minPause; ; pause = min(2*pause, maxPause) {
		news := o.n.News.Next()
		if t.Deleted() {
			return errs.ErrDeleted
		}
		leaders := t.Leaders()
		for n := uint32(len(done)); int(n) < len(leaders); n++ {
			done = append(done, only != nil && !only(n))
		}
		left, err := o.tryLeaders(ctx, t, op, leaders, done, take)
		if err != nil {
			last = err
		}
		switch {
		case left == 0:
			return nil
		case final(err):
			return err
		}
		o.host.EitherUntil(o.host.Mono()+pause, news, ctx.Done())
		switch {
		case o.peers.Ctx.Err() != nil:
			return errs.ErrClosed
		case ctx.Err() != nil:
			return &undoneError{t.Name(), undone(done), op.Looks(), last}
		}
	}
}

// undoneError is Gather's error when its time ends before every leader has answered. The operation was carried out at
// the partitions that it does not name, and may have been at those that it names, unless it only looks. It matches
// errs.ErrNoLeader and the last error of a leader.
type undoneError struct {
	topic      string
	partitions []int // not empty
	looks      bool  // the operation changes nothing anywhere
	last       error // or nil: nobody was asked
}

func (e *undoneError) Error() string {
	names := make([]string, 0, maxNamed+1)
	for i, n := range e.partitions {
		if i == maxNamed {
			names = append(names, fmt.Sprintf("and %d more", len(e.partitions)-i))
			break
		}
		names = append(names, strconv.Itoa(n))
	}
	noun := "partitions"
	if len(e.partitions) == 1 {
		noun = "partition"
	}
	became := "whether it was done there is not known"
	if e.looks {
		became = "nothing was changed"
	}
	text := fmt.Sprintf("engine: no leader of %s %s of topic %s answered in time: %s; repeat it when the cluster is "+
		"healthy", noun, strings.Join(names, ", "), e.topic, became)
	if e.last == nil || errors.Is(e.last, errs.ErrNoLeader) {
		return text
	}
	return fmt.Sprintf("%s (%v)", text, e.last)
}

func (e *undoneError) Unwrap() []error { return []error{errs.ErrNoLeader, e.last} }

// maxNamed bounds the partitions that one error names.
const maxNamed = 8

// undone returns the partitions that are not done.
func undone(done []bool) (partitions []int) {
	for n, is := range done {
		if !is {
			partitions = append(partitions, n)
		}
	}
	return partitions
}

// Gather asks the leaders in rounds. The next round begins when this node hears of a change, or after a pause, because
// a leader on another node may begin to serve without any news. The pause doubles from round to round.
const (
	minPause = 3 * time.Millisecond // an election takes some milliseconds
	maxPause = 50 * time.Millisecond
)

// tryLeaders asks the leaders of the partitions that are not done, once. It returns how many partitions are not done
// afterwards, and the last error. What one leader has committed, every later leader has too, so a change of leader
// undoes nothing.
func (o *Operations) tryLeaders(
	ctx context.Context, t Topic, op wire.Operation, leaders []replicate.NodeID, done []bool, take func([]byte) error,
) (left int, last error) {
	byNode := map[replicate.NodeID][]uint32{}
	op.Known = len(done)
	for n, to := range leaders {
		if done[n] {
			continue
		}
		left++
		if to != 0 {
			byNode[to] = append(byNode[to], uint32(n))
		}
	}
	for _, to := range slices.Sorted(maps.Keys(byNode)) {
		op.Partitions = byNode[to]
		var err error
		var result []byte
		if to == o.peers.Self {
			result, err = t.Execute(ctx, op)
		} else {
			result, err = o.Ask(ctx, to, op)
		}
		if err == nil && take != nil && len(result) > 0 {
			err = take(result)
		}
		if err != nil {
			if last = err; final(err) {
				return left, err
			}
			continue
		}
		for _, n := range byNode[to] {
			done[n] = true
			left--
		}
	}
	return left, last
}

// finalErrors are errors that a repetition of the operation cannot change.
var finalErrors = []error{
	errs.ErrVersion, errs.ErrSettings, errs.ErrDisk, errs.ErrNoChannel, errs.ErrTooManyProducers, errs.ErrProducerOwner,
	errs.ErrFenced,
}

func final(err error) bool {
	return slices.ContainsFunc(finalErrors, func(f error) bool { return errors.Is(err, f) })
}
