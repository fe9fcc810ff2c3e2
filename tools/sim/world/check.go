package world

import (
	"bytes"
	"fmt"
	"maps"
	"slices"

	"penstock/internal/meta"
	"penstock/internal/node"
	"penstock/internal/node/fold"
	"penstock/internal/node/partition"
	"penstock/segment"
)

type msgID = segment.MsgID

// checks are what must hold after every step.
type checks struct {
	w       *World
	leaders map[epochKey]process
	nodes   map[*host]*nodeChecks
	serves  map[nodePart]bool
	left    map[nodePart]bool          // nodes that were no replica at some time: see nodeChecks.before
	shifted map[meta.PartitionID]int64 // when somebody began or ceased to serve it
	taken   retention
}

type nodePart struct {
	n  *host
	id meta.PartitionID
}

type process struct {
	node string
	life int
}

// nodeChecks is what the last look at a node has shown. A look costs little where nothing has changed since: what is
// demanded of a copy follows from its marks and those before.
type nodeChecks struct {
	c     *checks
	n     *host
	life  int
	next  int               // the place in last that EachMarks comes to
	last  []partition.Marks // in the order of EachMarks
	high  map[meta.PartitionID]segment.Position
	begun map[meta.PartitionID][2]int // Drops and Retired of the marks: when either changes, the copy begins anew
	visit func(*partition.Marks)
}

func (c *checks) init(w *World) {
	c.w, c.leaders, c.nodes = w, map[epochKey]process{}, map[*host]*nodeChecks{}
	c.taken.init()
	c.serves, c.left, c.shifted = map[nodePart]bool{}, map[nodePart]bool{}, map[meta.PartitionID]int64{}
}

// noteServes remembers who serves a partition, and since when its channels there go on from one delivery to the next.
func (c *checks) noteServes(n *host, v *partition.Marks) {
	key := nodePart{n, v.ID}
	if c.serves[key] == v.Serves {
		return
	}
	c.serves[key] = v.Serves
	c.shifted[v.ID] = c.w.now
	if v.Serves {
		return
	}
	for o, serves := range c.serves { // its channels of the topic end as a whole, and begin anew with what is left
		if serves && o.n == n && o.id.Topic == v.ID.Topic {
			c.shifted[o.id] = c.w.now
		}
	}
}

// servedSince says that one process has served a partition since then, without a pause, and with the same channels.
func (c *checks) servedSince(t *topicModel, number uint32, since int64) bool {
	for _, n := range c.w.nodes { // what has happened in this step was not looked at yet
		if n.m != nil {
			n.inside.EachMarks(func(v *partition.Marks) { c.noteServes(n, v) })
		}
	}
	return c.w.store.snap.Topics[t.id] != nil && c.shifted[meta.PartitionID{Topic: t.id, Partition: number}] <= max(0,
		since)
}

// node looks at the marks of a node's copies (invariants 1 and 8).
func (c *checks) node(n *host) {
	if n.e == nil || n.failed {
		return
	}
	k := c.nodes[n]
	if k == nil || k.life != n.life {
		k = &nodeChecks{
			c: c, n: n, life: n.life, high: map[meta.PartitionID]segment.Position{}, begun: map[meta.PartitionID][2]int{},
		}
		k.visit = k.look
		c.nodes[n] = k
	}
	c.w.checkLevels(n)
	k.next = 0
	n.inside.EachMarks(k.visit)
	k.last = k.last[:k.next]
}

func (k *nodeChecks) look(v *partition.Marks) {
	at := k.next
	k.next++
	switch {
	case at == len(k.last):
		k.last = append(k.last, *v)
	case k.last[at] == *v:
		return
	default:
		k.lookAtDisk(&k.last[at], v)
		k.last[at] = *v
	}
	k.c.w.cfg.witness.saw(k.n, v)
	k.c.noteServes(k.n, v)
	k.c.taken.look(k.n, v)
	if !v.Stuck {
		k.changed(v)
	}
}

