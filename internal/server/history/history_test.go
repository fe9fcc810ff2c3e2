package history

import (
	"encoding/json"
	"fmt"
	"math"
	"testing"
	"time"

	"penstock/internal/node"
	"penstock/internal/server/stats"
)

var begin = time.Unix(1_700_000_000, 0)

// look is a look at one topic with one channel, i intervals after the beginning.
func look(i int, published, finished uint64, depth int64) *Look {
	at := begin.Add(time.Duration(i) * Interval)
	return &Look{At: at, Topics: []node.TopicStats{{
		Name: "t", MessageCount: published, Channels: []node.ChannelStats{{
			Name: "c", Depth: depth, DeliverCount: finished, FinishCount: finished,
			OldestNs: at.Add(-3 * time.Second).UnixNano(),
		}},
	}}}
}

func last(p Points) float32 { return p[len(p)-1] }

func TestRates(t *testing.T) {
	l := New(Interval)
	l.Add(look(0, 1000, 500, 7))
	if s := l.Series("", ""); last(s.Fields["published"]) != 0 {
		t.Errorf("the first look has the rate %v: nobody knows when that was", s.Fields["published"])
	}
	l.Add(look(1, 1100, 550, 57))
	l.Add(look(1, 9999, 9999, 57)) // once per interval
	s := l.Series("t", "c")
	if got := last(s.Fields["finished"]); got != 5 {
		t.Errorf("finished: %v per second", got)
	}
	if got := last(l.Series("t", "").Fields["published"]); got != 10 {
		t.Errorf("published: %v per second", got)
	}
	if last(s.Fields["depth"]) != 57 || last(s.Fields["oldest_seconds"]) != 3 {
		t.Errorf("%v", s.Fields)
	}
	if want := begin.Unix() + 10 - 89*10; s.From != want || s.Step != 10 || len(s.Fields["depth"]) != Length {
		t.Errorf("from %d, want %d; step %d, %d points", s.From, want, s.Step, len(s.Fields["depth"]))
	}
	l.Add(look(4, 400, 0, 0)) // 30 s later; the counter began anew
	p := l.Series("t", "").Fields["published"]
	if got := p[Length-4:]; got[0] != 10 || !math.IsNaN(float64(got[1])) || !math.IsNaN(float64(got[2])) ||
		math.Abs(float64(got[3])-400./30) > 1e-5 {
		t.Errorf("after a gap: %v", got)
	}
	text, err := json.Marshal(p[Length-4:])
	if err != nil || string(text) != "[10,null,null,13.33]" {
		t.Errorf("%s, %v", text, err)
	}
	var back Points
	if err := json.Unmarshal(text, &back); err != nil || !math.IsNaN(float64(back[1])) || back[0] != 10 {
		t.Errorf("%v, %v", back, err)
	}
}

// What is idle for as long as points are kept gives its memory back, and what is gone is forgotten.
func TestMemoryIsGivenBack(t *testing.T) {
	l := New(Interval)
	own := l.bytes
	l.Add(look(0, 0, 0, 0))
	if l.bytes != own {
		t.Errorf("idle objects take %d bytes", l.bytes-own)
	}
	l.Add(look(1, 10, 10, 1))
	if l.bytes == own {
		t.Error("busy objects have no rings")
	}
	for i := range Length + 1 {
		l.Add(look(2+i, 10, 10, 0))
	}
	if l.bytes != own || len(l.topics) != 1 {
		t.Errorf("%d bytes are left", l.bytes-own)
	}
	l.Add(look(Length+4, 20, 20, 1))
	for i := range Length + 1 {
		l.Add(&Look{At: begin.Add(time.Duration(Length+5+i) * Interval)})
	}
	if l.bytes != own || len(l.topics) != 0 {
		t.Errorf("%d bytes and %d topics are left", l.bytes-own, len(l.topics))
	}
}

// A topic in which nothing happens has no memory of its own, and its newest values are known all the same.
func TestIdleTopic(t *testing.T) {
	l := New(Interval)
	k := &Look{Topics: []node.TopicStats{{Name: "t", MessageCount: 3, LedBytes: 421}}}
	own := l.bytes
	for i := range 3 {
		k.At = begin.Add(time.Duration(i) * Interval)
		l.Add(k)
	}
	s := l.Series("t", "")
	if l.bytes != own || len(s.Fields) != len(topicFields) {
		t.Fatalf("%d bytes, fields %v", l.bytes-own, s.Fields)
	}
	for name, want := range map[string]float32{"stored_bytes": 421, "depth": 0, "published": 0} {
		p := s.Fields[name]
		if len(p) != Length || last(p) != want || !math.IsNaN(float64(p[Length-2])) {
			t.Errorf("%s: %v", name, p)
		}
	}
	l.Add(&Look{At: begin.Add(3 * Interval)}) // another node leads it now
	if s := l.Series("t", ""); len(s.Fields) != 0 {
		t.Errorf("of a topic that is not here: %v", s.Fields)
	}
}

