package world

import (
	"encoding/binary"
	"fmt"
	"slices"
	"strings"
	"time"

	"penstock/internal/meta"
	"penstock/internal/node"
	"penstock/internal/node/channel"
	"penstock/internal/node/fold"
	"penstock/internal/node/partition"
	"penstock/segment"
)

// The rules for copies that forgot:
//
//  1. What was acknowledged under an ISR of which one member still has it is not lost: it is in the served log in the
//     end, unless the partition stands still and says why. It may be aside where no member in sync was whole,
//     where every process ended and the older disk was that of the leader, the only one that knew what is committed,
//     and where two processes ran under one name, each of which answered OK.
//  2. Nobody whole is cut without what was cut being kept, in aside/ on the same disk.
//  3. Two of three nodes that live, of which at most one forgot, do not stand still for ever.
//
// In a loose world any number may forget, and only the second holds.

// forgives says that a failure is none in this world: all may have forgotten something, so that ids come again, and
// what was delivered is not in any log.
func (w *World) forgives() bool { return (w.forget.loose || w.forget.tainted) && !w.forget.saying }

// mayComeAgain says that the id of a value may be given again: where nodes forget, the value was never answered OK; or
// it was, before every process ended and one disk came back older. Then checkForgotten demands that it is aside, or in
// a copy that is contested.
func (w *World) mayComeAgain(value int) bool {
	v := &w.book.values[value]
	return v.fate != acked && w.has(FeatureForget) || v.answered < w.forget.endedAt
}

// forgetting is what failures begin with.
func (w *World) forgetting() string {
	if !w.has(FeatureForget) || w.cfg.script != nil {
		return ""
	}
	return w.forget.kind.String() + ": "
}

// broken says that a rule is broken.
func (w *World) broken(rule int, format string, args ...any) {
	w.forget.saying = true
	w.fail("rule %d: %s", rule, fmt.Sprintf(format, args...))
	w.forget.saying = false
}

// refused is a node that does not start, and says why. An operator gives it an empty disk if others have what it has.
func (w *World) refused(n *host, err error) {
	f := &w.forget
	if n.twin != nil && n.life >= 1000 {
		n.power = false
		return
	}
	if f.refused[n] == "" {
		w.tracef("an operator hears of %s: %v", n.name, err)
	}
	if n.forgot.at == 0 || n.media.Crashed() || strings.Contains(err.Error(), "join") {
		return
	}
	f.refused[n] = err.Error()
	w.after(700*ms, func() {
		if n.e == nil && f.refused[n] != "" && w.mayForget(0, n) && !f.busy {
			w.replaceForgot(n, "as it does not start")
			delete(f.refused, n)
		}
	})
}

// forgetPeace is the time after the faults: processes of one name become one, and perhaps one node stays away for a
// while.
func (w *World) forgetPeace() bool {
	f := &w.forget
	if !w.has(FeatureForget) {
		return true
	}
	for _, n := range w.nodes {
		if n.twin != nil && n.forgot.shared {
			w.endTwin(n, 0, true)
		}
		n.power = true
		w.after(60*ms, n.boot)
	}
	if f.loose {
		w.runTo(w.now+20_000*ms, nil)
		w.checkForgotten()
		return false
	}
	return w.twoOfThree() && w.heals2() && !f.tainted
}

// heals2 is heals, where standing still is allowed for a reason: more than one node has forgotten at a time.
func (w *World) heals2() bool {
	f := &w.forget
	ended := w.now
	if !w.runTo(ended+maxHealing, w.whole) && w.Violation == "" && w.reason() != "" && f.most > 1 && w.cfg.script == nil {
		w.Stats.StandStill++
		w.tracef("a partition stands still: %s", w.reason())
		w.checkForgotten()
		return false
	}
	if w.Violation != "" {
		return false
	}
	why := w.whole()
	if (f.most > 1 || len(f.forced) > 0) && controlLost(why) {
		w.Stats.StandStill++
		w.checkForgotten()
		return false
	}
	if why != "" && w.backlog() == 0 && !f.tainted {
		if w.checkForgotten(); w.Violation != "" {
			return false // that says more
		}
		w.broken(3, "%d nodes at most had forgotten something at the same time, and after %v: %s (%s)",
			f.most, time.Duration(w.now-ended), why, w.reason())
		return false
	}
	if f.tainted && w.whole() != "" {
		w.Stats.StandStill++ // what nobody has any more keeps clients waiting
	}
	w.checkForgotten()
	return w.Violation == ""
}

