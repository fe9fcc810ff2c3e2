package scrub

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"time"

	"penstock/batch"
	"penstock/internal/meta"
	"penstock/internal/node/errs"
	"penstock/internal/node/message"
	"penstock/internal/node/platform"
	"penstock/replicate/wire"
	"penstock/segment"
)

const (
	// verifySpan is roughly how long one call of Compare works.
	verifySpan = time.Second
	// maxVerifyRate bounds how many bytes per second Compare reads of each copy.
	maxVerifyRate = 16 << 20
	// verifyBytes is how much of each copy is compared at once.
	verifyBytes = 1 << 20
	// maxVerifyRounds bounds the rounds of askAll. It is more than all copies need to agree on one range.
	maxVerifyRounds = 64
)

// ErrRequest says that this version does not understand another node's request to verify a copy.
var ErrRequest = errors.New("engine: what is to be verified is not said as it should be")

// Verified is the result of one call of Compare.
type Verified struct {
	Next  segment.Offset `json:"next"` // the next call continues here
	Done  bool           `json:"done"` // everything that was committed when Compare looked has been compared
	Bytes int64          `json:"bytes"`
	Nodes []string       `json:"nodes"` // the in-sync replicas whose copies were compared
	Found []Difference   `json:"found,omitempty"`
}

// Difference is a range of the log in which the copies differ.
type Difference struct {
	From  segment.Offset `json:"from"`
	To    segment.Offset `json:"to"`
	First message.ID     `json:"first_id"` // in the leader's copy, or in another readable one; 0: no copy is readable
	Count uint32         `json:"count"`    // of the first batch
	// Damaged are the nodes whose copy does not verify; such a copy is repaired from a readable replica. Differing are
	// the nodes whose copy verifies but differs from the leader's, which neither a crash nor damage explains.
	Damaged   []string `json:"damaged,omitempty"`
	Differing []string `json:"differing,omitempty"`
}

// ReadCopy reads and verifies a piece of this node's copy from the disk. committed is the end of the committed part of
// the copy.
func ReadCopy(log *segment.Log, committed segment.Offset, q wire.VerifyRequest) (*wire.VerifyAnswer, error) {
	if q.Max < 1 || q.Max > verifyBytes {
		return nil, ErrRequest
	}
	a := &wire.VerifyAnswer{Committed: committed, Next: q.At}
	a.Start, _, _ = log.Start()
	to := a.Committed
	if q.To != 0 {
		to = q.To
	}
	c := segment.NewChecker()
	defer c.Close()
	for a.Next < to && a.Next-q.At < segment.Offset(q.Max) || a.Next < q.To {
		run, err := log.Check(c, a.Next, min(segment.CheckBytes, q.Max), to)
		if err != nil {
			var bad *segment.CorruptError
			if errors.As(err, &bad) {
				a.Bad, a.BadFrom, a.BadTo = true, a.Next, behindDamage(log, a.Next)
			}
			switch {
			case a.Next > q.At:
			case a.Bad:
				a.Damaged = a.BadTo
			case errors.Is(err, segment.ErrBelowStart), errors.Is(err, segment.ErrAtEnd), errors.Is(err, segment.ErrPastEnd):
			default:
				return nil, err
			}
			break
		}
		if run.Mended {
			a.Bad, a.BadFrom, a.BadTo = true, a.Next, run.Next
		}
		if a.Next == q.At {
			a.First, a.Count = run.First.FirstID, run.First.Count
		}
		a.Next = run.Next
	}
	a.Sum = c.Sum()
	return a, nil
}

// Comparison holds what a comparison of the copies of one partition needs. The engine makes one per call of
// Engine.VerifySome. The functions are called without a lock, on the goroutine of Compare.
type Comparison struct {
	Host  platform.Host
	Log   *slog.Logger
	Topic string // the topic's name
	ID    meta.PartitionID
	// Ask asks a node, possibly this one, about its copy; the node calls ReadCopy.
	Ask func(ctx context.Context, n *meta.Node, q wire.VerifyRequest) (*wire.VerifyAnswer, error)
	// Sleep waits for d. It returns an error if ctx ends or the engine closes meanwhile.
	Sleep func(ctx context.Context, d time.Duration) error
}