func TestMemoryIsBounded(t *testing.T) {
	l := New(Interval)
	k := &Look{At: begin}
	for i := range 20_000 {
		k.Topics = append(k.Topics, node.TopicStats{
			Name: fmt.Sprint(i), Depth: int64(i), Channels: []node.ChannelStats{{Name: "c", Depth: 1}},
		})
	}
	l.Add(k)
	if l.bytes > MaxBytes || l.bytes < MaxBytes-10_000 {
		t.Errorf("%d bytes", l.bytes)
	}
	if s := l.Series("19999", "c"); len(s.Fields) != 0 {
		t.Error("there was room for everything")
	}
	busy := l.Busiest(ByDepth, "99", 3)
	if len(busy) != 3 || busy[0].Name != "19999" || busy[0].Depth != 20_000 || busy[1].Name != "19998" {
		t.Errorf("%+v", busy)
	}
}

func TestQuantile(t *testing.T) {
	if !math.IsNaN(quantile(0.99, nil, []uint64{1})) || !math.IsNaN(quantile(0.99, []uint64{1, 2}, []uint64{1, 2})) {
		t.Error("nothing was measured, and there is a quantile")
	}
	before, after := make([]uint64, 24), make([]uint64, 24)
	after[10] = 100 // 512 to 1024 µs
	if got := quantile(0.99, before, after); math.Abs(got-1.01888) > 1e-9 {
		t.Errorf("%v ms", got)
	}
	after[13] = 10 // 4 to 8 ms
	if got := quantile(0.99, before, after); got < 4 || got > 8.192 {
		t.Errorf("%v ms", got)
	}
	before[10], before[13] = 100, 10 // what was measured earlier does not count
	after[15] = 5                    // 16 to 33 ms
	if got := quantile(0.99, before, after); got < 16 || got > 33 {
		t.Errorf("%v ms, after faster publishes", got)
	}
}

// The rows of the nodes that lead partitions of one topic become one row: what each has counted is added, what each may
// have counted is not.
func TestRowsOfNodesAddUp(t *testing.T) {
	topic := Topic{
		Name: "t", Partitions: 3, Published: 1, PublishedBytes: 2, Delivered: 3, PublishedCount: 4, Depth: 5,
		InFlightCount: 6, DeferredCount: 7, ClientCount: 8, ChannelCount: 9, StoredBytes: 10, OldestSeconds: 11,
	}
	topic.Add(&Topic{
		Name: "t", Partitions: 3, Published: 10, PublishedBytes: 10, Delivered: 10, PublishedCount: 10, Depth: 10,
		InFlightCount: 10, DeferredCount: 10, ClientCount: 10, ChannelCount: 9, StoredBytes: 10, OldestSeconds: 10,
		Paused: true,
	})
	if want := (Topic{
		Name: "t", Partitions: 3, Published: 11, PublishedBytes: 12, Delivered: 13, PublishedCount: 14, Depth: 15,
		InFlightCount: 16, DeferredCount: 17, ClientCount: 10, ChannelCount: 9, StoredBytes: 20, OldestSeconds: 11,
		Paused: true,
	}); topic != want {
		t.Errorf("the topic's row is\n%+v, want\n%+v", topic, want)
	}
	channel := Channel{
		Name: "c", Depth: 1, InFlightCount: 2, DeferredCount: 3, ClientCount: 4, Delivered: 5, Finished: 6, Requeued: 7,
		TimedOut: 8, RequeueCount: 9, TimeoutCount: 10, DeadLettered: 11, OldestSeconds: 12, Paused: true,
		Trouble: stats.Trouble{OutboxCount: 13, AsideCount: 14, FullPartitions: 15, DroppedCount: 16, SkippedCount: 17},
	}
	channel.Add(&Channel{
		Name: "c", Depth: 10, InFlightCount: 10, DeferredCount: 10, ClientCount: 3, Delivered: 10, Finished: 10, Requeued: 10,
		TimedOut: 10, RequeueCount: 10, TimeoutCount: 10, DeadLettered: 10, OldestSeconds: 10,
		Trouble: stats.Trouble{
			OutboxCount: 10, AsideCount: 10, AsideWhy: "too big", FullPartitions: 10,
			DroppedCount: 10, Dropping: true, SkippedCount: 10, Skipping: true, SkippedBefore: true,
		},
	})
	if want := (Channel{
		Name: "c", Depth: 11, InFlightCount: 12, DeferredCount: 13, ClientCount: 4, Delivered: 15, Finished: 16, Requeued: 17,
		TimedOut: 18, RequeueCount: 19, TimeoutCount: 20, DeadLettered: 21, OldestSeconds: 12, Paused: true,
		Trouble: stats.Trouble{
			OutboxCount: 23, AsideCount: 24, AsideWhy: "too big", FullPartitions: 25,
			DroppedCount: 26, Dropping: true, SkippedCount: 27, Skipping: true, SkippedBefore: true,
		},
	}); channel != want {
		t.Errorf("the channel's row is\n%+v, want\n%+v", channel, want)
	}
}

func BenchmarkAdd20000(b *testing.B) {
	k := &Look{}
	for i := range 20_000 {
		k.Topics = append(k.Topics, node.TopicStats{Name: fmt.Sprint(i), Channels: make([]node.ChannelStats, 1)})
	}
	l := New(Interval)
	for i := 0; b.Loop(); i++ {
		k.At = begin.Add(time.Duration(i) * Interval)
		l.Add(k)
	}
}