// controlLost says that a channel or its settings are not in the log. What messages have is known of each copy
// (value.holders), but not what channels have: they may have been in no copy that did not forget, or not in the one
// that an operator chose.
func controlLost(why string) bool {
	return strings.Contains(why, "is not in its log") || strings.Contains(why, "its settings have version")
}

// reason is why something stands still, by what nodes say; "": nobody says why.
func (w *World) reason() string {
	for _, n := range w.nodes {
		if why := w.forget.refused[n]; n.e == nil && why != "" {
			return n.name + " does not start: " + why
		}
		if n.e == nil || !n.running() {
			continue
		}
		if n.e.CommitStats().Failed {
			return n.name + " says that its commit log is damaged"
		}
		for _, v := range n.inside.Partitions() {
			if v.Leads && v.Asks {
				return n.name + " asks operators about " + w.partName(v.ID)
			}
		}
	}
	for _, p := range w.store.snap.Partitions.All() {
		if len(p.Damaged) > 0 && len(p.Damaged) == len(p.State.ISR) {
			return w.partName(p.ID) + " is damaged wherever it is in sync"
		}
	}
	return ""
}

// decideForgot is an operator who helps where a leader asks for it, or a copy is contested: he chooses the live node
// that has most.
func (w *World) decideForgot() {
	f := &w.forget
	asking := map[meta.PartitionID]bool{}
	for _, n := range w.nodes {
		if n.e == nil || !n.running() || n.closing {
			continue
		}
		for _, v := range n.inside.Partitions() {
			if v.Leads && v.Asks {
				asking[v.ID] = true
			}
		}
	}
	w.replaceDamaged()
	for _, id := range w.store.snap.Partitions.IDs() {
		since, known := f.asks[id]
		switch {
		case !asking[id] && len(w.store.snap.Partitions.Get(id).Contested) == 0:
			delete(f.asks, id)
		case !known:
			f.asks[id] = w.now
		case w.now-since >= 2*forceAfter && (f.most > 1 || w.mayAsk(id)) && !f.forced[id] && w.cfg.script == nil:
			if n := w.hasMost(id); n != nil {
				f.forced[id] = true
				w.Stats.Forced++
				w.forceLeader(fmt.Sprintf("%s is to lead %s, as it has most", n.name, w.partName(id)), id, n.replica())
			}
		}
	}
}

// mayAsk says that a partition needs its operator although one node at most has forgotten something: that node was the
// whole ISR for a while, as min_isr allows, or came first after all had ended; or the leader has all, but a crash tore
// its last group, and it cannot know.
func (w *World) mayAsk(id meta.PartitionID) bool {
	if p := w.store.snap.Partitions.Get(id); len(p.Contested) > 0 {
		return p.State.MinISR == 1 || w.forget.endedAt > 0
	}
	asks := func(v partition.View) bool { return v.ID == id && v.Leads && v.Asks }
	return slices.ContainsFunc(w.nodes, func(n *host) bool {
		return n.e != nil && n.running() && !n.forgot.lacks && slices.ContainsFunc(n.inside.Partitions(), asks)
	})
}

// replaceDamaged gives a node that stays damaged an empty disk: its log says that others may have what it cannot read.
func (w *World) replaceDamaged() {
	f := &w.forget
	for _, n := range w.nodes {
		says := false
		for _, p := range w.store.snap.Partitions.All() {
			for _, m := range p.Unreadable() { // a contested copy must not be wiped
				row := w.store.snap.Nodes[m.Node]
				says = says || row != nil && row.Name == n.name && row.Store == m.Store
			}
		}
		switch {
		case !says || n.forgot.at == 0:
			delete(f.damaged, n)
		case f.damaged[n] == 0:
			f.damaged[n] = w.now
		case w.now-f.damaged[n] >= forceAfter && w.mayForget(0, n) && f.away == nil:
			delete(f.damaged, n)
			w.replaceForgot(n, "as it stays damaged")
		}
	}
}

