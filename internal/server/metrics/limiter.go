package metrics

import (
	"sync"
	"time"

	"penstock/internal/node"
)

// Series of one topic and of one channel. A test compares them with what is written.
const (
	seriesPerTopic   = 9
	seriesPerChannel = 18
)

// detail says which families have a series for each object. It only goes down.
type detail uint8

const (
	allDetail     detail = iota // each topic and each channel has its series
	onlyTopics                  // each topic has its series; channels show one sum
	onlyAggregate               // topics show one sum, too
)

// detailFor returns the most detail that needs no more than most series, and no more detail than before: that a family
// shows sums is not taken back, because sums that become series and series that become sums both look like jumps.
func detailFor(before detail, topics, channels, most int) detail {
	d := before
	if d == allDetail && topics*seriesPerTopic+channels*seriesPerChannel > most {
		d = onlyTopics
	}
	if d == onlyTopics && topics*seriesPerTopic+seriesPerChannel > most {
		d = onlyAggregate
	}
	return d
}

// limiter writes the series of topics and channels, at most most of them; if that is less than a topic and a channel
// have, as many as these. mu guards the fields. A restart forgets them, and shows series for each object again
// if they are few enough.
type limiter struct {
	mu       sync.Mutex
	most     int
	detail   detail
	topics   sums
	channels sums
}

// limit changes the bound. A higher one makes objects that were in sums have series again, if they are few enough.
func (l *limiter) limit(most int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if most > l.most {
		l.detail = allDetail
	}
	l.most = most
}

// bound returns the bound.
func (l *limiter) bound() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.most
}

// collect writes the series of o, and says whether they are sums.
func (l *limiter) collect(w writer, o *objects) (truncated bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	topics, channels := 0, 0
	for i := range o.topics {
		if t := &o.topics[i]; t.Led > 0 {
			topics, channels = topics+1, channels+len(t.Channels)
		}
	}
	l.detail = detailFor(l.detail, topics, channels, l.most)
	writeObjects(w, channelFamilies, l.detail != allDetail, &l.channels, o, func(visit func(object, numbers)) {
		o.eachChannel(func(topic string, c *node.ChannelStats) { visit(object{topic, c.Name}, channelNumbers(c, o.now)) })
	})
	writeObjects(w, topicFamilies, l.detail == onlyAggregate, &l.topics, o, func(visit func(object, numbers)) {
		o.eachTopic(func(t *node.TopicStats) { visit(object{topic: t.Name}, topicNumbers(t)) })
	})
	return l.detail != allDetail
}

// merge says what a sum over topics or channels shows of a gauge.
type merge uint8

const (
	sum merge = iota
	greatest
)

// numbers are those of a topic or channel, in the order of topicRows or channelRows.
type numbers [seriesPerChannel]float64

func topicNumbers(t *node.TopicStats) numbers {
	return numbers{
		float64(t.MessageCount), float64(t.MessageBytes), float64(t.Depth), oneIf(t.Paused), oneIf(t.OverQuota),
		float64(t.DelaysRefused), float64(t.LedBytes), float64(t.Producers), float64(t.MaxProducers),
	}
}

// channelNumbers returns the numbers of a channel at now, by the engine's clock.
func channelNumbers(c *node.ChannelStats, now time.Time) numbers {
	oldest := time.Duration(0)
	if c.OldestNs > 0 {
		oldest = max(0, now.Sub(time.Unix(0, c.OldestNs)))
	}
	return numbers{
		float64(c.Depth), float64(c.InFlightCount), float64(c.DeferredCount), float64(len(c.Consumers)),
		oneIf(c.Paused), oneIf(c.Skipping), oneIf(c.Starved), float64(c.FullPartitions), float64(c.OutboxCount),
		float64(c.AsideCount), oldest.Seconds(), float64(c.DeliverCount), float64(c.FinishCount),
		float64(c.RequeueCount), float64(c.TimeoutCount), float64(c.DroppedCount), float64(c.SkippedCount),
		float64(c.DeadLettered),
	}
}

// writeObjects writes a series of each family for each object, or one for all of them if they are merged.
func writeObjects(
	w writer, fs []*family, merged bool, sums *sums, o *objects, each func(visit func(object, numbers)),
) {
	write := func(name object, n numbers) {
		labels := []string{name.topic, name.channel}[:len(fs[0].labels)]
		for i, f := range fs {
			w.out <- &sample{family: f, value: n[i], values: labels}
		}
	}
	if !merged {
		each(write)
		return
	}
	var all numbers
	sums.begin()
	each(func(name object, n numbers) {
		var now counts
		k := 0
		for i, f := range fs {
			switch {
			case f.kind == counter:
				now[k] = uint64(n[i])
				k++
			case f.merge == greatest:
				all[i] = max(all[i], n[i])
			default:
				all[i] += n[i]
			}
		}
		sums.add(name, now)
	})
	k, counted := 0, sums.end(o.exists)
	for i, f := range fs {
		if f.kind == counter {
			all[i] = float64(counted[k])
			k++
		}
	}
	write(object{}, all)
}

// sums adds up counters of objects that come and go, so that the sums never go down: a counter that went down would
// look to Prometheus like a restart, and its whole value like an increase. The zero value is ready for use. A use is
// begin, then add for each object, then end.
type sums struct {
	sum  counts
	last map[object]counts // what each object counted when it was last seen
	seen map[object]counts // what it counts now; nil outside of begin and end
}

// object names a topic, or a channel if channel is not empty.
type object struct{ topic, channel string }

// counts are up to seven counters of an object.
type counts [7]uint64

func (s *sums) begin() { s.seen = make(map[object]counts, len(s.last)) }

// add takes what an object counts now. A counter that went down began anew at 0: the object was deleted and made again.
func (s *sums) add(name object, now counts) {
	before := s.last[name]
	for i, n := range now {
		if n < before[i] {
			before[i] = 0
		}
		s.sum[i] += n - before[i]
	}
	s.seen[name] = now
}

// end returns the sums. It forgets the objects whose topic does not exist any more. When an object that was not added
// this time comes back, only what it has counted in between is added.
func (s *sums) end(exists func(topic string) bool) counts {
	for name, c := range s.last {
		if _, ok := s.seen[name]; !ok && exists(name.topic) {
			s.seen[name] = c
		}
	}
	s.last, s.seen = s.seen, nil
	return s.sum
}
