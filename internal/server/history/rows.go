package history

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"penstock/internal/node"
	"penstock/internal/server/stats"
)

// Topic is a row in the list of topics. Rows of several nodes add up; rates are those of the last 10 s.
type Topic struct {
	Name           string  `json:"name"`
	Partitions     int     `json:"partitions"`
	Published      float64 `json:"published_per_second"`
	PublishedBytes float64 `json:"published_bytes_per_second"`
	Delivered      float64 `json:"delivered_per_second"` // to the consumers of all channels
	PublishedCount uint64  `json:"published_count"`      // ever
	Depth          int64   `json:"depth"`                // waiting in all channels, and in the topic for want of a channel
	InFlightCount  int     `json:"in_flight_count"`
	DeferredCount  int     `json:"deferred_count"`
	ClientCount    int     `json:"client_count"`
	ChannelCount   int     `json:"channel_count"`
	StoredBytes    int64   `json:"stored_bytes"`   // of the leaders' copies
	OldestSeconds  float64 `json:"oldest_seconds"` // age of the oldest message that a channel has not finished; 0: none
	Paused         bool    `json:"paused"`
	OverQuota      bool    `json:"over_quota"`           // see node.TopicStats
	DelaysRefused  int     `json:"delays_refused"`       // partitions that refuse delayed messages now
	ReadOnly       int     `json:"read_only_partitions"` // see node.TopicStats
}

// values are those of topicFields.
func (t *Topic) values() [5]float64 {
	return [5]float64{t.Published, t.PublishedBytes, t.Delivered, float64(t.Depth), float64(t.StoredBytes)}
}

// Channel is a row in the list of a topic's channels; see Topic.
type Channel struct {
	Name          string  `json:"name"`
	Depth         int64   `json:"depth"`
	InFlightCount int     `json:"in_flight_count"`
	DeferredCount int     `json:"deferred_count"`
	ClientCount   int     `json:"client_count"`
	Delivered     float64 `json:"delivered_per_second"`
	Finished      float64 `json:"finished_per_second"`
	Requeued      float64 `json:"requeued_per_second"`
	TimedOut      float64 `json:"timed_out_per_second"`
	RequeueCount  uint64  `json:"requeue_count"` // since the leaders began to serve the channel
	TimeoutCount  uint64  `json:"timeout_count"`
	DeadLettered  uint64  `json:"dead_lettered_count"`
	// DeadLetterTopic: see node.ChannelStats. How many wait there: the depth of its channel redrive.
	DeadLetterTopic string  `json:"dead_letter_topic,omitempty"`
	OldestSeconds   float64 `json:"oldest_seconds"` // age of the oldest message that is not finished; 0: none
	Paused          bool    `json:"paused"`
	stats.Trouble
}

func (c *Channel) busy() bool {
	return c.Depth > 0 || c.InFlightCount > 0 || c.DeferredCount > 0 || c.Delivered > 0 || c.Requeued > 0
}

func age(ns int64, now time.Time) float64 {
	if ns <= 0 {
		return 0
	}
	return max(0, now.Sub(time.Unix(0, ns)).Seconds())
}

// TopicOf returns the row of a topic without rates.
func TopicOf(t *node.TopicStats, now time.Time) Topic {
	r := Topic{
		Name: t.Name, Partitions: t.Partitions, PublishedCount: t.Published, Depth: t.Depth, ChannelCount: len(t.Channels),
		StoredBytes: t.LedBytes, Paused: t.Paused, OverQuota: t.OverQuota,
		DelaysRefused: t.DelaysRefused, ReadOnly: t.ReadOnly,
	}
	for i := range t.Channels {
		c := &t.Channels[i]
		r.Depth += c.Depth
		r.InFlightCount += c.InFlightCount
		r.DeferredCount += c.DeferredCount
		r.ClientCount += len(c.Consumers)
		r.OldestSeconds = max(r.OldestSeconds, age(c.OldestNs, now))
	}
	return r
}

// ChannelOf returns the row of a channel without rates.
func ChannelOf(c *node.ChannelStats, now time.Time) Channel {
	return Channel{
		Name: c.Name, Depth: c.Depth, InFlightCount: c.InFlightCount, DeferredCount: c.DeferredCount,
		ClientCount: len(c.Consumers), RequeueCount: c.RequeueCount, TimeoutCount: c.TimeoutCount,
		DeadLetterTopic: c.DeadLetterTopic, DeadLettered: c.DeadLettered,
		OldestSeconds: age(c.OldestNs, now), Paused: c.Paused, Trouble: stats.TroubleOf(c),
	}
}

