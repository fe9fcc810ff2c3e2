package cluster

import (
	"context"
	"errors"

	"penstock/internal/cluster/kv"
	"penstock/internal/meta"
)

// control runs on every node, on a goroutine of its own. If there is no controller, it tries to become the controller.
// The controller plans on every change and executes its plan. Every transaction compares the controller's row, so a
// node that wrongly believes to be the controller can change nothing.
func (s *store) control() {
	stuck, seen := map[meta.PartitionID]bool{}, presence{}
	for {
		if s.await(s.ctx, s.opts.ControllerTick, s.wake, nil) == byEnd {
			return
		}
		st, err := s.current()
		if err != nil {
			continue // the node has left
		}
		if err := s.act(st, stuck, seen); err != nil && s.ctx.Err() == nil {
			s.log.Warn("the controller could not do what it has to do, and tries again", "error", err)
		}
	}
}

func (s *store) act(st *state, stuck map[meta.PartitionID]bool, seen presence) error {
	ctx, cancel := s.withTimeout(s.ctx, maxCallTime)
	defer cancel()
	self, boot := s.self()
	if vacant(st) {
		return s.campaign(ctx, st)
	}
	controls := st.controller == (processRow{Node: self, Boot: boot})
	if err := s.tendLevel(ctx, st, controls); err != nil || !controls {
		clear(seen) // times that were measured before another node was the controller say nothing
		return err
	}
	if err := s.tendRebalance(ctx, st, seen); err != nil {
		return err
	}
	now := s.opts.Now()
	sees := view{lost: seen.lost(now, s.opts.MovePatience)}
	sees.apart, _ = s.lookAround(st)
	commands, nobody := plan(st, s.opts.Prefix, now, s.changedOpts.Load().RebalanceMoves, sees)
	s.logStuck(nobody, stuck)
	return s.execute(ctx, st, commands)
}

// logStuck logs each partition that has no leader and cannot get one, once. Partitions that become stuck together share
// one line.
func (s *store) logStuck(nobody []meta.PartitionID, stuck map[meta.PartitionID]bool) {
	var news []meta.PartitionID
	for _, id := range nobody {
		if !stuck[id] {
			news = append(news, id)
		}
	}
	clear(stuck)
	for _, id := range nobody {
		stuck[id] = true
	}
	if len(news) > 0 {
		s.log.Error("nobody of the ISR is alive and whole: the partitions stay without a leader until one comes back; "+
			"nothing is lost, unless an operator forces a leader", "first", news[0], "count", len(news))
	}
}

// execute carries out commands, as many as fit in each transaction. If a transaction is refused, one command whose
// basis has changed would hold up the others, so its commands are then carried out one by one. Commands that were
// refused are planned anew on the newer state.
func (s *store) execute(ctx context.Context, st *state, commands []command) error {
	var newest int64
	conflict := false
	alone := 0 // the commands before it are carried out one by one
	for first := 0; first < len(commands); {
		t, last := s.begin(st), first
		for last < len(commands) && (last == first || first >= alone) && t.add(&commands[last], st) {
			last++
		}
		ok, revision, err := s.txn(ctx, t.conds, t.ops)
		switch {
		case err != nil:
			return err
		case ok:
			newest = revision
			s.logCommands(commands[first:last])
		case last-first > 1:
			alone = last
			continue
		default:
			conflict = true
		}
		first = last
	}
	if conflict {
		if err := s.waitChange(ctx, st); err != nil {
			return err
		}
		poke(s.wake)
	}
	if err := s.waitRevision(ctx, newest); err != nil && !errors.Is(err, errNotJoined) {
		return err
	}
	return nil
}

func (s *store) logCommands(commands []command) {
	counts := map[string]int{}
	for i := range commands {
		counts[commands[i].why]++
	}
	for why, n := range counts {
		s.log.Info("the controller acted", "what", why, "count", n)
	}
}

// transaction collects commands and the rows that they compare.
type transaction struct {
	prefix string
	conds  []kv.Cond
	ops    []kv.Op
	seen   map[string]bool // keys that conds has already
}

// begin makes a transaction that only st's controller can apply.
func (s *store) begin(st *state) *transaction {
	t := &transaction{prefix: s.opts.Prefix, seen: map[string]bool{}}
	t.compare(kv.Cond{Key: s.key(controllerKey), ModRevision: st.controllerRev})
	return t
}

func (t *transaction) compare(conds ...kv.Cond) {
	for _, c := range conds {
		if !t.seen[c.Key] {
			t.seen[c.Key] = true
			t.conds = append(t.conds, c)
		}
	}
}

// add adds a command if there is room; there always is for the first one.
func (t *transaction) add(c *command, st *state) bool {
	ops, conds := len(c.puts)+len(c.drops)+1, len(c.chosen)+len(c.conds)+len(c.drops)+1
	if len(t.ops) > 0 && (len(t.ops)+ops > maxTxnCount || len(t.conds)+conds > maxTxnCount) {
		return false
	}
	if c.next != nil {
		key := t.prefix + partKey(partsDir, c.next.ID)
		t.compare(kv.Cond{Key: key, ModRevision: c.rev})
		t.ops = append(t.ops, kv.Op{Key: key, Value: encodePartition(c.next)})
	}
	t.compare(st.conds(t.prefix, c.chosen...)...)
	t.compare(c.conds...)
	t.compare(c.drops...)
	for _, d := range c.drops {
		t.ops = append(t.ops, remove(d.Key))
	}
	t.ops = append(t.ops, c.puts...)
	return true
}
