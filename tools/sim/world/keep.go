package world

import (
	"context"
	"errors"
	"math/rand/v2"

	"penstock/batch"
	"penstock/internal/meta"
	"penstock/internal/node"
	"penstock/internal/node/errs"
	"penstock/internal/node/partition"
	"penstock/segment"
)

// Topics that keep what every channel has confirmed, for a time or for some bytes, and programs that read it again.
// What the weakest settings that a topic ever had would keep must be there on every copy, and readers must get it.

// keeping is what only worlds with FeatureKeep have.
type keeping struct{ r *rand.Rand }

// kept is the least that the settings of a topic, up to now, keep of what every channel has confirmed.
type kept struct {
	nothing bool
	bytes   int64 // the fewest that any settings keep; 0: none have bounded it
	age     int64 // the shortest, ns; 0: none have bounded it
}

// Keep settings are drawn from these ranges, so that logs of a few seconds reach both bounds.
const (
	minKeepAge, maxKeepAge     = 200 * ms, 2500 * ms
	minKeepBytes, maxKeepBytes = 20 << 10, 250 << 10
)

// firstKeepSeed is the first seed that may draw FeatureKeep, FeatureNumbered and FeatureForks: those below are
// histories that were written down before there were these features.
const firstKeepSeed = 7_000_000

// drawKeep chooses them. FeatureKeep and FeatureForks need the newest level from the start. Forks have the settings of
// other channels, which the checks of FeatureChannels and FeatureFilters do not follow.
func (w *World) drawKeep() {
	r := rand.New(rand.NewPCG(w.Seed, 0x94d049bb133111eb))
	if w.Seed < firstKeepSeed {
		return
	}
	keep, numbered, forks := r.IntN(3) == 0, r.IntN(3) == 0, r.IntN(3) == 0
	if keep && !w.has(FeatureLevels) {
		w.features |= FeatureKeep
	}
	if numbered {
		w.features |= FeatureNumbered
	}
	if forks && !w.has(FeatureLevels|FeatureChannels|FeatureFilters) {
		w.features |= FeatureForks
	}
}

// prepareKeep makes logs that are longer than a segment.
func (w *World) prepareKeep() {
	if !w.has(FeatureKeep) {
		return
	}
	k, o := &w.keeping, &w.opt
	k.r = rand.New(rand.NewPCG(w.Seed, 0xbf58476d1ce4e5b9))
	o.partitions = 1 + k.r.IntN(2)
	o.putEvery = 3*ms + k.r.Int64N(6*ms)
	o.minSegment = 16 << 10 << k.r.IntN(2)
	o.maxSegment = o.minSegment << k.r.IntN(2)
	o.chaos += k.r.Int64N(2000 * ms)
}

func (w *World) startKeep() {
	if !w.has(FeatureKeep) {
		return
	}
	w.every(400*ms, func() {
		t := w.topics[w.keeping.r.IntN(len(w.topics))]
		if n := w.anyNode(); n != nil && w.loaded && t.ready && !t.doomed {
			w.configureTopic(n, t, w.keepAlso(func(s *meta.TopicSettings) { *s = meta.TopicSettings{Version: s.Version} }))
		}
	})
	w.every(150*ms, w.replaySome)
}

// keepFirst gives a topic that is made settings that keep something.
func (w *World) keepFirst(t *meta.Topic) {
	if !w.has(FeatureKeep) || w.has(FeatureLevels) {
		return
	}
	w.drawKept()(&t.Settings)
	t.Settings.Version = 1
}

// keepAlso adds to a change of settings, in worlds with FeatureKeep, what the topic is to keep.
func (w *World) keepAlso(change func(*meta.TopicSettings)) func(*meta.TopicSettings) {
	if !w.has(FeatureKeep) || w.has(FeatureLevels) {
		return change
	}
	keep := w.drawKept()
	if w.now > w.opt.chaos/2 && w.keeping.r.IntN(10) == 0 {
		keep = func(s *meta.TopicSettings) { s.KeepAgeMs, s.KeepBytes = 0, 0 }
	}
	return func(s *meta.TopicSettings) {
		change(s)
		keep(s)
	}
}

// drawKept draws settings that keep something.
func (w *World) drawKept() func(*meta.TopicSettings) {
	r := w.keeping.r
	age, bytes := (minKeepAge+r.Int64N(maxKeepAge-minKeepAge))/ms, minKeepBytes+r.Int64N(maxKeepBytes-minKeepBytes)
	switch r.IntN(6) {
	case 0:
		age = 0
	case 1:
		bytes = 0
	case 2:
		age = -1
	case 3:
		bytes = -1
	}
	return func(s *meta.TopicSettings) { s.KeepAgeMs, s.KeepBytes = age, bytes }
}

// note adds settings that somebody makes.
func (k *kept) note(s *meta.TopicSettings) {
	k.nothing = k.nothing || s.KeepAgeMs == 0 && s.KeepBytes == 0
	if s.KeepBytes > 0 && (k.bytes == 0 || s.KeepBytes < k.bytes) {
		k.bytes = s.KeepBytes
	}
	if age := s.KeepAgeMs * ms; age > 0 && (k.age == 0 || age < k.age) {
		k.age = age
	}
}

