package history

import (
	"encoding/json"
	"math"
	"slices"
	"sync"
	"time"
)

// Record has the points of one look, on the disk and on the way to other nodes. Later versions may have more fields
// behind those of today.
type Record struct {
	Tick   int64                  `json:"tick"`
	Node   Points                 `json:"node"`
	Topics map[string]TopicRecord `json:"topics,omitempty"`
}

// TopicRecord is the part of a Record about a topic.
type TopicRecord struct {
	Points   Points            `json:"points,omitempty"`
	Channels map[string]Points `json:"channels,omitempty"`
}

// maxRecordsBytes bounds an answer to another node; a longer rest comes with the next one.
const maxRecordsBytes = 1 << 20

// MaxFileBytes bounds what a node keeps of its history on its disk.
const MaxFileBytes = 32 << 20

// depthField is a field of the node that every look has.
var depthField = slices.Index(nodeFields, "depth")

func tickOf(t time.Time, interval time.Duration) int64 { return t.Unix() / int64(interval/time.Second) }

// Newest returns the newest record, encoded; nil: the last look has none.
func (l *Log) Newest() []byte {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.record(l.tick)
}

// Records returns the records after a tick, the oldest first, and whether there are more.
func (l *Log) Records(after int64) (all []json.RawMessage, more bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	size := 0
	for tick := max(after, l.tick-Length, 0) + 1; tick <= l.tick; tick++ {
		if size > maxRecordsBytes {
			return all, true
		}
		if text := l.record(tick); text != nil {
			all, size = append(all, text), size+len(text)
		}
	}
	return all, false
}

// record encodes the points of a tick; nil: the node has looked at nothing then.
func (l *Log) record(tick int64) []byte {
	r := Record{Tick: tick, Node: l.node.at(tick), Topics: map[string]TopicRecord{}}
	if r.Node == nil {
		return nil
	}
	for name, t := range l.topics {
		tr := TopicRecord{Points: t.at(tick)}
		for name, c := range t.channels {
			if p := c.at(tick); p != nil {
				if tr.Channels == nil {
					tr.Channels = map[string]Points{}
				}
				tr.Channels[name] = p
			}
		}
		if tr.Points != nil || tr.Channels != nil {
			r.Topics[name] = tr
		}
	}
	text, err := json.Marshal(&r)
	if err != nil {
		panic("BUG: " + err.Error()) // it has only numbers and names
	}
	return text
}

// at returns the points of a tick; nil: there are none.
func (o *object) at(tick int64) (p Points) {
	known := false
	for f := range o.fields {
		if o.ring == nil {
			return nil
		}
		v := o.ring[f*Length+at(tick)]
		known = known || !math.IsNaN(float64(v))
		p = append(p, v)
	}
	if !known {
		return nil
	}
	return p
}

// Replay adds the points of a record: of an earlier process of this node, or of another node. One that is not newer
// than what is known, too old, or more than ahead ticks in the future, is ignored.
func (l *Log) Replay(text []byte, now time.Time, ahead int64) {
	var r Record
	tick := tickOf(now, l.interval)
	if json.Unmarshal(text, &r) != nil || r.Tick > tick+ahead || r.Tick <= tick-Length {
		return // a crash tore it, the clock was set, or it is too old
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if r.Tick <= l.tick {
		return
	}
	s := step{tick: r.Tick, missed: int(min(r.Tick-l.tick-1, Length))}
	l.replayed(l.node, &s, r.Node)
	for name, tr := range r.Topics {
		t := l.topics[name]
		if t == nil {
			t = newTopic()
			l.topics[name] = t
		}
		l.replayed(&t.object, &s, tr.Points)
		for name, p := range tr.Channels {
			c := t.channels[name]
			if c == nil {
				c = newChannel()
				t.channels[name] = c
			}
			l.replayed(&c.object, &s, p)
		}
	}
	l.dropGone(&s)
	l.tick = s.tick
}

func (l *Log) replayed(o *object, s *step, p Points) {
	values := make([]float64, len(o.fields))
	for f := range values {
		values[f] = math.NaN()
		if f < len(p) {
			values[f] = float64(p[f])
		}
	}
	l.point(o, s, true, values...)
}

// tickKnown says whether the node has looked then.
func (l *Log) tickKnown(tick int64) bool {
	return tick > 0 && tick <= l.tick && tick > l.tick-Length &&
		!math.IsNaN(float64(l.node.ring[depthField*Length+at(tick)]))
}

// Kept has what other nodes remember, so that it is not lost with them. Any goroutine may call its methods.
type Kept struct {
	interval time.Duration
	mu       sync.Mutex // guards logs; below it are the mutexes of the logs
	logs     map[string]*Log
}

// NewKept returns an empty Kept for logs with this interval.
func NewKept(interval time.Duration) *Kept { return &Kept{interval: interval, logs: map[string]*Log{}} }

// Last returns the tick of the newest record of a node; 0: there is none.
func (k *Kept) Last(node string) int64 {
	k.mu.Lock()
	defer k.mu.Unlock()
	if l := k.logs[node]; l != nil {
		return l.tick
	}
	return 0
}

// Keep adds records of a node, and forgets nodes of which nothing new has come for as long as points are kept.
func (k *Kept) Keep(node string, records []json.RawMessage, now time.Time) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.logs[node] == nil {
		k.logs[node] = New(k.interval)
	}
	for _, text := range records {
		k.logs[node].Replay(text, now, Length) // its clock may be ahead
	}
	for name, l := range k.logs {
		if l.tick <= tickOf(now, k.interval)-Length {
			delete(k.logs, name)
		}
	}
}

// Series returns what is kept of a node; see Log.Series.
func (k *Kept) Series(node, topic, channel string) (Series, bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	l := k.logs[node]
	if l == nil {
		return Series{}, false
	}
	return l.Series(topic, channel), true
}
