package metrics

import (
	"fmt"
	"slices"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"penstock/internal/node"
)

// Whole families are reduced to sums, those of channels first, and this is never taken back.
func TestDetailFor(t *testing.T) {
	for _, x := range []struct {
		before           detail
		topics, channels int
		most             int
		want             detail
	}{
		{allDetail, 0, 0, 1, allDetail},
		{allDetail, 10, 10, 10*seriesPerTopic + 10*seriesPerChannel, allDetail},
		{allDetail, 10, 10, 10*seriesPerTopic + 10*seriesPerChannel - 1, onlyTopics},
		{allDetail, 10, 0, 10 * seriesPerTopic, allDetail},
		{allDetail, 10, 10, 10*seriesPerTopic + seriesPerChannel, onlyTopics},
		{allDetail, 10, 10, 10*seriesPerTopic + seriesPerChannel - 1, onlyAggregate},
		{allDetail, 20_000, 60_000, 10_000, onlyAggregate},
		{allDetail, 1000, 3000, 10_000, onlyTopics},
		{onlyTopics, 1, 1, 10_000, onlyTopics},
		{onlyTopics, 20_000, 0, 10_000, onlyAggregate},
		{onlyAggregate, 0, 0, 10_000, onlyAggregate},
	} {
		if got := detailFor(x.before, x.topics, x.channels, x.most); got != x.want {
			t.Errorf("%+v: %d", x, got)
		}
	}
}

// A sum over counters never goes down and counts nothing twice, whatever becomes of the objects.
func TestSums(t *testing.T) {
	a, b := object{topic: "a"}, object{topic: "b"}
	type seen map[object]uint64
	exists := map[string]bool{"a": true, "b": true}
	var s sums
	for i, step := range []struct {
		what string
		now  seen
		gone string
		want uint64
	}{
		{"two objects", seen{a: 5, b: 7}, "", 12},
		{"both grow", seen{a: 6, b: 9}, "", 15},
		{"another node leads b", seen{a: 6}, "", 15},
		{"this node leads b again, which went on to count", seen{a: 6, b: 10}, "", 16},
		{"b was deleted", seen{a: 6}, "b", 16},
		{"another b was made", seen{a: 6, b: 3}, "", 19},
		{"the counter of a began anew", seen{a: 2, b: 3}, "", 21},
	} {
		if step.gone != "" {
			delete(exists, step.gone)
		}
		s.begin()
		for name, n := range step.now {
			exists[name.topic] = exists[name.topic] || step.gone == ""
			s.add(name, counts{n})
		}
		if got := s.end(func(topic string) bool { return exists[topic] })[0]; got != step.want {
			t.Errorf("step %d, %s: %d, want %d", i, step.what, got, step.want)
		}
	}
	if len(s.last) != 2 {
		t.Errorf("%d objects are kept", len(s.last))
	}
}

func someObjects(topics, channels int) *objects {
	o := &objects{}
	for i := range topics {
		t := node.TopicStats{Name: fmt.Sprintf("topic-%06d", i), Led: 1, Depth: 1, MessageCount: 10}
		for j := range channels {
			t.Channels = append(t.Channels, node.ChannelStats{Name: fmt.Sprintf("channel-%d", j), Depth: 2, FinishCount: 3})
		}
		o.topics = append(o.topics, t)
	}
	return o
}

// written returns how many series a limiter writes for o.
func written(l *limiter, o *objects) (n int, truncated bool) {
	out := make(chan prometheus.Metric)
	go func() {
		truncated = l.collect(writer{out}, o)
		close(out)
	}()
	for range out {
		n++
	}
	return n, truncated
}

func TestLimiterBoundsSeries(t *testing.T) {
	one := func(o *objects, most, want int, wantTruncated bool) {
		t.Helper()
		if n, truncated := written(&limiter{most: most}, o); n != want || truncated != wantTruncated {
			t.Errorf("%d series, truncated %v; want %d, %v", n, truncated, want, wantTruncated)
		}
	}
	one(someObjects(1, 0), 100, seriesPerTopic, false)
	one(someObjects(1, 1), 100, seriesPerTopic+seriesPerChannel, false)
	one(someObjects(100, 3), 10_000, 100*(seriesPerTopic+3*seriesPerChannel), false)
	one(someObjects(1000, 3), 10_000, 1000*seriesPerTopic+seriesPerChannel, true)
	one(someObjects(20_000, 3), 10_000, seriesPerTopic+seriesPerChannel, true)
	led := someObjects(3, 1)
	led.topics[1].Led = 0 // another node shows it
	one(led, 10_000, 2*(seriesPerTopic+seriesPerChannel), false)

	l := &limiter{most: 100}
	written(l, someObjects(100, 3))
	if n, truncated := written(l, someObjects(1, 1)); n != seriesPerTopic+seriesPerChannel || !truncated {
		t.Errorf("%d series, truncated %v: a family that shows sums has series again", n, truncated)
	}
	l.limit(99) // a lower bound
	if n, truncated := written(l, someObjects(1, 1)); n != seriesPerTopic+seriesPerChannel || !truncated {
		t.Errorf("%d series, truncated %v: a lower bound brings series back", n, truncated)
	}
	if l.limit(10_000); l.bound() != 10_000 {
		t.Errorf("the bound is %d", l.bound())
	}
	if n, truncated := written(l, someObjects(100, 3)); n != 100*(seriesPerTopic+3*seriesPerChannel) || truncated {
		t.Errorf("%d series, truncated %v: a higher bound brings none back", n, truncated)
	}
}

// The states of channels that do not go on have a metric each, also where channels show their sum.
func TestStatesOfChannels(t *testing.T) {
	o := someObjects(2, 1)
	for i := range o.topics {
		c := &o.topics[i].Channels[0]
		c.FullPartitions, c.OutboxCount, c.AsideCount, c.Skipping = 1, 5, 3, true
	}
	for most, want := range map[int]map[string][]float64{
		1000: {
			"channel_full_partitions": {1, 1},
			"channel_outbox_messages": {5, 5}, "channel_aside_messages": {3, 3}, "channel_skipping": {1, 1},
		},
		1: {
			"channel_full_partitions": {2},
			"channel_outbox_messages": {10}, "channel_aside_messages": {6}, "channel_skipping": {1},
		},
	} {
		out := make(chan prometheus.Metric, 1000)
		(&limiter{most: most}).collect(writer{out}, o)
		close(out)
		got := map[string][]float64{}
		for m := range out {
			var read dto.Metric
			if err := m.Write(&read); err != nil {
				t.Fatal(err)
			}
			name := m.(*sample).family.name
			got[name] = append(got[name], read.GetGauge().GetValue())
		}
		for name, values := range want {
			if !slices.Equal(got[prefix+name], values) {
				t.Errorf("at most %d series: %s is %v, want %v", most, name, got[prefix+name], values)
			}
		}
	}
}
