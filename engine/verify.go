package engine

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"penstock/engine/core"
	"penstock/engine/meta"
	"penstock/replicate/wire"
	"penstock/segment"
)

const (
	// verifySpan is about how long one call of VerifySome works.
	verifySpan = time.Second
	// maxVerifyRate bounds what it reads of each copy, in bytes per second.
	maxVerifyRate = 16 << 20
	// verifyBytes is how much of each copy is compared at once.
	verifyBytes = 1 << 20
	// maxVerifyRounds bounds askAll. It is more than all copies need to agree on the same range.
	maxVerifyRounds = 64
)

// Verified is the result of one call of VerifySome.
type Verified struct {
	Next  segment.Offset `json:"next"` // where the next call continues
	Done  bool           `json:"done"` // everything that was committed when it looked has been compared
	Bytes int64          `json:"bytes"`
	Nodes []string       `json:"nodes"` // whose copies were compared: the in-sync replicas
	Found []Difference   `json:"found,omitempty"`
}

// Difference is a run of messages in which copies differ.
type Difference struct {
	From  segment.Offset `json:"from"`
	To    segment.Offset `json:"to"`
	First ID             `json:"first_id"` // of the leader's copy, or of another one that can be read; 0: none can
	Count uint32         `json:"count"`    // of the first batch
	// Damaged are the nodes whose copy does not verify; it is repaired from a replica that can be read. Differing are the
	// nodes whose copy verifies and differs from the leader's, which neither a crash nor damage explains.
	Damaged   []string `json:"damaged,omitempty"`
	Differing []string `json:"differing,omitempty"`
}

