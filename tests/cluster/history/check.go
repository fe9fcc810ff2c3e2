package history

import (
	"fmt"
	"time"
)

// Options say what the run promised.
type Options struct {
	// Undrained says that consumers were stopped before everything arrived: what is missing is not called lost.
	Undrained bool
	// LivenessLimit is how long after a Heal a publish may take until one is acknowledged. Default 10 s.
	LivenessLimit time.Duration
	// ConfirmWindow is how long before a fault a FIN may have been written and yet be forgotten. The engine stores
	// confirmations every 5 ms by default; the rest is for a busy machine. Default 500 ms.
	ConfirmWindow time.Duration
	// SettleTime is how long a connection must live after a FIN for the FIN to count as read. Default 1 s.
	SettleTime time.Duration
	// ReturnTime is how long after a Heal FINs may still be forgotten: leaderships move back to nodes that returned, and
	// what is confirmed in the milliseconds of a move may come again. Default SettleTime.
	ReturnTime time.Duration
	// Ordered are channels that deliver a partition's messages one after the other, whatever happens.
	Ordered []string
}

func (o Options) withDefaults() Options {
	if o.LivenessLimit == 0 {
		o.LivenessLimit = 10 * time.Second
	}
	if o.ConfirmWindow == 0 {
		o.ConfirmWindow = 500 * time.Millisecond
	}
	if o.SettleTime == 0 {
		o.SettleTime = time.Second
	}
	if o.ReturnTime == 0 {
		o.ReturnTime = o.SettleTime
	}
	return o
}

// Kind names a way to be wrong.
type Kind string

// The violations.
const (
	Lost        Kind = "lost"         // C1: acknowledged, and a channel that existed did not get it
	TornBatch   Kind = "torn batch"   // B14: a part of an MPUB
	Phantom     Kind = "phantom"      // C2: nobody sent it, or not yet
	Corrupt     Kind = "corrupt"      // C2: bytes that nobody sent
	Aborted     Kind = "aborted"      // C3: it was certainly not stored, and came
	DivergentID Kind = "divergent id" // C4: one id, two values
	Duplicate   Kind = "duplicate"    // C4: one value, two ids
	Regression  Kind = "regression"   // C5: first deliveries on one connection went back, with no fault between
	// an ordered channel delivered a message behind a later one, to whomever, faults or not
	WentBack      Kind = "went back"
	BeforeChannel Kind = "before channel" // acknowledged before its channel was asked for, and not the first channel
	Reordered     Kind = "reordered"      // C7: one producer's messages changed places
	Stale         Kind = "stale"          // C7: published after another's acknowledgement, stored before it
	Redelivered   Kind = "redelivered"    // confirmed in quiet times, and delivered again
	Stuck         Kind = "stuck"          // C10: healed, and nothing is acknowledged
	Malformed     Kind = "malformed"      // the history contradicts itself: a bug of the recorder, not of the engine
)

// maxExamples bounds the violations of one kind that are told in full.
const maxExamples = 8

// Violation is one proof.
type Violation struct {
	Kind Kind
	Text string
}

// Report is the judgement.
type Report struct {
	Published, Acked, Failed, Unknown int // values
	Surfaced                          int // of the unknown ones, those that were delivered
	Deliveries, Repeated              int // Repeated: beyond the first on the same channel
	Forgotten                         int // FINs that a fault excuses, delivered again
	Classes                           map[string]int

	Violations []Violation  // at most a few of each kind
	Counts     map[Kind]int // all of them
	Windows    []Window
}

// OK says that nothing was found.
func (r *Report) OK() bool { return len(r.Counts) == 0 }

func (r *Report) add(k Kind, format string, args ...any) {
	r.Counts[k]++
	if r.Counts[k] <= maxExamples {
		r.Violations = append(r.Violations, Violation{k, fmt.Sprintf(format, args...)})
	}
}

// publish is one operation of a producer.
type publish struct {
	Event       // the invocation
	done  Event // its outcome; Op empty: none came
}

func (p *publish) acked() bool { return p.done.Op == OK }

// key names a value.
type key struct {
	client string
	seq    uint64
}

func (k key) String() string { return fmt.Sprintf("%s/%d", k.client, k.seq) }

// value is one message.
type value struct {
	key
	pub   *publish
	id    uint64
	known bool             // id is
	on    map[*channel]int // deliveries
}

func (v *value) count(ch *channel) {
	if v.on == nil {
		v.on = make(map[*channel]int, 1)
	}
	v.on[ch]++
}

// channel is one channel of one topic.
type channel struct {
	topic, name string
	asked       time.Duration
	exists      time.Duration
	answered    bool
	first       bool

	fins map[uint64]*fin // the last one of each message
}

func (c *channel) String() string { return c.topic + "/" + c.name }