// replaceForgot gives a node an empty disk.
func (w *World) replaceForgot(n *host, why string) {
	w.forgets(n, 0, "who gave it another disk, "+why)
	w.Stats.Replaced++
	w.newDisk(n)
	n.wiped = false
}

// attendForgot is attend for a node of which somebody has removed a file of the commit log. The operator comes back
// until the others have what it has.
func (w *World) attendForgot(n *host) {
	life := n.life
	w.after(500*ms, func() {
		switch {
		case n.life != life || n.twin != nil && n.forgot.shared:
		case w.mayForget(0, n):
			w.replaceForgot(n, "as its commit log is damaged")
		default:
			w.attendForgot(n)
		}
	})
}

// hasMost is the live node that has most of what a partition acknowledged.
func (w *World) hasMost(id meta.PartitionID) (best *host) {
	most := -1
	for _, n := range w.nodes {
		if n.e == nil || !n.running() {
			continue
		}
		count := 0
		for i := range w.book.values {
			v := &w.book.values[i]
			if v.fate == acked && v.topic.id == id.Topic && v.id.Partition() == id.Partition && v.holders&(1<<n.index) != 0 {
				count++
			}
		}
		if count > most {
			best, most = n, count
		}
	}
	return best
}

// held are the messages of one copy.
type held struct {
	start  msgID // where the log began before it was read
	values map[int]bool
}

// maxMending is how long a copy may take to repair what was found damaged when all was read.
const maxMending = 20_000 * ms

// mendDamage reads all copies, so that the nodes find damage that nobody has read yet, and gives them time to repair it
// from one another.
func (w *World) mendDamage() {
	damaged := func() (what string) {
		for _, n := range w.nodes {
			if n.e == nil || !n.running() {
				continue
			}
			for _, v := range n.inside.Partitions() {
				if err := n.eachRecord(v.ID, func(*segment.Record) {}); err != nil {
					what = fmt.Sprintf("%s of %s: %v", w.partName(v.ID), n.name, err)
				}
			}
		}
		return what
	}
	what := damaged()
	for began := w.now; what != "" && w.now-began < maxMending; what = damaged() {
		w.runTo(w.now+1000*ms, nil)
	}
	f := &w.forget
	// What the others' logs do not have any more, because retention took it, is not repaired, and is no damage.
	var rows []string
	for _, p := range w.store.snap.Partitions.All() {
		if len(p.Damaged) > 0 {
			rows = append(rows, w.partName(p.ID))
		}
	}
	if what != "" && len(rows) > 0 && !f.loose && !f.tainted && f.most <= 1 && len(f.forced) == 0 {
		w.broken(3, "%d nodes at most had forgotten something at the same time, and copies of %v stay damaged for %v: %s",
			f.most, rows, time.Duration(maxMending), what)
	}
}

// checkForgotten demands the first two rules.
func (w *World) checkForgotten() {
	f := &w.forget
	w.readLetters()
	w.mendDamage()
	copies := map[nodePart]*held{}
	asides := map[*host][]byte{}
	for _, n := range w.nodes {
		asides[n] = n.aside()
		if n.e == nil {
			continue
		}
		for _, v := range n.inside.Partitions() {
			copies[nodePart{n, v.ID}] = w.readHeld(n, v.ID)
		}
	}
	for i := range w.book.values {
		v := &w.book.values[i]
		if v.fate != acked || v.topic.doomed || v.topic.of != nil || v.holders == 0 {
			continue
		}
		id := meta.PartitionID{Topic: v.topic.id, Partition: v.id.Partition()}
		for _, n := range w.nodes {
			c := copies[nodePart{n, id}]
			if v.holders&(1<<n.index) == 0 || c == nil || c.has(w, i) || w.goneAt(n, id, v) {
				continue
			}
			if inAside(asides[n], i) {
				w.Stats.Aside++
				continue
			}
			if (f.forced[id] || f.tainted) && w.trimmedAt(n, id, v) {
				continue // of what a leader that others were given up for did not know, no channel wants it here
			}
			w.broken(2, "%s had value %d, %v of %s, answered OK at %.3f, and its copy was cut: it begins at %d, "+
				"and the value is not aside%s", n.name, i, v.id, w.partName(id), float64(v.answered)/1e6, c.start, w.wanting(i))
			return
		}
		if f.loose || f.forced[id] || (f.tainted || v.answered < f.endedAt || f.hasTwins()) && anyAside(asides, i) {
			continue
		}
		if why := w.lostFrom(id, i, v, copies); why != "" && w.reason() == "" {
			w.Stats.Lost++
			w.broken(1, "value %d, answered OK as %v of %s at %.3f, is lost: %s", i, v.id, w.partName(id),
				float64(v.answered)/1e6, why)
			return
		}
	}
}

