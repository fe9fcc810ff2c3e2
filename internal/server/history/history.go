// Package history keeps what a node did in the last 15 minutes, a point for each 10 s, and in the last 12 hours, a
// point for each 8 minutes: rates, depths and percentiles of the node and of the topics and channels that it serves.
// /history and the lists of topics show it; nothing else reads it. A node keeps its own history on its disk for the
// next process, and the history of two other nodes in memory, for the time when they are dead ([Record], [Kept]).
// [Total] adds up what all nodes know.
//
// A [Log] is a step function of looks at the node's counters. It has no clock and no goroutine; the server adds a look
// at each multiple of Interval of the wall clock, so that the points of several nodes can be added up.
package history

import (
	"encoding/json"
	"math"
	"strconv"
	"sync"
	"time"

	"penstock/internal/node"
)

const (
	// Interval is the time between two points of the last minutes, and HoursInterval between two of the last hours.
	Interval      = 10 * time.Second
	HoursInterval = 8 * time.Minute
	// Length is the number of points that are kept of each.
	Length = 90
	// MaxBytes bounds the memory of all points of a Log. A topic or channel in which something happens gets a ring of
	// about 2 KiB as long as there is room, and gives it back when nothing has happened for Length points. Beside the
	// rings every topic and channel costs about 300 bytes.
	MaxBytes = 16 << 20
)

// Look is what a node has counted up to a moment.
type Look struct {
	At        time.Time
	Topics    []node.TopicStats
	Publishes []uint64 // durations of publishes, by buckets: see quantile
	Flushes   []uint64 // durations of writes of the commit log, likewise
}

// Fields of the points, in the order of the values in a ring. Rates are per second.
var (
	nodeFields = []string{
		"published", "published_bytes", "delivered", "finished", "depth", "in_flight", "publish_p99_ms", "flush_p99_ms",
	}
	topicFields   = []string{"published", "published_bytes", "delivered", "depth", "stored_bytes"}
	channelFields = []string{
		"depth", "in_flight", "deferred", "delivered", "finished", "requeued", "timed_out", "oldest_seconds",
	}
)

// Log keeps the points. Any goroutine may call its methods.
type Log struct {
	interval  time.Duration
	mu        sync.Mutex // guards all below; nothing is called while it is held
	tick      int64      // of the newest points: seconds since 1970, divided by those of interval; 0: no points yet
	looked    bool       // this process has, so that there are counts to compare with
	bytes     int        // of all rings
	node      *object
	topics    map[string]*topic
	publishes []uint64
	flushes   []uint64
}

// topic is what is known of a topic and its channels.
type topic struct {
	object
	row      Topic
	channels map[string]*channel
}

type channel struct {
	object
	row Channel
}

func newTopic() *topic {
	return &topic{object: object{fields: topicFields}, channels: map[string]*channel{}}
}

func newChannel() *channel { return &channel{object: object{fields: channelFields}} }

// New returns an empty Log with a point for each interval.
func New(interval time.Duration) *Log {
	l := &Log{interval: interval, topics: map[string]*topic{}, node: &object{fields: nodeFields}}
	l.node.ring = newRing(nodeFields)
	l.bytes = 4 * len(l.node.ring)
	return l
}

// Step is the time between two points, in seconds.
func (l *Log) Step() int { return int(l.interval / time.Second) }

// Add adds the points of a look. Rates are those since the look before; the first look gives none. A second look in the
// same interval is ignored: then Add returns false.
func (l *Log) Add(k *Look) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	tick := tickOf(k.At, l.interval)
	if tick <= l.tick {
		return false
	}
	s := step{first: !l.looked, after: !l.looked && l.tick != 0, tick: tick, at: k.At}
	s.seconds = float64(tick-l.tick) * l.interval.Seconds()
	s.missed = int(min(tick-l.tick-1, Length))
	sum := nodeSums{}
	for i := range k.Topics {
		l.addTopic(&k.Topics[i], &s, &sum)
	}
	l.point(l.node, &s, true, sum.published, sum.bytes, sum.delivered, sum.finished, sum.depth, sum.inFlight,
		quantile(0.99, l.publishes, k.Publishes), quantile(0.99, l.flushes, k.Flushes))
	l.publishes, l.flushes = k.Publishes, k.Flushes
	l.dropGone(&s)
	l.tick, l.looked = tick, true
	return true
}

