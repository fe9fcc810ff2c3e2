package world

import (
	"context"
	"errors"
	"fmt"

	"github.com/google/uuid"

	"penstock/internal/meta"
	"penstock/internal/node"
	"penstock/internal/node/channel"
	"penstock/internal/node/errs"
	"penstock/internal/node/fold"
	"penstock/segment"
)

// What operators configure, and what must come of it: a change is made by compare-and-swap, so no version is given
// twice and none that was answered is lost; an ordered channel never goes back; a dead letter is in its topic.

// chooseSettings gives a new channel settings that it has before anybody consumes it, or none.
func (w *World) chooseSettings(c *channelModel) {
	if !w.has(FeatureChannels) {
		return
	}
	switch w.more.IntN(4) {
	case 0:
		c.settings = &fold.ChannelSettings{Order: fold.OrderPartition}
	case 1:
		c.settings, c.loose = &fold.ChannelSettings{Order: fold.OrderKey}, true
	case 2:
		c.settings = &fold.ChannelSettings{MaxAttempts: uint16(1 + w.more.IntN(3))}
	}
	if c.settings != nil && w.more.IntN(3) == 0 {
		c.settings.MaxAttempts = uint16(1 + w.more.IntN(4))
	}
}

// configureFirst makes the settings of a new channel, again and again until they are in force; only then is it
// consumed.
func (w *World) configureFirst(c *channelModel) {
	if c.doomed || c.configured {
		return
	}
	if n := w.nodeWith(c); n != nil {
		w.configure(n, c, func(s *fold.ChannelSettings) {
			version := s.Version
			*s = *c.settings
			s.Version = version
			if w.cfg.Break == MutantOtherFilter {
				s.Filter.All = !s.Filter.All
			}
		}, func() { c.configured = true })
	}
	w.after(300*ms, func() { w.configureFirst(c) })
}

// reconfigure changes the settings of a channel that is in use. Its order stays: what it forbids could not be said
// otherwise.
func (w *World) reconfigure(c *channelModel) {
	n := w.nodeWith(c)
	if n == nil || c.created == 0 || c.doomed || !c.configured {
		return
	}
	attempts := uint16(w.rng.IntN(4))
	flip := c.settings == nil && w.chance(0.3)
	c.loose = c.loose || flip
	row, try := w.more.IntN(3*len(fold.ChannelRows)), 14+w.more.IntN(20)
	w.configure(n, c, func(s *fold.ChannelSettings) {
		s.MaxAttempts = attempts
		if row < len(fold.ChannelRows) && fold.ChannelRows[row].Harmless {
			field := fold.ChannelRows[row].Of(s)
			if err := field.Set(field.Try(try)); err != nil {
				w.fail("%s cannot be %s: %v", fold.ChannelRows[row].Name, field.Try(try), err)
			}
		}
		if flip {
			s.Order = fold.Order(w.rng.IntN(3))
		}
	}, func() {})
}

// configure reads a channel's settings, changes them and writes them; then is called if that was answered.
func (w *World) configure(n *host, c *channelModel, change func(*fold.ChannelSettings), then func()) {
	n.task(func(*node.Engine) error {
		ctx := context.Background()
		topic, ok := n.topic(c.t)
		if !ok {
			return errs.ErrNoTopic
		}
		ch, ok := topic.LookupChannel(c.name)
		if !ok {
			return errs.ErrNoChannel
		}
		before := c.acked.Version
		s, err := ch.ReadSettings(ctx)
		if err != nil {
			return err
		}
		if s.Version < before && !c.doomed { // of one that was deleted meanwhile a subscriber may have made another
			w.fail("channel %s of %s has settings of version %d, and %d was answered before they were asked for",
				c.name, c.t.name, s.Version, before)
		}
		change(&s)
		now, err := ch.Configure(ctx, s)
		if err == nil {
			c.noteSettings(w, now)
			then()
		}
		return err
	}, func(err error) {
		w.tracef("configure channel %s of %s: %v", c.name, c.t.name, err)
	})
}

func (c *channelModel) noteSettings(w *World, now fold.ChannelSettings) {
	w.Stats.Configured++
	if was, ok := c.versions[now.Version]; ok && (was.Order != now.Order || was.MaxAttempts != now.MaxAttempts) {
		// the same change may be asked for twice
		w.fail("two changes of channel %s of %s were answered with version %d: %+v and %+v",
			c.name, c.t.name, now.Version, was, now)
	}
	c.versions[now.Version] = now
	if now.Version > c.acked.Version {
		c.acked = now
	}
}

// deadModel is the dead-letter topic of t, which the engines make when there is something for it.
func (w *World) deadModel(t *topicModel) *topicModel {
	return &topicModel{
		index: len(w.dead) + 8, name: t.name + fold.DeadLetterSuffix, of: t, ids: map[node.ID]int{},
		served: map[uint32]msgID{},
	}
}