// lookAtDisk: nothing becomes durable on a disk that hangs. That is the simulation's own promise. A copy that the
// process opens for the first time has no durable mark before: what its log held then was on the disk already. A copy
// that is given up begins anew with an empty log, all of which is durable.
func (k *nodeChecks) lookAtDisk(old, v *partition.Marks) {
	before := old.Durable
	if !old.Opened {
		before = old.End
	}
	if k.n.hangs() && old.ID == v.ID && v.Durable > before && v.Drops == old.Drops && !old.Cutting && !v.Cutting {
		k.failed(v, "what is below %d is durable, %d was when the disk began to hang", v.Durable, old.Durable)
	}
}

func (k *nodeChecks) changed(v *partition.Marks) {
	c := k.c
	if v.Leads {
		key, me := epochKey{v.ID, uint64(v.Epoch)}, process{k.n.name, k.life}
		if old, ok := c.leaders[key]; ok && old != me {
			k.failed(v, "it leads epoch %d, which %v has led", v.Epoch, old)
		}
		c.leaders[key] = me
	}
	if v.Serves && !v.Leads {
		k.failed(v, "it serves and does not lead")
	}
	if !v.Cutting && (v.Committed > v.Durable || v.Durable > v.End) {
		k.failed(v, "committed %d durable %d end %d", v.Committed, v.Durable, v.End)
	}
	before := k.before(v)
	if v.Committed < before {
		k.failed(v, "committed moves back from %d to %d", before, v.Committed)
	} else if v.Leads && v.Committed > before && v.ISR < v.MinISR {
		k.failed(v, "it commits %d with an ISR of %d, min_isr is %d", v.Committed, v.ISR, v.MinISR)
	}
	k.high[v.ID] = v.Committed
}

// before is what the copy had committed at the last look. It may forget that when it is given up, or closed because the
// host is no replica any more: the copy that follows begins anew. A node may hear of two such rows at once.
func (k *nodeChecks) before(v *partition.Marks) segment.Position {
	was, now := k.begun[v.ID], [2]int{v.Drops, v.Retired}
	if was == now {
		return k.high[v.ID]
	}
	k.begun[v.ID] = now
	if was[1] != now[1] && !k.c.left[nodePart{k.n, v.ID}] {
		k.failed(v, "the copy was closed, and the node was never out of the replicas")
	}
	return 0
}

func (k *nodeChecks) failed(v *partition.Marks, format string, args ...any) {
	k.c.w.fail("%s: %s: %s", k.n.name, k.c.w.partName(v.ID), fmt.Sprintf(format, args...))
}

// whole says what is missing until everything is right again.
func (w *World) whole() string {
	views := map[meta.PartitionID][]partition.View{}
	for _, n := range w.nodes {
		switch {
		case n.e == nil:
			return n.name + " is not open"
		case n.failed || n.closing:
			return n.name + " has failed, or is closing"
		}
		for _, v := range n.inside.Partitions() {
			views[v.ID] = append(views[v.ID], v)
		}
	}
	if list := w.book.waiting(); len(list) > 0 {
		v := &w.book.values[list[0]]
		return fmt.Sprintf("%d messages have no answer, the first is value %d of topic %s, published on %s at %.3f",
			len(list), list[0], v.topic.name, v.by.name, float64(v.submitted)/1e6)
	}
	if why := w.unsure(); why != "" {
		return why
	}
	for _, t := range w.topics {
		if !t.ready {
			return "topic " + t.name + " was never made"
		}
		if t.doomed {
			return "topic " + t.name + " is on its way to be made again"
		}
		for _, c := range t.channels {
			if c.created == 0 && !c.doomed {
				return fmt.Sprintf("channel %s of %s was never made", c.name, t.name)
			}
		}
	}
	for _, id := range w.store.snap.Partitions.IDs() {
		if why := w.partWhole(id, views[id]); why != "" {
			return w.partName(id) + ": " + why
		}
	}
	if w.has(FeatureRot) && !w.gray.clean {
		return "not all of " + w.gray.rotten.name + " reads back"
	}
	if why := w.remains(); why != "" {
		return why
	}
	if why := w.misplaced(); why != "" {
		return why
	}
	return w.settled()
}