// step is what the points of one look share.
type step struct {
	first   bool
	after   bool // it is the first one after points of an earlier process: nobody knows the rates, and it gives no points
	tick    int64
	missed  int     // points that no look was made for
	seconds float64 // since the look before
	at      time.Time
}

type nodeSums struct{ published, bytes, delivered, finished, depth, inFlight float64 }

func (l *Log) addTopic(t *node.TopicStats, s *step, sum *nodeSums) {
	o := l.topics[t.Name]
	if o == nil {
		o = newTopic()
		l.topics[t.Name] = o
	}
	row := TopicOf(t, s.at)
	rates := o.rates(s, t.MessageCount, t.MessageBytes)
	row.Published, row.PublishedBytes = rates[0], rates[1]
	for i := range t.Channels {
		c := &t.Channels[i]
		oc := o.channels[c.Name]
		if oc == nil {
			oc = newChannel()
			o.channels[c.Name] = oc
		}
		r := ChannelOf(c, s.at)
		rates := oc.rates(s, c.DeliverCount, c.FinishCount, c.RequeueCount, c.TimeoutCount)
		r.Delivered, r.Finished, r.Requeued, r.TimedOut = rates[0], rates[1], rates[2], rates[3]
		row.Delivered += r.Delivered
		sum.finished += r.Finished
		oc.row = r
		l.point(&oc.object, s, r.busy(), float64(r.Depth), float64(r.InFlightCount), float64(r.DeferredCount), r.Delivered,
			r.Finished, r.Requeued, r.TimedOut, r.OldestSeconds)
	}
	o.row = row
	sum.published += row.Published
	sum.bytes += row.PublishedBytes
	sum.delivered += row.Delivered
	sum.depth += float64(row.Depth)
	sum.inFlight += float64(row.InFlightCount)
	values := row.values()
	l.point(&o.object, s, row.Published > 0 || row.Depth > 0, values[:]...)
}

// dropGone marks what was not in the look, and forgets what has not been for as long as points are kept.
func (l *Log) dropGone(s *step) {
	for name, t := range l.topics {
		for name, c := range t.channels {
			if c.seen != s.tick && l.skip(&c.object, s) {
				delete(t.channels, name)
			}
		}
		if t.seen != s.tick && l.skip(&t.object, s) {
			delete(l.topics, name)
		}
	}
}

// object has the points of the node, a topic or a channel.
type object struct {
	fields []string
	counts [4]uint64 // at the last look
	ring   []float32 // Length values of each field, one field after the other; nil: nothing happened, or no room
	seen   int64     // tick of the last look that it was in
	idle   int       // points in a row in which nothing happened
}

func newRing(fields []string) []float32 {
	ring := make([]float32, len(fields)*Length)
	for i := range ring {
		ring[i] = float32(math.NaN())
	}
	return ring
}

// rates returns how fast the counters rose since the last look. One that went back began anew: what it has now was
// counted since then. A leader that is new here counts from the moment on at which it was first looked at.
func (o *object) rates(s *step, counts ...uint64) (rates [4]float64) {
	for i, n := range counts {
		before := o.counts[i]
		if n < before {
			before = 0
		}
		if !s.first {
			rates[i] = float64(n-before) / s.seconds
		}
		o.counts[i] = n
	}
	return rates
}

// point adds the values of a look to the ring. busy: something happens, so that a ring is worth its memory.
func (l *Log) point(o *object, s *step, busy bool, values ...float64) {
	o.seen = s.tick
	if o.idle++; busy {
		o.idle = 0
	}
	size := 4 * Length * len(o.fields)
	switch {
	case o.ring == nil && (!busy || l.bytes+size > MaxBytes):
		return
	case o.ring == nil:
		o.ring = newRing(o.fields)
		l.bytes += size
	case o.idle >= Length && o != l.node:
		o.ring = nil
		l.bytes -= size
		return
	}
	if s.after {
		values = nil
	}
	o.set(s, values)
}

// skip adds a point without values. It returns true if nothing is left of the object.
func (l *Log) skip(o *object, s *step) bool {
	if o.idle++; o.ring != nil {
		o.set(s, nil)
	}
	if s.tick-o.seen < Length {
		return false
	}
	l.bytes -= 4 * len(o.ring)
	o.ring = nil
	return true
}

// set writes the newest values; nil: there are none. Points that were missed have none.
func (o *object) set(s *step, values []float64) {
	for f := range o.fields {
		for i := range s.missed {
			o.ring[f*Length+at(s.tick-1-int64(i))] = float32(math.NaN())
		}
		v := math.NaN()
		if values != nil {
			v = values[f]
		}
		o.ring[f*Length+at(s.tick)] = float32(v)
	}
}