// letter is a dead letter: of which channel, and which message.
type letter struct {
	channel string
	id      node.ID
}

// isLetter says whether a message of a channel is in the dead-letter topic.
func (w *World) isLetter(c *channelModel, id node.ID) bool {
	return c.t.letters[letter{c.name, id}]
}

// has says that value v is known to stand under an id.
func (t *topicModel) has(id node.ID, v int) bool {
	was, ok := t.ids[id]
	return ok && was == v
}

// noteLetter remembers a message of a dead-letter topic.
func (w *World) noteLetter(t *topicModel, at node.ID, v int, headers map[string]string) {
	of := w.book.values[v].topic
	var id node.ID
	if _, err := fmt.Sscanf(headers[channel.OriginIDHeader], "%016x", &id); err != nil ||
		headers[channel.OriginTopicHeader] != of.name {
		w.fail("value %d is in topic %s with headers %v", v, t.name, headers)
		return
	}
	// What was sent back is another topic's of the same name, if that was made again meanwhile.
	if now := w.topics[t.of.index]; of != now && !of.has(id, v) {
		of = now
		for _, m := range w.models {
			if m.name == of.name && m.has(id, v) {
				of = m
			}
		}
	}
	if was, ok := of.ids[id]; ok && was != v {
		if of != w.book.values[v].topic {
			return // of one in between, where nobody has seen it
		}
		w.fail("the dead letter of %v of topic %s is value %d, the message was value %d", id, of.name, v, was)
	}
	w.Stats.DeadLetters++
	if t.lettersIn == nil {
		t.lettersIn = map[uint32][]placedLetter{}
	}
	l := letter{headers[channel.OriginChannelHeader], id}
	t.lettersIn[at.Partition()] = append(t.lettersIn[at.Partition()], placedLetter{at.MsgID(), v, l})
	of.letters[l] = true
	// One that was sent back may fail again, and every delivery of it may have been lost on the way to another node.
	if val := &w.book.values[v]; val.fate == acked && (of != val.topic || val.id != id) {
		if c := of.channelNamed(l.channel); c != nil {
			c.noteCopy(v, id)
		}
	}
}

// inLane holds an ordered channel to its word: what it delivers is never before what it has delivered, but for messages
// with a delay, which are put aside.
func (a *agent) inLane(d *node.Delivery, val *value) {
	w, c := a.n.w, a.c
	// A SUB that crosses a deletion makes the channel anew, without an order.
	if c.settings == nil || c.doomed || val.deferred {
		return
	}
	l := lane{part: d.ID.Partition()}
	switch {
	case c.settings.Order == fold.OrderKey && val.key != "":
		l.key = val.key
	case c.settings.Order != fold.OrderPartition:
		return
	}
	// What comes from another node may be on its way for long; from level 2 on that node looks whether its time is over.
	// Where nodes forget one after the other, what was finished last may have been in the copy that forgot, and only
	// there.
	if high := c.lanes[l]; d.ID.MsgID() < high && (!a.remote || w.strict()) && w.Stats.Forgotten < 2 &&
		!w.overlap(meta.PartitionID{Topic: c.t.id, Partition: l.part}) {
		w.fail("channel %s of %s, ordered by %v, delivers %v after %d", c.name, c.t.name, c.settings.Order, d.ID, high)
	}
	c.lanes[l] = max(c.lanes[l], d.ID.MsgID())
}

type lane struct {
	part uint32
	key  string
}

// headersOf are a stored message's.
func headersOf(r *segment.Record) map[string]string {
	m := map[string]string{}
	for _, kv := range r.Headers {
		m[string(kv.Key)] = string(kv.Value)
	}
	return m
}

// Topics.

// configureTopic changes what a topic keeps, what it takes, or how many partitions it has.
func (w *World) configureTopic(n *host, t *topicModel, change func(*meta.TopicSettings)) {
	n.task(func(*node.Engine) error {
		topic, ok := n.topic(t)
		if !ok {
			return errs.ErrNoTopic
		}
		s := topic.Settings()
		change(&s)
		s.MinISR = w.opt.min
		now, err := topic.ConfigureAs(context.Background(), "", s)
		if err == nil {
			w.Stats.Configured++
			// Whoever got no answer takes the same change by somebody else for his own.
			was, again := t.versions[now.Version]
			if again && was != now || now.Version != s.Version+1 {
				w.fail("two changes of topic %s were answered with version %d, or it was not the next of %d: %+v and %+v",
					t.name, now.Version, s.Version, was, now)
			}
			t.versions[now.Version] = now
			t.acked = max(t.acked, now.Version)
		}
		return err
	}, func(err error) {
		w.tracef("configure topic %s: %v", t.name, err)
	})
}