// lostFrom says why a value is not in the log that is served; "": it is, or retention took it.
func (w *World) lostFrom(id meta.PartitionID, i int, v *value, copies map[nodePart]*held) string {
	for _, n := range w.nodes {
		if n.e == nil {
			continue
		}
		for _, p := range n.inside.Partitions() {
			if p.ID != id || !p.Serves {
				continue
			}
			c := copies[nodePart{n, id}]
			if c.has(w, i) || w.contestedHas(id, i, copies) {
				return ""
			}
			return fmt.Sprintf("%s serves from %d to %d", n.name, p.StartID, p.Visible)
		}
	}
	return "" // nobody serves it: that is the third rule's
}

// contestedHas says whether a copy has a value of which the row says that an operator has to choose it or its leader.
func (w *World) contestedHas(id meta.PartitionID, i int, copies map[nodePart]*held) bool {
	for _, m := range w.store.snap.Partitions.Get(id).Contested {
		if c := copies[nodePart{w.nodeOf(m.Node), id}]; c != nil && c.has(w, i) {
			return true
		}
	}
	return false
}

// has says whether the copy has a value, or all that want it are done with it, so that retention could take it.
func (c *held) has(w *World, i int) bool {
	v := &w.book.values[i]
	return c.values[i] || v.id.MsgID() < c.start && w.consumed(i)
}

// hasTwins says whether two processes of a name may have answered OK in this world.
func (f *forgetting) hasTwins() bool { return f.kind == forgetTwin || f.kind == forgetShared }

// consumed says whether every channel is done with a value.
func (w *World) consumed(i int) bool { return w.wanting(i) == "" }

// wanting names the channel that is not done with a value; "": there is none.
func (w *World) wanting(i int) string {
	v := &w.book.values[i]
	if w.gone(v.topic, v.id, v) {
		return ""
	}
	for _, c := range v.topic.channels {
		switch {
		case c.doomed, c.created == 0, c.created >= v.submitted && !c.first, c.doneValues[i]:
		case !c.wants(v), c.sampled(), len(c.copies[i]) > 0, c.fork != nil && c.missed(v.id):
		case c.delivered[v.id] > 0 && w.has(FeatureChannels|FeatureFilters): // it may be a dead letter that was sent back
		case w.forget.letters[c][v.id], w.nobodyKnows(c, v.id):
		default:
			return "; channel " + c.name + " still wants it"
		}
	}
	return ""
}

// nobodyKnows says whether a channel was forgotten with all members that knew it, because a node has forgotten
// something since it was made, or because all who replicate ended at once when it had just been made (what was cut then
// is aside, and an operator publishes messages again, but makes no channel). Retention does not wait for it, nor, if it
// was made again, for what lies before its new start.
func (w *World) nobodyKnows(c *channelModel, id node.ID) bool {
	f, part := &w.forget, meta.PartitionID{Topic: c.t.id, Partition: id.Partition()}
	since := func(n *host) bool { return n.forgot.at > c.begun } // a member may have said yes before, and forgotten it
	if !f.loose && !f.forced[part] && c.begun >= f.endedAt && (!f.tainted || !slices.ContainsFunc(w.nodes, since)) {
		return false
	}
	served := false
	for _, n := range w.nodes {
		if n.e == nil {
			continue
		}
		for _, v := range n.inside.Partitions() {
			if v.ID.Topic != c.t.id || v.ID.Partition != id.Partition() || !v.Serves {
				continue
			}
			served = true
			if slices.ContainsFunc(v.Channels, func(o partition.ChannelView) bool {
				return o.Name == c.name && o.Start <= id.MsgID()
			}) {
				return false
			}
		}
	}
	return served
}