// Compare compares the copies of a partition at its in-sync replicas, which s names, from offset at on. It works for
// about a second at a bounded rate; see Engine.VerifySome.
func (c Comparison) Compare(ctx context.Context, s *meta.Snapshot, at segment.Offset) (*Verified, error) {
	v := &verification{Comparison: c, out: &Verified{Next: at}}
	if err := v.choose(s); err != nil {
		return nil, err
	}
	began := c.Host.Instant()
	for !v.out.Done && (c.Host.Since(began) < verifySpan || len(v.damage) > 0) {
		before := v.out.Bytes
		err := v.round(ctx)
		if v.noted(ctx); err != nil && len(v.out.Found) == 0 {
			return nil, err
		} else if err != nil {
			return v.out, nil // do not lose the differences; the caller continues from Next
		}
		if c.Sleep(ctx, time.Duration(v.out.Bytes-before)*time.Second/maxVerifyRate) != nil {
			return v.out, ctx.Err()
		}
	}
	return v.out, nil
}

// verification is the state of one call of Compare. One goroutine uses it.
type verification struct {
	Comparison
	nodes  []*meta.Node // the leader first
	out    *Verified
	damage []damagedRange // damage that out does not report yet
}

// damagedRange is damage that a node found in its copy. A follower repairs damage at once, so the next query may not
// find it.
type damagedRange struct {
	node     *meta.Node
	from, to segment.Offset
}

// choose picks the nodes to compare: the leader and the live members of the ISR.
func (v *verification) choose(s *meta.Snapshot) error {
	row := s.Partitions.Get(v.ID)
	if row == nil || s.Nodes[row.State.Leader] == nil || !s.Nodes[row.State.Leader].Live {
		return errs.ErrNoLeader
	}
	v.nodes = append(v.nodes, s.Nodes[row.State.Leader])
	for _, m := range row.State.ISR {
		if n := s.Nodes[m.Node]; n != nil && n.Live && m.Node != row.State.Leader {
			v.nodes = append(v.nodes, n)
		}
	}
	for _, n := range v.nodes {
		v.out.Nodes = append(v.out.Nodes, n.Name)
	}
	return nil
}

// ask calls Ask and notes the damage that the answer reports.
func (v *verification) ask(ctx context.Context, n *meta.Node, q wire.VerifyRequest) (*wire.VerifyAnswer, error) {
	a, err := v.Ask(ctx, n, q)
	if a != nil && a.Bad {
		v.damage = append(v.damage, damagedRange{n, a.BadFrom, a.BadTo})
	}
	return a, err
}

// noted reports damage before Next that no difference covers, because it was repaired before the comparison reached it.
// Another node supplies the first batch of each range.
func (v *verification) noted(ctx context.Context) {
	for {
		i := slices.IndexFunc(v.damage, func(b damagedRange) bool { return v.out.Done || b.from < v.out.Next })
		if i < 0 {
			return
		}
		bad := v.damage[i]
		v.removeDamage(bad.node, bad.from)
		d := Difference{From: bad.from, To: bad.to, Damaged: []string{bad.node.Name}}
		for _, n := range v.nodes {
			if n.ID == bad.node.ID {
				continue
			}
			if a, err := v.ask(ctx, n, wire.VerifyRequest{At: bad.from, Max: 1}); err == nil && a.Count > 0 {
				d.First, d.Count, d.To = batch.MakeID(v.ID.Partition, a.First), a.Count, max(d.To, a.Next)
				break
			}
		}
		v.report(d)
	}
}

// removeDamage removes the noted damage of a node at one offset.
func (v *verification) removeDamage(n *meta.Node, from segment.Offset) {
	v.damage = slices.DeleteFunc(v.damage, func(b damagedRange) bool { return b.node.ID == n.ID && b.from == from })
}

