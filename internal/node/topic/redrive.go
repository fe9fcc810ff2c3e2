package topic

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"penstock/batch"
	"penstock/internal/node/channel"
	"penstock/internal/node/delivery"
	"penstock/internal/node/errs"
	"penstock/internal/node/fold"
	"penstock/internal/node/message"
	"penstock/replicate/wire"
)

// Errors of Redrive. Nothing was sent back since the number that Redrive returns with them.
var (
	ErrRedriving = errors.New("engine: another redrive of this channel is under way, and each dead letter is sent back " +
		"once: try again when it has ended, or, if its node died, in a minute")
	ErrRedriveSkips = errors.New("engine: the channel discards its messages (skip), and would discard its dead letters, " +
		"too; they stay where they are: unskip the channel first")
)

// redrive is one call of Redrive.
type redrive struct {
	c     *Channel
	by    string // takes the channel's claim
	left  int
	only  []message.ID  // dead letters by their origin ids; nil: all
	wants *fold.Matcher // by their headers; nil: all
	moved int
	kept  int   // dead letters that cannot be published
	why   error // of the last one
}

// Redrive sends up to max of the channel's dead letters back: it publishes them to the channel's topic, for this
// channel only, and confirms them in the channel "redrive" of the dead-letter topic. It finds them in the topic of the
// channel's settings and in every other one that has a channel "redrive", because the settings may have named another
// topic before. It returns how many it has sent back, also together with an error. After a crash or an error between
// the two steps, a dead letter may be sent back twice; its OriginIDHeader identifies it. A dead letter that cannot be
// published stays where it is, and the others go on; then the error says how many stay, and why.
//
// Of several calls for one channel, at whatever nodes, one works and the others return ErrRedriving. If the channel
// skips its messages, Redrive returns ErrRedriveSkips.
func (c *Channel) Redrive(ctx context.Context, max int) (moved int, err error) {
	return c.redrive(ctx, &redrive{left: max})
}

// RedriveOnly is Redrive for the dead letters with these origin ids, which the messages had in the channel's topic. One
// that is not there, or no longer, is not counted.
func (c *Channel) RedriveOnly(ctx context.Context, ids ...message.ID) (moved int, err error) {
	return c.redrive(ctx, &redrive{left: len(ids), only: ids})
}

// RedriveWanted is Redrive for the dead letters whose headers the filter wants, those of the engine among them.
func (c *Channel) RedriveWanted(ctx context.Context, max int, f fold.Filter) (moved int, err error) {
	m, err := f.Matcher()
	if err != nil {
		return 0, err
	}
	return c.redrive(ctx, &redrive{left: max, wants: m})
}

func (c *Channel) redrive(ctx context.Context, r *redrive) (moved int, err error) {
	s, err := c.ReadSettings(ctx)
	if err != nil {
		return 0, err
	}
	r.c, r.by = c, c.env.Host.NewUUID().String()
	if err := r.claim(ctx); err != nil {
		return 0, err
	}
	defer r.giveBack(ctx)
	first := s.DeadLetter
	if first == "" {
		first = c.t.Name() + fold.DeadLetterSuffix
	}
	for _, t := range c.env.deadLetterTopics(ctx, first) {
		if err := r.from(ctx, t); err != nil {
			return r.moved, err
		}
	}
	if r.kept > 0 {
		return r.moved, fmt.Errorf("engine: dead letters that cannot be sent back: %d; they stay where they are: %w",
			r.kept, r.why)
	}
	return r.moved, nil
}

// deadLetterTopics returns the topic of that name, if it exists, and all others that have the channel redriveChannel.
func (s *Shared) deadLetterTopics(ctx context.Context, first string) (ts []*Topic) {
	if t, ok := s.Catalog.LookupTopic(first); ok {
		ts = append(ts, t)
	}
	for _, t := range s.Catalog.Topics() {
		if t.Name() == first {
			continue
		}
		// A topic whose leaders do not answer cannot be searched now, and most topics have no dead letters of the channel.
		if names, err := t.ReadChannelNames(ctx); err == nil && slices.Contains(names, redriveChannel) {
			ts = append(ts, t)
		}
	}
	return ts
}