// Add adds another node's row of the same topic.
func (t *Topic) Add(o *Topic) {
	t.Partitions = max(t.Partitions, o.Partitions)
	t.Published += o.Published
	t.PublishedBytes += o.PublishedBytes
	t.Delivered += o.Delivered
	t.PublishedCount += o.PublishedCount
	t.Depth += o.Depth
	t.InFlightCount += o.InFlightCount
	t.DeferredCount += o.DeferredCount
	t.ClientCount = max(t.ClientCount, o.ClientCount) // a client has a subscription at each leader
	t.ChannelCount = max(t.ChannelCount, o.ChannelCount)
	t.StoredBytes += o.StoredBytes
	t.OldestSeconds = max(t.OldestSeconds, o.OldestSeconds)
	t.Paused = t.Paused || o.Paused
	t.OverQuota = t.OverQuota || o.OverQuota
	t.DelaysRefused += o.DelaysRefused
	t.ReadOnly += o.ReadOnly
}

// Add adds another node's row of the same channel.
func (c *Channel) Add(o *Channel) {
	c.Depth += o.Depth
	c.InFlightCount += o.InFlightCount
	c.DeferredCount += o.DeferredCount
	c.ClientCount = max(c.ClientCount, o.ClientCount)
	c.Delivered += o.Delivered
	c.Finished += o.Finished
	c.Requeued += o.Requeued
	c.TimedOut += o.TimedOut
	c.RequeueCount += o.RequeueCount
	c.TimeoutCount += o.TimeoutCount
	c.DeadLettered += o.DeadLettered
	c.DeadLetterTopic = cmp.Or(c.DeadLetterTopic, o.DeadLetterTopic)
	c.OldestSeconds = max(c.OldestSeconds, o.OldestSeconds)
	c.Paused = c.Paused || o.Paused
	c.Trouble.Add(&o.Trouble)
}

// Order is what a list of topics is sorted by.
type Order string

// The orders. All but ByName have the largest number first.
const (
	ByName      Order = "name"
	ByPublished Order = "published"
	ByDelivered Order = "delivered"
	ByDepth     Order = "depth"
	ByStored    Order = "stored"
	ByOldest    Order = "oldest"
)

// Orders are all of them.
var Orders = []Order{ByName, ByPublished, ByDelivered, ByDepth, ByStored, ByOldest}

func (o Order) value(t *Topic) float64 {
	switch o {
	case ByPublished:
		return t.Published
	case ByDelivered:
		return t.Delivered
	case ByDepth:
		return float64(t.Depth)
	case ByStored:
		return float64(t.StoredBytes)
	case ByOldest:
		return t.OldestSeconds
	}
	return 0
}

// Compare says which of two rows comes first.
func (o Order) Compare(a, b *Topic) int {
	return cmp.Or(cmp.Compare(o.value(b), o.value(a)), cmp.Compare(a.Name, b.Name))
}

// Busiest returns the first count rows of the topics whose name contains filter, as they were at the last look.
func (l *Log) Busiest(o Order, filter string, count int) []Topic {
	l.mu.Lock()
	rows := make([]*Topic, 0, len(l.topics))
	for name, t := range l.topics {
		if t.seen == l.tick && o.value(&t.row) > 0 && strings.Contains(name, filter) {
			rows = append(rows, &t.row)
		}
	}
	slices.SortFunc(rows, o.Compare)
	out := make([]Topic, 0, min(count, len(rows)))
	for _, r := range rows[:min(count, len(rows))] {
		out = append(out, *r)
	}
	l.mu.Unlock()
	return out
}

// Rate fills the rates of a topic's row in, as they were at the last look.
func (l *Log) Rate(r *Topic) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if t := l.topics[r.Name]; t != nil && t.seen == l.tick {
		r.Published, r.PublishedBytes, r.Delivered = t.row.Published, t.row.PublishedBytes, t.row.Delivered
	}
}

// RateChannel fills the rates of a channel's row in.
func (l *Log) RateChannel(topic string, r *Channel) {
	l.mu.Lock()
	defer l.mu.Unlock()
	t := l.topics[topic]
	if t == nil {
		return
	}
	if c := t.channels[r.Name]; c != nil && c.seen == l.tick {
		r.Delivered, r.Finished, r.Requeued, r.TimedOut = c.row.Delivered, c.row.Finished, c.row.Requeued, c.row.TimedOut
	}
}