func (w *World) partWhole(id meta.PartitionID, views []partition.View) string {
	row := w.store.snap.Partitions.Get(id)
	if m, ok := w.store.moves[id]; ok {
		return fmt.Sprintf("its move from node %d to %d goes on; replicas %v, in sync %v, leader %d",
			m.from, m.to, row.State.Replicas, members(row.State.ISR), row.State.Leader)
	}
	if why := w.leftovers(id); why != "" {
		return why
	}
	if len(row.State.ISR) < len(row.State.Replicas) || len(row.State.Replicas) < w.store.snap.Topics[id.Topic].Replicas {
		return fmt.Sprintf("in sync are only %v of %v, leader %d",
			members(row.State.ISR), row.State.Replicas, row.State.Leader)
	}
	var leader *partition.View
	copies := 0
	for i := range views {
		v := &views[i]
		if !slices.Contains(row.State.Replicas, v.Member.Node) {
			continue
		}
		copies++
		if v.Serves {
			leader = v
		}
		if v.Stuck {
			return fmt.Sprintf("the copy of node %d has stopped", v.Member.Node)
		}
	}
	if leader == nil || copies < len(row.State.Replicas) {
		return "nobody serves it, or a copy is missing"
	}
	for i := range views {
		v := &views[i]
		if slices.Contains(row.State.Replicas, v.Member.Node) && (v.End != leader.End || v.Committed != leader.End) {
			return fmt.Sprintf("node %d has committed %d of %d", v.Member.Node, v.Committed, leader.End)
		}
	}
	t := w.models[id.Topic]
	for _, c := range t.channels {
		if c.doomed {
			continue
		}
		at := slices.IndexFunc(leader.Channels, func(v partition.ChannelView) bool { return v.Name == c.name })
		if at < 0 {
			return "channel " + c.name + " is not in its log"
		}
		if leader.Channels[at].Confirmed < leader.Visible {
			return fmt.Sprintf("channel %s has confirmed %d of %d", c.name, leader.Channels[at].Confirmed, leader.Visible)
		}
	}
	return ""
}

// backlog is how many messages the channels of the leaders have not confirmed.
func (w *World) backlog() (left int64) {
	for _, n := range w.nodes {
		if n.e == nil {
			continue
		}
		for _, v := range n.inside.Partitions() {
			t := w.models[v.ID.Topic]
			if !v.Serves || t == nil {
				continue
			}
			for _, c := range v.Channels {
				if t.channelNamed(c.Name) == nil {
					continue // nobody reads it
				}
				left += int64(v.Visible) - int64(c.Confirmed)
				for _, r := range c.Ranges {
					left -= int64(r.To) - int64(r.From)
				}
			}
		}
	}
	return left
}

func (w *World) topicNamed(name string) *topicModel {
	for i, t := range w.topics {
		switch name {
		case t.name:
			return t
		case w.dead[i].name:
			return w.dead[i]
		}
	}
	panic("BUG: world: a topic that nobody made: " + name)
}

// stored is a message as the logs have it.
type stored struct {
	value int
	at    segment.Offset
	only  string // the channel that it was sent back to
}

// logs are all messages of the topics.
type logs map[*topicModel]map[node.ID]stored

func (l logs) add(t *topicModel, id node.ID, s stored) {
	if l[t] == nil {
		l[t] = map[node.ID]stored{}
	}
	l[t][id] = s
}

// checkEnd looks at everything once more, when all is quiet.
func (w *World) checkEnd() {
	logs := logs{}
	for _, id := range w.store.snap.Partitions.IDs() {
		w.checkCopies(id, logs)
		if w.Violation != "" {
			return
		}
	}
	for v := range w.book.values {
		w.checkValue(v, logs)
	}
	for _, t := range w.topics {
		for _, c := range t.channels {
			w.checkChannel(c, logs)
			w.checkSample(c, logs)
		}
	}
	w.checkPuts(logs)
	w.checkRedriven()
	w.checkProduced(logs)
	w.checkKept()
	w.checkCounts()
	w.checkRows()
}

