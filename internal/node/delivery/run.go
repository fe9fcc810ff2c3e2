package delivery

import (
	"math/bits"

	"penstock/batch"
	"penstock/internal/node/fold"
	"penstock/segment"
)

// A run is messages next to each other that the same client got at once, at their first delivery, out of one batch. One
// entry stands for all of them, with one timer: in catch-up, a message costs the machine little more than a bit. Its
// bits say which of its messages are in flight still, so that clients may finish them in any order. Whatever else
// happens to one of them breaks the run: each message that it has left gets an entry of its own, as if it had been
// delivered by itself.
//
// Invariants: the messages of runs are below the reading cursor, and no table has them. No two runs have a message in
// common. The list of a client is ordered by Result.Number, over the messages of its runs, too.

const (
	// MaxRunCount is the largest Event.Count of an EvOfferRun.
	MaxRunCount = 64
	// minRunCount is how many messages a run has at least. Fewer are delivered one by one, which costs less than a run
	// that is soon broken.
	minRunCount = 4
	// maxRuns bounds the runs of a partition, because breaking one moves the others.
	maxRuns = 4096
)

// Run is what EvOfferRun may deliver now.
type Run struct {
	Client ClientID
	Number uint64 // Result.Number of the first delivery; those of the others follow
	Count  int    // of messages at most, from the reading cursor on; 0: they must be offered one by one
}

// NextRun returns how many messages EvOfferRun may deliver from the reading cursor of a partition on, and to whom. The
// caller first gives the messages to the client, as many as it takes, and then tells Step, before any other event.
func (c *Channel) NextRun(part uint32) (r Run) {
	p, cl := c.part(part), c.clients.ring
	if c.special || c.paused || !c.clients.hasCredit() || cl.ringNext != cl || cl.sampleRate != 0 ||
		p.holes > 0 || p.ranges.Len() >= c.cfg.MaxRanges || p.runs.len() >= maxRuns || p.next >= p.end {
		return r
	}
	n := min(MaxRunCount, cl.ready-cl.inFlight)
	if c.clients.limit > 0 {
		n = min(n, c.clients.limit-c.clients.inFlight)
	}
	unread := min(uint64(p.end-p.next), p.ranges.Gap(p.next))
	return Run{cl.id, cl.messageCount + 1, int(min(uint64(n), unread))}
}

// offerRun notes that the caller has delivered a run. The messages of a short one get entries of their own.
func (c *Channel) offerRun(ev *Event, res *Result) {
	p, cl, n := c.part(ev.Part), c.clients.ring, ev.Count
	if ev.Msg != p.next || n <= 0 || n > c.NextRun(ev.Part).Count {
		panic("BUG: a run of messages that NextRun does not allow")
	}
	if n < minRunCount {
		for i := range n {
			e := p.take(ev)
			e.index += uint32(i)
			c.deliver(e, cl, res)
		}
	} else {
		c.deliverRun(p, cl, ev)
	}
	res.Decision, res.Client, res.Count = Deliver, cl.id, n
	c.turns.spend(&p.unread, n)
	p.settle()
}

func (c *Channel) deliverRun(p *partition, cl *client, ev *Event) {
	n := ev.Count
	e := c.entries.pool.get(batch.MakeID(ev.Part, ev.Msg))
	e.at, e.index, e.hasAt, e.tag, e.told = ev.At, ev.Index, true, ev.Tag, true
	e.run, e.attempts, e.counted = 1<<n-1, 1, true
	e.state, e.client, e.holder, e.startMs = entryInFlight, cl, cl.id, c.soonMs()
	e.number = cl.messageCount + 1
	c.schedule(e, e.startMs+cl.timeoutMs)
	cl.flight.pushBack(e)
	p.runs.push(e)
	p.next += segment.MsgID(n)
	c.clients.begin(cl, n)
}

// look returns the entry of a message, or the run that it is in flight in; nil: there is none.
func (c *Channel) look(id batch.ID) *entry {
	if e := c.entries.get(id); e != nil {
		return e
	}
	return c.runOf(id)
}

// own returns the entry of a message, after it has broken the run that the message was in; nil: there is none.
func (c *Channel) own(id batch.ID) *entry {
	e := c.look(id)
	if e != nil && e.run != 0 {
		c.part(e.id.Partition()).breakRun(e)
		e = c.entries.get(id)
	}
	return e
}

// runOf returns the run that a message is in flight in, or nil.
func (c *Channel) runOf(id batch.ID) *entry {
	n := id.Partition()
	if int64(n) >= int64(len(c.parts)) || c.parts[n] == nil {
		return nil
	}
	if e := c.parts[n].runs.find(id); e != nil && e.run>>(id-e.id)&1 != 0 {
		return e
	}
	return nil
}

