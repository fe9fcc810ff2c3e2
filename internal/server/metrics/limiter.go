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
// have, as many as these. mu guards the fields below it. A restart forgets them, and shows series for each object again
// if they are few enough.
type limiter struct {
	most int

	mu       sync.Mutex
	detail   detail
	topics   sums
	channels sums
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
	if l.detail == allDetail {
		o.eachChannel(func(topic string, c *node.ChannelStats) { writeChannel(w, topic, c.Name, channelNow(c, o.now)) })
	} else {
		l.sumChannels(w, o)
	}
	if l.detail != onlyAggregate {
		o.eachTopic(func(t *node.TopicStats) {
			writeTopic(w, t.Name, topicNow(t), topicCounts(t))
		})
	} else {
		l.sumTopics(w, o)
	}
	return l.detail != allDetail
}

func (l *limiter) sumChannels(w writer, o *objects) {
	l.channels.begin()
	var all channelNumbers
	o.eachChannel(func(topic string, c *node.ChannelStats) {
		n := channelNow(c, o.now)
		all.add(n)
		l.channels.add(object{topic, c.Name}, n.counts)
	})
	all.counts = l.channels.end(o.exists)
	writeChannel(w, "", "", &all)
}

func (l *limiter) sumTopics(w writer, o *objects) {
	l.topics.begin()
	var all topicNumbers
	o.eachTopic(func(t *node.TopicStats) {
		all.add(topicNow(t))
		l.topics.add(object{topic: t.Name}, topicCounts(t))
	})
	writeTopic(w, "", all, l.topics.end(o.exists))
}

// topicNumbers are the present numbers of a topic, or the sums over several; of maxProducers, paused and overQuota
// the greatest.
type topicNumbers struct {
	depth, stored           int64
	producers, maxProducers int
	paused, overQuota       bool
	delays                  int // partitions that refuse them
}

func (n *topicNumbers) add(o topicNumbers) {
	n.depth, n.stored, n.producers = n.depth+o.depth, n.stored+o.stored, n.producers+o.producers
	n.maxProducers, n.paused = max(n.maxProducers, o.maxProducers), n.paused || o.paused
	n.overQuota = n.overQuota || o.overQuota
	n.delays += o.delays
}

func topicNow(t *node.TopicStats) topicNumbers {
	return topicNumbers{t.Depth, t.LedBytes, t.Producers, t.MaxProducers, t.Paused, t.OverQuota, t.DelaysRefused}
}

// topicCounts returns the counters of a topic: messages, bytes.
func topicCounts(t *node.TopicStats) counts { return counts{t.MessageCount, t.MessageBytes} }

// channelNumbers are the present numbers of a channel, or the sums over several; of paused, skipping and oldest the
// greatest.
type channelNumbers struct {
	depth, inFlight, deferred, consumers int64
	full, outbox, aside                  int64
	paused, skipping, starved            bool
	oldest                               time.Duration
	counts                               counts // see writeChannel
}

// add adds all but the counters.
func (n *channelNumbers) add(o *channelNumbers) {
	n.depth, n.inFlight, n.deferred = n.depth+o.depth, n.inFlight+o.inFlight, n.deferred+o.deferred
	n.full, n.outbox, n.aside = n.full+o.full, n.outbox+o.outbox, n.aside+o.aside
	n.consumers, n.oldest = n.consumers+o.consumers, max(n.oldest, o.oldest)
	n.paused, n.skipping = n.paused || o.paused, n.skipping || o.skipping
	n.starved = n.starved || o.starved
}

// channelNow returns the numbers of a channel at now, by the engine's clock.
func channelNow(c *node.ChannelStats, now time.Time) *channelNumbers {
	n := &channelNumbers{
		depth: c.Depth, inFlight: int64(c.InFlightCount), deferred: int64(c.DeferredCount),
		consumers: int64(len(c.Consumers)), paused: c.Paused, skipping: c.Skipping, starved: c.Starved,
		full: int64(c.FullPartitions), outbox: int64(c.OutboxCount), aside: int64(c.AsideCount),
		counts: counts{
			c.DeliverCount, c.FinishCount, c.RequeueCount, c.TimeoutCount, c.DeadLettered, c.DroppedCount, c.SkippedCount,
		},
	}
	if c.OldestNs > 0 {
		n.oldest = max(0, now.Sub(time.Unix(0, c.OldestNs)))
	}
	return n
}

func writeTopic(w writer, name string, n topicNumbers, c counts) {
	w.set(topicMessages, float64(c[0]), name)
	w.set(topicBytes, float64(c[1]), name)
	w.set(topicDepth, float64(n.depth), name)
	w.set(topicPaused, oneIf(n.paused), name)
	w.set(topicOverQuota, oneIf(n.overQuota), name)
	w.set(topicDelays, float64(n.delays), name)
	w.set(topicStored, float64(n.stored), name)
	w.set(topicProducers, float64(n.producers), name)
	w.set(topicMaxProducers, float64(n.maxProducers), name)
}

func writeChannel(w writer, topic, name string, n *channelNumbers) {
	w.set(channelDepth, float64(n.depth), topic, name)
	w.set(channelInFlight, float64(n.inFlight), topic, name)
	w.set(channelDeferred, float64(n.deferred), topic, name)
	w.set(channelConsumers, float64(n.consumers), topic, name)
	w.set(channelPaused, oneIf(n.paused), topic, name)
	w.set(channelSkipping, oneIf(n.skipping), topic, name)
	w.set(channelStarved, oneIf(n.starved), topic, name)
	w.set(channelFull, float64(n.full), topic, name)
	w.set(channelOutbox, float64(n.outbox), topic, name)
	w.set(channelAside, float64(n.aside), topic, name)
	w.set(channelOldest, n.oldest.Seconds(), topic, name)
	for i, f := range []*family{ // in the order of channelNow
		channelDelivered, channelFinished, channelRequeued, channelTimedOut, channelDeadLettered, channelDropped,
		channelSkipped,
	} {
		w.set(f, float64(n.counts[i]), topic, name)
	}
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