func at(tick int64) int { return int(tick % Length) }

// Series is the history of the node, a topic or a channel on one node.
type Series struct {
	From int64 `json:"from"`         // of the first point, in seconds since 1970
	Step int   `json:"step_seconds"` // between two points
	// Known are the times, from and to, for which the node has points at all: there a field that is null is not here.
	// Otherwise the node did not run, or what it knew is lost. nil: the node is of a version that does not say it.
	Known  [][2]int64        `json:"known"`
	Fields map[string]Points `json:"fields"` // null where nothing is known; empty: nothing is known at all
}

// newest gives the series its last points only: those of a topic that has no ring.
func (s *Series) newest(fields []string, values [5]float64) {
	for f, name := range fields {
		points := make(Points, Length)
		for i := range points {
			points[i] = float32(math.NaN())
		}
		points[Length-1] = float32(values[f])
		s.Fields[name] = points
	}
}

// Points encodes as numbers of four digits, and null for NaN.
type Points []float32

func (p Points) MarshalJSON() ([]byte, error) {
	out := []byte{'['}
	for i, v := range p {
		if i > 0 {
			out = append(out, ',')
		}
		if math.IsNaN(float64(v)) || math.IsInf(float64(v), 0) {
			out = append(out, "null"...)
			continue
		}
		if v >= 10_000 || v <= -10_000 {
			out = strconv.AppendFloat(out, math.Round(float64(v)), 'f', -1, 64)
			continue
		}
		out = strconv.AppendFloat(out, float64(v), 'g', 4, 32)
	}
	return append(out, ']'), nil
}

func (p *Points) UnmarshalJSON(text []byte) error {
	var all []*float32
	if err := json.Unmarshal(text, &all); err != nil {
		return err
	}
	*p = make(Points, len(all))
	for i, v := range all {
		(*p)[i] = float32(math.NaN())
		if v != nil {
			(*p)[i] = *v
		}
	}
	return nil
}

// Series returns the points of a channel; with an empty channel, of the topic; with an empty topic, of the node.
func (l *Log) Series(topic, channel string) Series {
	l.mu.Lock()
	defer l.mu.Unlock()
	step := l.Step()
	s := Series{
		From: (l.tick - Length + 1) * int64(step), Step: step, Fields: map[string]Points{}, Known: l.known(int64(step)),
	}
	o := l.node
	if topic != "" {
		t := l.topics[topic]
		if t == nil {
			return s
		}
		if o = &t.object; channel != "" {
			c := t.channels[channel]
			if c == nil {
				return s
			}
			o = &c.object
		}
	}
	if o.ring == nil {
		if topic != "" && channel == "" && o.seen == l.tick {
			s.newest(o.fields, l.topics[topic].row.values())
		}
		return s
	}
	for f, name := range o.fields {
		points := make(Points, 0, Length)
		for i := range int64(Length) {
			points = append(points, o.ring[f*Length+at(l.tick+1+i)])
		}
		s.Fields[name] = points
	}
	return s
}

// known returns the times for which there are points.
func (l *Log) known(step int64) [][2]int64 {
	all := [][2]int64{}
	for tick := l.tick - Length + 1; tick <= l.tick; tick++ {
		switch {
		case !l.tickKnown(tick):
		case l.tickKnown(tick - 1):
			all[len(all)-1][1] = tick * step
		default:
			all = append(all, [2]int64{tick * step, tick * step})
		}
	}
	return all
}

// quantile returns the quantile q in ms of the durations that were counted between two looks, or NaN if there was none.
// Bucket i counts durations of less than 1<<i µs that are in no earlier bucket; the result lies within the bucket where
// the quantile is, in proportion to the counts.
func quantile(q float64, before, after []uint64) float64 {
	total := uint64(0)
	for i, n := range after {
		if i < len(before) {
			n -= before[i]
		}
		total += n
	}
	if total == 0 || before == nil {
		return math.NaN()
	}
	rank, sum := q*float64(total), 0.0
	for i, n := range after {
		n := float64(n - before[i])
		if n > 0 && sum+n >= rank {
			low := 0.0
			if i > 0 {
				low = float64(uint64(1) << (i - 1))
			}
			return (low + (float64(uint64(1)<<i)-low)*(rank-sum)/n) / 1000
		}
		sum += n
	}
	return math.NaN()
}
