package history

import (
	"cmp"
	"math"
	"slices"
)

// Attention is a channel that may need a person or, without a Name, a topic. Rows of several nodes add up.
type Attention struct {
	Topic string `json:"topic"`
	Channel
	// Grown is by how much Depth has grown in growthTime.
	Grown float64 `json:"grown"`
	// Why are the reasons, the worst first; see Judge.
	Why []string `json:"why"`

	OverQuota     bool `json:"over_quota"`
	DelaysRefused int  `json:"delays_refused"`
	ReadOnly      int  `json:"read_only_partitions"`
}

const (
	growthTime  = 30  // points
	leastGrowth = 100 // messages in growthTime, below which a channel does not count as growing
)

// reasons are the words of Why, the worst first. They are those of docs/reference/states.md, and two more.
var reasons = []struct {
	word  string
	holds func(*Attention) bool
}{
	{"read only", func(a *Attention) bool { return a.ReadOnly > 0 }},
	{"skipping", func(a *Attention) bool { return a.Skipping }},
	{"dropping", func(a *Attention) bool { return a.Dropping }},
	{"over quota", func(a *Attention) bool { return a.OverQuota }},
	{"full", func(a *Attention) bool { return a.FullPartitions > 0 }},
	{"dead letters aside", func(a *Attention) bool { return a.AsideCount > 0 }},
	{"delays refused", func(a *Attention) bool { return a.DelaysRefused > 0 }},
	{"starved", func(a *Attention) bool { return a.Starved }},
	{"no consumers", func(a *Attention) bool { return a.Name != "" && a.ClientCount == 0 && a.Depth > 0 }},
	{"growing", func(a *Attention) bool { return a.Grown >= leastGrowth && a.Grown >= float64(a.Depth)/10 }},
	{"paused", func(a *Attention) bool { return a.Paused }},
}

// Judge sets Why, and says whether there is a reason.
func (a *Attention) Judge() bool {
	a.Why = nil
	for _, r := range reasons {
		if r.holds(a) {
			a.Why = append(a.Why, r.word)
		}
	}
	return len(a.Why) > 0
}

// CompareAttention puts those with the worst reason first, and of these the deepest.
func CompareAttention(a, b *Attention) int {
	rank := func(x *Attention) int {
		for i, r := range reasons {
			if r.holds(x) {
				return i
			}
		}
		return len(reasons)
	}
	return cmp.Or(cmp.Compare(rank(a), rank(b)), cmp.Compare(b.Depth, a.Depth), cmp.Compare(a.Topic, b.Topic),
		cmp.Compare(a.Name, b.Name))
}

// Add adds another node's row.
func (a *Attention) Add(o *Attention) {
	a.Channel.Add(&o.Channel)
	a.Grown += o.Grown
	a.OverQuota = a.OverQuota || o.OverQuota
	a.DelaysRefused += o.DelaysRefused
	a.ReadOnly += o.ReadOnly
}

// Key names the row among those of other nodes.
func (a *Attention) Key() string { return a.Topic + "/" + a.Name }

// Attention returns at most count rows that have a reason on this node, the worst first, as they were at the last look;
// with keys, those of the rows that are named there, whatever they are. A node knows only a part of a channel, so one
// that grows here by little, or has no consumer here, is judged once the parts are together. skip leaves channels out.
func (l *Log) Attention(count int, keys []string, skip func(channel string) bool) []Attention {
	named := map[string]bool{}
	for _, k := range keys {
		named[k] = true
	}
	var rows []Attention
	add := func(a Attention) {
		some := a // a part of the growth is enough to ask the others
		some.Grown *= 8
		if len(keys) > 0 && named[a.Key()] || len(keys) == 0 && some.Judge() {
			rows = append(rows, a)
		}
	}
	l.mu.Lock()
	for name, t := range l.topics {
		if t.seen != l.tick {
			continue
		}
		r := &t.row
		add(Attention{
			Topic: name, OverQuota: r.OverQuota, DelaysRefused: r.DelaysRefused, ReadOnly: r.ReadOnly,
			Channel: Channel{Depth: r.Depth, OldestSeconds: r.OldestSeconds, ClientCount: r.ClientCount, Paused: r.Paused},
		})
		for channel, c := range t.channels {
			if c.seen == l.tick && !skip(channel) {
				add(Attention{Topic: name, Channel: c.row, Grown: c.grown(l.tick)})
			}
		}
	}
	l.mu.Unlock()
	slices.SortFunc(rows, func(a, b Attention) int { return CompareAttention(&a, &b) })
	return rows[:min(count, len(rows))]
}

// grown returns by how much the depth has grown; 0 if that is not known.
func (c *channel) grown(tick int64) float64 {
	if c.ring == nil {
		return 0
	}
	was, now := c.ring[at(tick-growthTime)], c.ring[at(tick)] // the first field is the depth
	if math.IsNaN(float64(was)) {
		return 0 // it was empty then, or nobody knows; a channel that has begun to fill comes later
	}
	return float64(now - was)
}