// checkCopies demands that the copies of a partition are the same, byte for byte, where they overlap.
func (w *World) checkCopies(id meta.PartitionID, logs logs) {
	type batch struct {
		crc  uint32
		body []byte
	}
	t := w.models[id.Topic]
	truth := map[segment.Offset]batch{}
	for _, n := range w.nodes {
		if !slices.Contains(w.store.snap.Partitions.Get(id).State.Replicas, n.replica()) {
			continue
		}
		see := func(at segment.Offset, h *segment.Header, body []byte) bool {
			if b, ok := truth[at]; !ok {
				truth[at] = batch{h.CRC, bytes.Clone(body)}
				w.noteBatch(t, id, at, h, body, logs)
			} else if b.crc != h.CRC || !bytes.Equal(b.body, body) {
				w.fail("%s: the copy of %s has another batch %d at offset %d", n.name, w.partName(id), h.Position, at)
			}
			return w.Violation == ""
		}
		err := n.readLog(id, 0, see)
		if from := w.stale(n, id); err != nil && from > 0 { // it may lack what its leader has removed
			err = n.readLog(id, from, see)
		}
		if err != nil && !w.isRotten(n.replica()) { // what rotted beneath bytes in memory may be met only now
			w.fail("%s: the copy of %s cannot be read: %v", n.name, w.partName(id), err)
		}
	}
}

// stale is where the log of the leader begins, if a copy in a world that forgets has yet to remove what lies below.
func (w *World) stale(n *host, id meta.PartitionID) (from segment.Offset) {
	pending := false
	for _, o := range w.nodes {
		for _, v := range o.inside.Partitions() {
			switch {
			case !w.has(FeatureForget) || v.ID != id:
			case v.Serves:
				from = v.StartAt
			case o == n:
				pending = v.LeaderStart > v.Start
			}
		}
	}
	if !pending {
		return 0
	}
	return from
}

func (w *World) noteBatch(
	t *topicModel, id meta.PartitionID, at segment.Offset, h *segment.Header, body []byte, logs logs,
) {
	if h.Control() {
		_ = fold.DecodeControls(body, func(ct *fold.Control) error {
			w.Stats.Carried += len(ct.Carried)
			w.checkKinds(id, ct)
			return nil
		})
		return
	}
	var it segment.RecordIter
	it.Reset(h, body)
	n := h.FirstID
	for r := it.NextRef(); r != nil; r = it.NextRef() {
		only := onlyFor(r.Headers)
		v, err := w.book.parse(r.Body)
		mid := engineID(id, n)
		switch {
		case err != nil:
			w.fail("%s holds id %v: %v", w.partName(id), mid, err)
			return
		case w.book.values[v].topic != t && (t.of == nil && only == "" || w.book.values[v].topic.name != t.source()):
			w.fail("%s holds value %d of another topic", w.partName(id), v)
		case w.book.values[v].fate == refused:
			w.fail("%s holds value %d, whose producer was told that it was not stored", w.partName(id), v)
		}
		if old, ok := t.ids[mid]; ok && old != v {
			w.fail("%s holds value %d as %v, which was value %d", w.partName(id), v, mid, old)
		}
		if t.of != nil {
			w.noteLetter(t, mid, v, headersOf(r))
		} else {
			s := stored{v, at, only}
			logs.add(t, mid, s)
			if c := t.channelNamed(only); c != nil {
				c.noteCopy(v, mid)
			}
		}
		n++
	}
}