// verifyLocal reads and verifies a piece of this node's copy from the disk.
func (t *Topic) verifyLocal(op wire.Operation) (*wire.VerifyAnswer, error) {
	q := op.Verify
	if q == nil || len(op.Partitions) != 1 || int(op.Partitions[0]) >= t.Partitions() || q.Max < 1 || q.Max > verifyBytes {
		return nil, fmt.Errorf("engine: what is to be verified is not said as it should be")
	}
	pt := t.partitions()[op.Partitions[0]]
	if !pt.rep.present() { // pt.Log() is set under the replica's lock; a present copy has a log
		return nil, fmt.Errorf("engine: the node has no copy of partition %d", pt.Number())
	}
	a := &wire.VerifyAnswer{Committed: pt.committedEnd(), Next: q.At}
	a.Start, _, _ = pt.Log().Start()
	to := a.Committed
	if q.To != 0 {
		to = q.To
	}
	c := segment.NewChecker()
	defer c.Close()
	for a.Next < to && a.Next-q.At < segment.Offset(q.Max) || a.Next < q.To {
		run, err := pt.Log().Check(c, a.Next, min(segment.CheckBytes, q.Max), to)
		if err != nil {
			var bad *segment.CorruptError
			if errors.As(err, &bad) {
				a.Bad, a.BadFrom, a.BadTo = true, a.Next, behindDamage(pt.Log(), a.Next)
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

// VerifySome compares the bytes that the in-sync replicas of a partition have from offset at on. It works for about a
// second at a bounded rate, while the cluster serves. Each node reads its own copy from its disk and verifies it;
// damage is isolated and repaired as if a reader had met it. The caller repeats it with Next until Done; 0 begins at
// the oldest bytes that all copies have. A single node has one copy only, and gets ErrOptions.
func (e *Engine) VerifySome(ctx context.Context, topic string, partition uint32, at segment.Offset) (*Verified, error) {
	t, ok := e.LookupTopic(topic)
	if !ok || int(partition) >= t.Partitions() {
		return nil, ErrNoTopic
	}
	return e.members.verifySome(ctx, t, partition, at)
}

func (cn *clusterNode) verifySome(
	ctx context.Context, t *Topic, partition uint32, at segment.Offset,
) (*Verified, error) {
	e := cn.e
	v := &verification{cn: cn, t: t, partition: partition, out: &Verified{Next: at}}
	v.query = v.queryNode
	if err := v.choose(); err != nil {
		return nil, err
	}
	began := e.host.Instant()
	for !v.out.Done && (e.host.Since(began) < verifySpan || len(v.damage) > 0) {
		before := v.out.Bytes
		err := v.round(ctx)
		if v.noted(ctx); err != nil && len(v.out.Found) == 0 {
			return nil, err
		} else if err != nil {
			return v.out, nil // so that the differences are not lost; the caller continues from Next
		}
		if cn.sleep(ctx, time.Duration(v.out.Bytes-before)*time.Second/maxVerifyRate) != nil {
			return v.out, ctx.Err()
		}
	}
	return v.out, nil
}

// verification is the state of one call of VerifySome. One goroutine uses it.
type verification struct {
	cn        *clusterNode
	t         *Topic
	partition uint32
	nodes     []*meta.Node // the leader first
	out       *Verified
	damage    []damagedRange // damage that is not in out yet
	// query asks one node, which may be this one.
	query func(ctx context.Context, n *meta.Node, q wire.VerifyRequest) (*wire.VerifyAnswer, error)
}

// damagedRange is damage that a node met in its copy. A follower repairs it at once, so the next query may not find it.
type damagedRange struct {
	node     *meta.Node
	from, to segment.Offset
}

// choose picks the nodes to compare: the leader, and the live members of the ISR.
func (v *verification) choose() error {
	s := v.cn.store.Snapshot()
	row := s.Partitions[meta.PartitionID{Topic: v.t.uuid, Partition: v.partition}]
	if row == nil || s.Nodes[row.State.Leader] == nil || !s.Nodes[row.State.Leader].Live {
		return ErrNoLeader
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

// ask calls query and notes the damage that the answer reports.
func (v *verification) ask(ctx context.Context, n *meta.Node, q wire.VerifyRequest) (*wire.VerifyAnswer, error) {
	a, err := v.query(ctx, n, q)
	if a != nil && a.Bad {
		v.damage = append(v.damage, damagedRange{n, a.BadFrom, a.BadTo})
	}
	return a, err
}

func (v *verification) queryNode(ctx context.Context, n *meta.Node, q wire.VerifyRequest) (*wire.VerifyAnswer, error) {
	op := wire.Operation{Kind: wire.OpVerify, Topic: v.t.uuid, Partitions: []uint32{v.partition}, Verify: &q}
	if n.ID == v.cn.self.ID {
		return v.t.verifyLocal(op)
	}
	ctx, cancel := v.cn.e.host.WithTimeout(ctx, v.cn.e.opts.PublishTimeout)
	defer cancel()
	result, err := v.cn.ops.Ask(ctx, n.ID, op)
	if err != nil {
		return nil, fmt.Errorf("node %s: %w", n.Name, err)
	}
	a := new(wire.VerifyAnswer)
	if err := wire.DecodeResult(result, a); err != nil {
		return nil, fmt.Errorf("node %s: %w", n.Name, err)
	}
	return a, nil
}

// noted reports the damage that lies before Next and is in no difference: it was repaired before the comparison reached
// it. The first batch of each range comes from another node.
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
				d.First, d.Count, d.To = core.MakeID(v.partition, a.First), a.Count, max(d.To, a.Next)
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

// askAll asks every node about [at, to), and repeats that with a smaller to until all answers are about the same range.
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

// narrow finds the first batch at or behind at in which the copies differ; there is one before v.out.Next.
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

// found makes a difference of the nodes' answers about [from, to).
func (v *verification) found(from, to segment.Offset, all []*wire.VerifyAnswer) {
	d := Difference{From: from, To: to}
	var lead *wire.VerifyAnswer
	for i, a := range all {
		switch {
		case a.Damaged > 0:
			d.Damaged = append(d.Damaged, v.nodes[i].Name)
			v.removeDamage(v.nodes[i], from)
		case lead == nil:
			lead, d.First, d.Count = a, core.MakeID(v.partition, a.First), a.Count
		case a.Sum != lead.Sum:
			d.Differing = append(d.Differing, v.nodes[i].Name)
		}
	}
	v.report(d)
}

// report adds a difference to the result and to the log.
func (v *verification) report(d Difference) {
	v.out.Found = append(v.out.Found, d)
	v.cn.log.Error("copies of a partition differ: what does not verify is repaired from a replica that reads back; "+
		"about copies that verify and differ, write to the maintainers and keep the directories",
		"topic", v.t.name, "partition", v.partition, "from", d.From, "to", d.To, "first_id", d.First, "damaged", d.Damaged,
		"differing", d.Differing)
}