// topicChange draws a change, and with FeatureKeep also what the topic is to keep.
func (w *World) topicChange(t *topicModel) func(*meta.TopicSettings) {
	return w.keepAlso(w.boundChange(t))
}

// boundChange draws bounds. What lets messages go unread makes the topic one that loses them by request.
func (w *World) boundChange(t *topicModel) func(*meta.TopicSettings) {
	none := func(s *meta.TopicSettings) { *s = meta.TopicSettings{Version: s.Version} }
	size, count, age := w.between(40<<10, 400<<10), w.between(20, 400), w.between(200, 2000)
	switch w.rng.IntN(6) {
	case 0:
		return none
	case 1, 2:
		return func(s *meta.TopicSettings) { none(s); s.QuotaBytes, s.QuotaMode = size, meta.QuotaReject }
	case 3:
		return func(s *meta.TopicSettings) { none(s); s.QuotaCount, s.QuotaMode = count, meta.QuotaReject }
	case 4:
		t.lossy = true
		return func(s *meta.TopicSettings) { none(s); s.QuotaBytes, s.QuotaMode = size, meta.QuotaDropOldest }
	}
	t.lossy = true
	return func(s *meta.TopicSettings) { none(s); s.RetentionBytes, s.RetentionAgeMs = size, age }
}

func (s *store) configureTopic(id uuid.UUID, settings meta.TopicSettings) (*meta.Topic, error) {
	t := s.snap.Topics[id]
	switch {
	case t == nil:
		return nil, meta.ErrNotFound
	case settings.Version != t.Settings.Version:
		return nil, meta.ErrConflict
	}
	partitions, err := settings.WantedPartitions(t.Partitions, maxPartitions)
	if err != nil {
		return nil, err
	}
	changed := *t
	changed.Settings, changed.Partitions = settings.Stored(), partitions
	changed.Settings.Version++
	changed.MinISR = settings.WantedMinISR(t.Replicas)
	next := s.edit()
	next.Topics[id], next.Names[t.Name] = &changed, &changed
	if err := s.grow(next, t, &changed); err != nil {
		return nil, err
	}
	s.w.models[id].want(&changed.Settings)
	if s.w.cfg.Break == MutantShort {
		changed.Settings.RetentionAgeMs /= 8
		changed.Settings.RetentionBytes /= 8
	}
	s.w.lie(&changed.Settings)
	s.w.tracef("store: topic %s is configured: %+v", t.Name, changed.Settings)
	s.publish(next)
	return &changed, nil
}

// settled says what is not in force yet of what was answered, or not moved of what is dead.
func (w *World) settled() string {
	if !w.has(FeatureChannels | FeatureSettings | FeatureTopics | FeatureFilters) {
		return ""
	}
	for _, n := range w.nodes {
		for _, t := range w.topics {
			topic, ok := n.topic(t)
			if !ok {
				return n.name + " does not know topic " + t.name
			}
			if has, wants := topic.Partitions(), w.store.snap.Topics[t.id].Partitions; has != wants {
				return fmt.Sprintf("%s knows %d partitions of topic %s, which has %d", n.name, has, t.name, wants)
			}
			if now := topic.Settings().Version; now < t.acked {
				return fmt.Sprintf("%s has version %d of the settings of topic %s, and %d was answered",
					n.name, now, t.name, t.acked)
			}
			for _, c := range t.channels {
				if why := c.settledAt(n, topic); why != "" && !c.doomed {
					return fmt.Sprintf("%s: channel %s of %s: %s", n.name, c.name, t.name, why)
				}
			}
		}
		for _, ts := range n.e.Stats("", "") {
			for _, cs := range ts.Channels {
				if cs.OutboxCount > 0 && n.serves(w.topicNamed(ts.Name)) {
					return fmt.Sprintf("%s has %d dead letters of %s of %s", n.name, cs.OutboxCount, cs.Name, ts.Name)
				}
			}
		}
	}
	return ""
}

func (c *channelModel) settledAt(n *host, topic *node.Topic) string {
	ch, ok := topic.LookupChannel(c.name)
	if !ok || !n.serves(c.t) {
		return ""
	}
	s := ch.Settings()
	switch {
	case c.settings != nil && !c.configured:
		return "it was never configured"
	case s.Version < c.acked.Version:
		return fmt.Sprintf("its settings have version %d, and %d was answered", s.Version, c.acked.Version)
	case s.Version == c.acked.Version && s.Version != 0 &&
		(s.Order != c.acked.Order || s.MaxAttempts != c.acked.MaxAttempts):
		return fmt.Sprintf("its settings are %+v, and %+v was answered", s, c.acked)
	}
	return ""
}

// refusedByQuota counts what a quota refused.
func (w *World) refusedByQuota(err error, count int) {
	if errors.Is(err, errs.ErrQuota) {
		w.Stats.OverQuota += count
	}
}