// claim takes or renews the claim on the channel's dead letters, which is at the leader of partition 0.
func (r *redrive) claim(ctx context.Context) error {
	var claim wire.RedriveClaim
	heard := false
	op := wire.Operation{Kind: wire.OpRedrive, Claim: r.by, Flag: true}
	err := r.c.ask(ctx, op, firstPartition, func(result []byte) error {
		heard = true
		return wire.DecodeResult(result, &claim)
	})
	switch {
	case err != nil:
		return err
	case !heard:
		return errs.ErrNoChannel
	case !claim.Taken:
		return ErrRedriving
	case claim.Skipped:
		return ErrRedriveSkips
	}
	return nil
}

// giveBack gives the claim back, also if the caller does not wait any more. If that fails, the claim ends by itself.
func (r *redrive) giveBack(ctx context.Context) {
	op := wire.Operation{Kind: wire.OpRedrive, Claim: r.by}
	_ = r.c.ask(context.WithoutCancel(ctx), op, firstPartition, nil)
}

func firstPartition(n uint32) bool { return n == 0 }

// from sends dead letters of one dead-letter topic back.
func (r *redrive) from(ctx context.Context, t *Topic) error {
	store, ok := t.LookupChannel(redriveChannel)
	if !ok {
		store = t.ChannelElsewhere(redriveChannel)
	}
	req := &wire.PeekRequest{OriginTopic: r.c.t.Name(), OriginChannel: r.c.name}
	for r.left > 0 {
		if err := r.claim(ctx); err != nil {
			return err
		}
		var dead []wire.PeekedMessage
		if req.Count = min(r.left, maxRedriveCount); r.picks() {
			req.Count = maxRedriveCount
		}
		op := wire.Operation{Kind: wire.OpPeek, Peek: req}
		err := store.ask(ctx, op, nil, collect(&dead))
		if errors.Is(err, errs.ErrNoChannel) || err == nil && len(dead) == 0 {
			return nil
		}
		if err != nil {
			return err
		}
		chosen := r.chosen(dead)
		if err := r.sendBack(ctx, store, chosen); err != nil {
			return err
		}
		if !r.picks() {
			dead = chosen // the others are asked for again
		}
		for _, m := range dead {
			req.Next = delivery.GoOnAfter(req.Next, m.ID)
		}
	}
	return nil
}

// picks says whether not all dead letters are to be sent back.
func (r *redrive) picks() bool { return r.only != nil || r.wants != nil }

// chosen returns those of the listed dead letters that are to be sent back.
func (r *redrive) chosen(dead []wire.PeekedMessage) []wire.PeekedMessage {
	if !r.picks() {
		return dead[:min(len(dead), r.left)]
	}
	var out []wire.PeekedMessage
	for _, m := range dead {
		if r.only == nil {
			if len(out) < r.left && r.wants.Match(m.Headers) {
				out = append(out, m)
			}
			continue
		}
		if slices.ContainsFunc(m.Headers, func(h message.Header) bool {
			id, err := batch.ParseID(h.Value)
			return string(h.Key) == channel.OriginIDHeader && err == nil && slices.Contains(r.only, id)
		}) {
			out = append(out, m)
		}
	}
	return out
}

// sendBack publishes dead letters to the channel's topic, and confirms those that are stored there in store.
func (r *redrive) sendBack(ctx context.Context, store *Channel, dead []wire.PeekedMessage) (err error) {
	ms := make([]message.Outgoing, len(dead))
	for i := range dead {
		headers := channel.WithRoom(channel.WithoutReserved(dead[i].Headers))
		headers = append(headers, channel.NewHeader(channel.ChannelHeader, r.c.name))
		ms[i] = message.Outgoing{Body: dead[i].Body, Headers: headers}
	}
	var ids []message.ID
	for i, perr := range r.c.t.publishEach(ctx, ms) {
		switch {
		case perr == nil:
			ids = append(ids, dead[i].ID)
		case channel.AboutMessage(perr):
			r.kept, r.why = r.kept+1, perr
		default:
			err = fmt.Errorf("engine: a dead letter could not be sent back, it stays where it is: %w", perr)
		}
	}
	if len(ids) == 0 {
		return err
	}
	r.moved += len(ids)
	r.left -= len(ids)
	return errors.Join(err, store.Finish(ctx, ids...))
}