// breakRun gives each message of a run an entry of its own, in the place of the run.
func (p *partition) breakRun(e *entry) {
	cl := e.client
	p.runs.remove(e)
	due := e.timer.Due()
	p.entries.wheel.Cancel(&e.timer)
	for run := e.run; run != 0; run &= run - 1 {
		k := bits.TrailingZeros64(run)
		one := p.entries.pool.get(e.id + batch.ID(k))
		one.at, one.index, one.hasAt, one.tag, one.told = e.at, e.index, e.hasAt, e.tag, e.told
		if e.index != NoIndex {
			one.index += uint32(k)
		}
		one.attempts, one.counted, one.number = e.attempts, e.counted, e.number+uint64(k)
		one.state, one.client, one.holder, one.startMs = e.state, cl, e.holder, e.startMs
		p.entries.put(one)
		p.entries.wheel.Schedule(&one.timer, due)
		cl.flight.insertBefore(one, e)
	}
	cl.flight.remove(e)
	p.entries.pool.put(e)
}

// breakRuns breaks all runs of a partition. Only rare events may use it.
func (p *partition) breakRuns() {
	for p.runs.len() > 0 {
		p.breakRun(p.runs.last())
	}
}

// timeOutRun is fire for a run.
func (c *Channel) timeOutRun(e *entry) {
	id, run := e.id, e.run
	c.part(e.id.Partition()).breakRun(e)
	for ; run != 0; run &= run - 1 {
		c.fire(&c.entries.get(id + batch.ID(bits.TrailingZeros64(run))).timer)
	}
}

// finishInRun ends the delivery of those messages of a run that done has a bit of, and forgets the run with its last
// message. It confirms nothing.
func (c *Channel) finishInRun(e *entry, done uint64) {
	cl := e.client
	e.run &^= done
	if e.run == 0 {
		c.entries.wheel.Cancel(&e.timer)
		cl.flight.remove(e)
		c.part(e.id.Partition()).runs.remove(e)
		c.entries.pool.put(e)
	}
	c.clients.end(cl, bits.OnesCount64(done))
}

// addRun is add for those messages of a run that done has a bit of.
func (g *gathered) addRun(p *partition, e *entry, done uint64) {
	m := e.id.MsgID()
	for done != 0 {
		from := bits.TrailingZeros64(done)
		n := bits.TrailingZeros64(^(done >> from))
		first := m + segment.MsgID(from)
		g.add(p, fold.IDRange{From: first, To: first + segment.MsgID(n)})
		done &^= (1<<n - 1) << from
	}
}

// throughNumber returns the bits of a run's messages whose deliveries have numbers up to number.
func (e *entry) throughNumber(number uint64) uint64 {
	if number < e.number {
		return 0
	}
	if n := number - e.number + 1; n < MaxRunCount {
		return e.run & (1<<n - 1)
	}
	return e.run
}

// each visits the messages of an entry in flight, and the numbers of their deliveries.
func (e *entry) each(visit func(id batch.ID, number uint64)) {
	if e.run == 0 {
		visit(e.id, e.number)
	}
	for run := e.run; run != 0; run &= run - 1 {
		k := bits.TrailingZeros64(run)
		visit(e.id+batch.ID(k), e.number+uint64(k))
	}
}

// runList is the runs of a partition, sorted by id. Runs come at its end, and mostly leave it from its front.
type runList struct {
	r    []*entry // the list is r[head:]
	head int
}

func (l *runList) len() int { return len(l.r) - l.head }

func (l *runList) last() *entry { return l.r[len(l.r)-1] }

// push appends a run. Before the slice would grow, push uses the room again that is free at the front.
func (l *runList) push(e *entry) {
	if len(l.r) == cap(l.r) && l.head > len(l.r)/2 {
		n := copy(l.r, l.r[l.head:])
		clear(l.r[n:])
		l.r, l.head = l.r[:n], 0
	}
	l.r = append(l.r, e)
}

// find returns the run that begins at or before id, and ends behind it; nil: there is none.
func (l *runList) find(id batch.ID) *entry {
	if i := l.search(id); i >= l.head && id-l.r[i].id < MaxRunCount {
		return l.r[i]
	}
	return nil
}

// search returns the index in r of the last run that begins at or before id; head-1: none does.
func (l *runList) search(id batch.ID) int {
	lo, hi := l.head, len(l.r)
	if lo < hi && id-l.r[lo].id < MaxRunCount { // the oldest: the usual case
		hi = lo + 1
		if lo+1 < len(l.r) && l.r[lo+1].id <= id {
			hi = min(lo+MaxRunCount/minRunCount+1, len(l.r))
		}
	}
	for lo < hi {
		if mid := int(uint(lo+hi) / 2); l.r[mid].id <= id {
			lo = mid + 1
		} else {
			hi = mid
		}
	}
	return lo - 1
}

// remove removes a run, and moves the shorter side.
func (l *runList) remove(e *entry) {
	i := l.search(e.id)
	if i < l.head || l.r[i] != e {
		panic("BUG: removing a run that is not in the list")
	}
	if i-l.head < len(l.r)-i {
		copy(l.r[l.head+1:i+1], l.r[l.head:i])
		l.r[l.head] = nil
		if l.head++; l.head == len(l.r) {
			l.r, l.head = l.r[:0], 0
		}
		return
	}
	copy(l.r[i:], l.r[i+1:])
	l.r[len(l.r)-1] = nil
	l.r = l.r[:len(l.r)-1]
}