// askAll asks every node about [at, to), and repeats the questions with a smaller to until all answers cover the same
// range.
func (v *verification) askAll(ctx context.Context, at, to segment.Offset, most int) ([]*wire.VerifyAnswer, error) {
	for range maxVerifyRounds {
		var all []*wire.VerifyAnswer
		end := to
		for _, n := range v.nodes {
			a, err := v.ask(ctx, n, wire.VerifyRequest{At: at, To: end, Max: most})
			if err != nil {
				return nil, err
			}
			if all = append(all, a); a.Damaged == 0 && (end == 0 || a.Next < end) {
				end = a.Next
			}
		}
		same := func(a *wire.VerifyAnswer) bool { return a.Damaged == 0 && a.Next != end }
		if end == to || !slices.ContainsFunc(all, same) {
			return all, nil
		}
		to = end
	}
	return nil, errors.New("engine: the copies change faster than they can be compared; try again")
}

// round compares one piece of the copies and advances Next.
func (v *verification) round(ctx context.Context) error {
	at := v.out.Next
	all, err := v.askAll(ctx, at, 0, verifyBytes)
	if err != nil {
		return err
	}
	start, damaged := at, segment.Offset(0)
	for _, a := range all {
		start, damaged = max(start, a.Start), max(damaged, a.Damaged)
	}
	lead := all[0]
	switch {
	case start > at: // retention
		v.out.Next = start
	case damaged > 0:
		v.found(at, damaged, all)
		v.out.Next = damaged
	case lead.Next == at:
		v.out.Done = true
	case !slices.ContainsFunc(all, func(a *wire.VerifyAnswer) bool { return a.Sum != lead.Sum }):
		v.out.Bytes += int64(lead.Next - at)
		v.out.Next = lead.Next
	default:
		v.out.Bytes += int64(lead.Next - at)
		v.out.Next = lead.Next
		return v.narrow(ctx, at)
	}
	v.out.Done = v.out.Done || v.out.Next >= lead.Committed
	return nil
}

// narrow reports the first batch at or behind at in which the copies differ. There is one before v.out.Next.
func (v *verification) narrow(ctx context.Context, at segment.Offset) error {
	for at < v.out.Next {
		all, err := v.askAll(ctx, at, 0, 1) // one batch
		if err != nil {
			return err
		}
		for _, a := range all {
			if a.Damaged > 0 || a.Sum != all[0].Sum {
				v.found(at, max(all[0].Next, a.Damaged), all)
				return nil
			}
		}
		if all[0].Next == at {
			return nil // the log was cut meanwhile
		}
		at = all[0].Next
	}
	return nil
}

// found reports a difference in [from, to), built from the nodes' answers about that range.
func (v *verification) found(from, to segment.Offset, all []*wire.VerifyAnswer) {
	d := Difference{From: from, To: to}
	var lead *wire.VerifyAnswer
	for i, a := range all {
		switch {
		case a.Damaged > 0:
			d.Damaged = append(d.Damaged, v.nodes[i].Name)
			v.removeDamage(v.nodes[i], from)
		case lead == nil:
			lead, d.First, d.Count = a, batch.MakeID(v.ID.Partition, a.First), a.Count
		case a.Sum != lead.Sum:
			d.Differing = append(d.Differing, v.nodes[i].Name)
		}
	}
	v.report(d)
}

// report adds a difference to the result and to the log.
func (v *verification) report(d Difference) {
	v.out.Found = append(v.out.Found, d)
	v.Log.Error("copies of a partition differ: what does not verify is repaired from a replica that reads back; "+
		"about copies that verify and differ, write to the maintainers and keep the directories",
		"topic", v.Topic, "partition", v.ID.Partition, "from", d.From, "to", d.To, "first_id", d.First,
		"damaged", d.Damaged, "differing", d.Differing)
}