// readLetters reads which messages are dead letters by now: of some every delivery was lost on the way.
func (w *World) readLetters() {
	f := &w.forget
	f.letters = map[*channelModel]map[node.ID]bool{}
	for _, n := range w.nodes {
		if n.e == nil {
			continue
		}
		for _, v := range n.inside.Partitions() {
			t := w.models[v.ID.Topic]
			if t == nil || t.of == nil {
				continue
			}
			_ = n.eachRecord(v.ID, func(r *segment.Record) {
				headers := headersOf(r)
				var id node.ID
				c := t.of.channelNamed(headers[channel.OriginChannelHeader])
				if _, err := fmt.Sscanf(headers[channel.OriginIDHeader], "%016x", &id); err != nil || c == nil {
					return
				}
				if f.letters[c] == nil {
					f.letters[c] = map[node.ID]bool{}
				}
				f.letters[c][id] = true
			})
		}
	}
}

// eachRecord visits the messages of a copy, and those that wait and were carried behind their segments.
func (n *host) eachRecord(id meta.PartitionID, visit func(*segment.Record)) error {
	return n.readLog(id, 0, inEach(visit))
}

// inEach visits the messages of a batch, and those that it carries.
func inEach(visit func(*segment.Record)) func(segment.Offset, *segment.Header, []byte) bool {
	return func(_ segment.Offset, h *segment.Header, body []byte) bool {
		if !h.Control() {
			eachOf(h, body, visit)
			return true
		}
		_ = fold.DecodeControls(body, func(ct *fold.Control) error {
			for i := range ct.Carried {
				eachOf(&segment.Header{Count: 1}, ct.Carried[i].Record, visit)
			}
			return nil
		})
		return true
	}
}

func eachOf(h *segment.Header, body []byte, visit func(*segment.Record)) {
	var it segment.RecordIter
	it.Reset(h, body)
	for r := it.NextRef(); r != nil; r = it.NextRef() {
		visit(r)
	}
}

// readHeld reads which values a copy has.
func (w *World) readHeld(n *host, id meta.PartitionID) *held {
	c := &held{values: map[int]bool{}}
	n.inside.EachMarks(func(v *partition.Marks) {
		if v.ID == id {
			c.start = v.StartID
		}
	})
	_ = n.readLogOnward(id, inEach(func(r *segment.Record) {
		if v, err := w.book.parse(r.Body); err == nil && onlyFor(r.Headers) == "" {
			c.values[v] = true
		}
	}))
	return c
}

// aside is all that a node has put aside.
func (n *host) aside() (all []byte) {
	n.eachFile("aside", func(name string) {
		if data, err := n.media.ReadFile(name, diskBytes); err == nil {
			all = append(all, data...)
		}
	})
	return all
}

// anyAside says whether any node has put a value aside. Where no member in sync was whole, nobody can know that it was
// acknowledged, and an operator publishes it again.
func anyAside(asides map[*host][]byte, value int) bool {
	for _, all := range asides {
		if inAside(all, value) {
			return true
		}
	}
	return false
}

// inAside says whether the body of a value is in there, whatever the files' form: bodies begin with the value and their
// size, and are stored as they are.
func inAside(all []byte, value int) bool {
	if len(all) == 0 {
		return false
	}
	head := string(binary.LittleEndian.AppendUint64(nil, uint64(value)))
	for text := string(all); ; {
		at := strings.Index(text, head)
		if at < 0 {
			return false
		}
		rest := text[at+8:]
		if len(rest) >= 8 {
			size := binary.LittleEndian.Uint64([]byte(rest[:8]))
			if size >= bodyHead && size <= uint64(len(rest)+8) && (size == bodyHead || rest[8] == byte(value+bodyHead)) {
				return true
			}
		}
		text = text[at+1:]
	}
}