// checkValue: what was answered OK is in the log, and on every channel that was there before.
func (w *World) checkValue(v int, logs logs) {
	val := &w.book.values[v]
	if val.fate != acked || val.topic.doomed {
		return
	}
	if s, ok := logs[val.topic][val.id]; ok && s.value != v && !w.mayComeAgain(v) {
		w.fail("value %d was answered with %v, where the logs have value %d", v, val.id, s.value)
	}
	for _, c := range val.topic.channels {
		_, held := logs[val.topic][val.id]
		if c.doomed || c.created == 0 || c.created >= val.submitted && !c.first && !c.mustHave(val, held) {
			continue
		}
		if !c.wants(val) {
			w.Stats.Unwanted++
			continue
		}
		if c.delivered[val.id] == 0 && !c.sampled() {
			if w.gone(val.topic, val.id, val) {
				w.Stats.Dropped++
				continue
			}
			if w.isLetter(c, val.id) || len(c.copies[v]) > 0 {
				continue // every delivery of it was lost on the way to another node
			}
			w.fail("value %d of topic %s was answered OK as %v and never delivered on channel %s; in the log: %v",
				v, val.topic.name, val.id, c.name, held)
		}
	}
}

// checkErased: no log has a channel whose deletion was answered OK.
func (w *World) checkErased(c *channelModel) {
	for _, n := range w.nodes {
		for _, v := range n.inside.Partitions() {
			has := slices.ContainsFunc(v.Channels, func(o partition.ChannelView) bool { return o.Name == c.name })
			if c.erased && v.ID.Topic == c.t.id && v.Serves && has {
				w.fail("channel %s of %s is in partition %d, and its deletion was answered OK", c.name, c.t.name, v.ID.Partition)
			}
		}
	}
}

// checkChannel: what was delivered is in the log, unless retention took it, and the log's messages were delivered.
func (w *World) checkChannel(c *channelModel, logs logs) {
	if c.doomed {
		w.checkErased(c)
		return
	}
	starts := map[uint32]msgID{}
	for _, n := range w.nodes {
		for _, v := range n.inside.Partitions() {
			if v.Topic != c.t.name || !v.Serves {
				continue
			}
			at := slices.IndexFunc(v.Channels, func(o partition.ChannelView) bool { return o.Name == c.name })
			starts[v.ID.Partition] = v.Channels[at].Start
			if c.first && v.Channels[at].Start != 0 {
				w.fail("channel %s, the first of %s, begins at %d in partition %d",
					c.name, c.t.name, v.Channels[at].Start, v.ID.Partition)
			}
			if v.Visible < c.high[v.ID.Partition] {
				w.fail("channel %s of %s has seen %d of partition %d, the log ends at %d",
					c.name, c.t.name, c.high[v.ID.Partition]-1, v.ID.Partition, v.Visible)
			}
		}
	}
	for _, id := range slices.Sorted(maps.Keys(logs[c.t])) {
		s := logs[c.t][id]
		switch {
		case c.spared(&s, &w.book.values[s.value]):
		case id.MsgID() < starts[id.Partition()] || w.gone(c.t, id, &w.book.values[s.value]) || w.isLetter(c, id):
		case c.missed(id):
		case c.delivered[id] == 0 && len(c.copies[s.value]) == 0:
			// or every delivery was lost on the way to another node, and the dead letter was sent back
			w.fail("value %d of topic %s is in the log as %v and was never delivered on channel %s",
				s.value, c.t.name, id, c.name)
		case c.delivered[id] != 0 && !c.done[id] && len(c.copies[s.value]) == 0:
			w.fail("value %d of topic %s, %v, is confirmed on channel %s: nobody has finished it, and it is no dead letter",
				s.value, c.t.name, id, c.name)
		}
	}
}

// dump shows what clients and copies look like, for whoever reads a trace.
func (w *World) dump() {
	for _, n := range w.nodes {
		if n.e == nil {
			w.tracef("%s is not open", n.name)
			continue
		}
		for _, v := range n.inside.Partitions() {
			w.tracef("%s: %+v", n.name, v)
		}
		for _, t := range n.e.Stats("", "") {
			w.tracef("%s: topic %s paused %v depth %d: %+v", n.name, t.Name, t.Paused, t.Depth, t.Channels)
		}
	}
}