// lie is what the store tells nodes of a topic's settings. MutantShortKeep keeps less, MutantKeepIsAll takes what is to
// be kept for all that there may be.
func (w *World) lie(s *meta.TopicSettings) {
	if w.cfg.Break == MutantShortKeep && s.KeepAgeMs|s.KeepBytes != 0 {
		s.KeepAgeMs, s.KeepBytes = 1, 1
	}
	if w.cfg.Break == MutantKeepIsAll {
		s.RetentionAgeMs, s.RetentionBytes = max(s.KeepAgeMs, 0), max(s.KeepBytes, 0)
	}
}

// mayStart says that a copy's log may begin at v.StartID. from is where it began before. What goes is behind the bound
// of some settings, of those for all messages or of those for confirmed ones.
func (r *retention) mayStart(n *host, t *topicModel, from msgID, v *partition.Marks) {
	w := n.w
	if !w.has(FeatureKeep) || t.of != nil || t.kept.nothing || n.forgot.at != 0 {
		return
	}
	w.Stats.KeptGone++
	end := r.ends[v.ID]
	for _, bytes := range []int64{t.kept.bytes, t.wish.keepBytes} {
		if bytes > 0 && v.StartAt <= end-segment.Offset(bytes) {
			return
		}
	}
	clock := n.local() + n.highSkew // the highest that its wall clock may show
	for id, at := range t.ids {
		if id.Partition() != v.ID.Partition || id.MsgID() < from || id.MsgID() >= v.StartID {
			continue
		}
		age, old := clock-w.bornAt(&w.book.values[at]), false
		for _, limit := range []int64{t.kept.age, t.wish.keepAge} {
			old = old || limit > 0 && age >= limit
		}
		if !old {
			w.fail("%s: the copy of %s begins at %d, at byte %d of %d; value %d, %v, is %.3f ms old at most, and the settings "+
				"kept at least %+v", n.name, w.partName(v.ID), v.StartID, v.StartAt, end, at, id, float64(age)/1e6, t.kept)
			return
		}
	}
}

// bornAt is the earliest time that a leader may have stored a value at, by any node's clock.
func (w *World) bornAt(v *value) int64 {
	born, low := int64(float64(v.submitted)*(1-w.opt.drift)), int64(0)
	for _, n := range w.nodes {
		low = min(low, n.lowSkew)
	}
	return born + low
}

// replaySome reads a partition again at the node that serves it.
func (w *World) replaySome() {
	r := w.keeping.r
	t := w.topics[r.IntN(len(w.topics))]
	if !t.ready || t.doomed {
		return
	}
	partition := r.IntN(t.partitions)
	for _, n := range w.nodes {
		if n.e == nil || !n.running() || n.closing || !n.serves(t) {
			continue
		}
		n.task(func(*node.Engine) error { return n.replay(t, partition) }, func(err error) {
			w.showf("%s replays %s/%d: %v", n.name, t.name, partition, err)
		})
	}
}

// replay reads all that a partition has now, and checks that it is what was stored: no message is missing or another.
func (n *host) replay(t *topicModel, partition int) error {
	w := n.w
	topic, ok := n.topic(t)
	if !ok {
		return errs.ErrNoTopic
	}
	r, err := topic.OpenReader(partition, node.Start{Kind: node.StartOldest})
	if err != nil {
		return err
	}
	defer r.Close()
	next, end := r.Place()
	for next < end {
		s, err := r.Next(context.Background(), 64<<10)
		if err != nil {
			return err
		}
		next, err = w.replayed(n, t, next, &s)
		s.Release()
		if err != nil {
			w.fail("%s: a reader of %s/%d: %v", n.name, t.name, partition, err)
			return err
		}
	}
	return nil
}

// replayed checks batches that a reader got, of which next is the first message that it had not got, and returns the id
// behind them.
func (w *World) replayed(n *host, t *topicModel, next node.ID, s *node.Stored) (node.ID, error) {
	var it segment.BatchIter
	it.Reset(s.Batches)
	for h, body, ok := it.Next(); ok; h, body, ok = it.Next() {
		var records segment.RecordIter
		records.Reset(h, body)
		id := batch.MakeID(next.Partition(), h.FirstID)
		for r := records.NextRef(); r != nil; r = records.NextRef() {
			if id < next {
				id++
				continue
			}
			v, err := w.book.parse(r.Body)
			switch was, known := t.ids[id]; {
			case err != nil:
				return next, err
			case id != next:
				w.fail("%s: a reader of topic %s gets %v, and %v was to come", n.name, t.name, id, next)
			case known && was != v && !w.mayComeAgain(was):
				w.fail("%s: a reader of topic %s gets value %d as %v, which is value %d", n.name, t.name, v, id, was)
			case w.book.values[v].fate == refused:
				w.fail("%s: a reader of topic %s gets value %d, which was refused", n.name, t.name, v)
			}
			w.Stats.Replayed++
			id++
			next = id
		}
		if err := records.Err(); err != nil {
			return next, err
		}
	}
	return next, it.Err()
}

// checkKept: when all is quiet, every partition can be read from its beginning to its end.
func (w *World) checkKept() {
	if !w.has(FeatureKeep) {
		return
	}
	for _, t := range w.topics {
		if t.doomed {
			continue
		}
		for partition := range w.store.snap.Topics[t.id].Partitions {
			read := false
			for _, n := range w.nodes {
				err := n.replay(t, partition)
				read = read || err == nil
				if err != nil && !errors.Is(err, errs.ErrNoLeader) && !w.isRotten(n.replica()) {
					w.fail("%s: a reader of %s/%d: %v", n.name, t.name, partition, err)
				}
			}
			if !read && !w.has(FeatureRot) {
				w.fail("nobody can read %s/%d", t.name, partition)
			}
		}
	}
}