// checker is the state of one judgement.
type checker struct {
	Options
	events   []Event
	r        *Report
	values   map[key]*value
	all      []*value // the same, in order of publishing
	pubs     []*publish
	open     map[key]*publish
	channels map[[2]string]*channel
	order    []*channel
	ids      map[string]map[uint64]*value // topic → id → the value that has it
	conns    map[connKey]time.Duration    // when a connection went
	cursors  map[cursorKey]*Event         // the last first delivery
	highest  map[laneKey]*Event           // of an ordered channel: the highest message that anybody got
	faults   []*fault
	end      time.Duration
}

// connKey names one connection of a run.
type connKey struct {
	client string
	conn   uint64
}

// laneKey is what an ordered channel delivers in order.
type laneKey struct {
	ch        *channel
	partition uint32
}

// cursorKey is what first deliveries rise in.
type cursorKey struct {
	connKey
	ch        *channel
	partition uint32
}

// Check judges a history, whose events are in order of time. It takes O(n log n).
func Check(events []Event, o Options) *Report {
	c := &checker{
		Options: o.withDefaults(), events: events, r: &Report{Counts: map[Kind]int{}, Classes: map[string]int{}},
		values: map[key]*value{}, open: map[key]*publish{}, channels: map[[2]string]*channel{},
		ids: map[string]map[uint64]*value{}, conns: map[connKey]time.Duration{}, cursors: map[cursorKey]*Event{},
		highest: map[laneKey]*Event{},
	}
	c.survey()
	for i := range events {
		c.event(&events[i])
	}
	c.outcomes()
	if !c.Undrained {
		c.losses()
	}
	c.producerOrder()
	c.realTimeOrder()
	c.liveness()
	c.r.Windows = c.windows()
	return c.r
}

// survey reads what later events need to be judged by: faults, and when connections end.
func (c *checker) survey() {
	open := map[uint64]*fault{}
	for i := range c.events {
		e := &c.events[i]
		if i > 0 && e.At < c.events[i-1].At {
			c.r.add(Malformed, "the time goes back: %v", e)
		}
		c.end = e.At
		switch e.Op {
		case Close:
			c.conns[connKey{e.Client, e.Conn}] = e.At
		case Fault:
			f := &fault{Event: *e, heal: -1}
			open[e.Seq] = f
			c.faults = append(c.faults, f)
		case Heal:
			if f := open[e.Seq]; f != nil {
				f.heal = e.At
			} else {
				c.r.add(Malformed, "no fault to heal: %v", e)
			}
		}
	}
}

func (c *checker) event(e *Event) {
	switch e.Op {
	case Publish:
		c.publish(e)
	case OK, Fail, Unknown:
		c.outcome(e)
	case Channel, Exists:
		c.channelEvent(e)
	case Deliver:
		c.deliver(e)
	case Garbage:
		c.r.Deliveries++
		c.r.add(Corrupt, "%v", e)
	case Fin:
		c.fin(e)
	case FinErr:
		c.finRefused(e)
	case Open, Close, Fault, Heal, Note:
	default:
		c.r.add(Malformed, "unknown event: %v", e)
	}
}

func (c *checker) publish(e *Event) {
	p := &publish{Event: *e}
	c.pubs = append(c.pubs, p)
	c.open[key{e.Client, e.Seq}] = p
	for i := range e.count() {
		k := key{e.Client, e.Seq + i}
		if c.values[k] != nil {
			c.r.add(Malformed, "published twice: %v", e)
			continue
		}
		v := &value{key: k, pub: p}
		c.values[k] = v
		c.all = append(c.all, v)
	}
}

func (c *checker) outcome(e *Event) {
	p := c.open[key{e.Client, e.Seq}]
	if p == nil {
		c.r.add(Malformed, "an outcome of nothing: %v", e)
		return
	}
	delete(c.open, key{e.Client, e.Seq})
	p.done = *e
}

// outcomes judges and counts them, when every delivery is known.
func (c *checker) outcomes() {
	for _, v := range c.all {
		c.r.Published++
		switch v.pub.done.Op {
		case OK:
			c.r.Acked++
		case Fail:
			c.r.Failed++
			c.r.Classes[v.pub.done.Detail]++
			if v.known {
				c.r.add(Aborted, "%s failed for certain (%s) and was delivered as %016x", v, v.pub.done.Detail, v.id)
			}
		default:
			c.r.Unknown++
			c.r.Classes[v.pub.done.Detail]++
			if v.known {
				c.r.Surfaced++
			}
		}
	}
}

func (c *checker) channelOf(e *Event) *channel {
	k := [2]string{e.Topic, e.Channel}
	ch := c.channels[k]
	if ch == nil {
		ch = &channel{topic: e.Topic, name: e.Channel, asked: e.At, fins: map[uint64]*fin{}}
		c.channels[k] = ch
		c.order = append(c.order, ch)
	}
	return ch
}

func (c *checker) channelEvent(e *Event) {
	ch := c.channelOf(e)
	ch.first = ch.first || e.First
	if e.Op == Exists && !ch.answered {
		ch.answered, ch.exists = true, e.At
	}
}
