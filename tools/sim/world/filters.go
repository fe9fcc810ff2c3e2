package world

import (
	"bytes"
	"context"
	"fmt"
	"math"
	"slices"
	"strings"

	"penstock/internal/meta"
	"penstock/internal/node"
	"penstock/internal/node/channel"
	"penstock/internal/node/errs"
	"penstock/internal/node/fold"
	"penstock/internal/node/partition"
	"penstock/segment"
)

// Channels that want some messages only have the filter, or the sample, before anybody consumes them, and for ever.
// Dead letters are sent back by an operator: the copy is another message with the same body, for the letter's channel
// alone.

var filterHeaders = []string{"color", "size", "mark"}

// drawHeaders gives a message headers.
func (w *World) drawHeaders() (hs []node.Header) {
	if !w.has(FeatureFilters) {
		return nil
	}
	for _, name := range filterHeaders {
		if w.chance(0.5) {
			hs = append(hs, node.Header{
				Key: []byte(name), Value: fmt.Appendf(nil, "%c%d", 'a'+rune(w.rng.IntN(2)), w.rng.IntN(3)),
			})
		}
	}
	return hs
}

// chooseFilter gives a new channel what only FeatureFilters has.
func (w *World) chooseFilter(c *channelModel) {
	if !w.has(FeatureFilters) {
		return
	}
	s := fold.ChannelSettings{}
	if c.settings != nil {
		s = *c.settings
	}
	switch w.more.IntN(5) {
	case 0, 1:
		s.Filter = w.drawFilter()
	case 2:
		s.SampleRate = uint8(10 + w.more.IntN(60))
	}
	if s.MaxAttempts == 0 && w.more.IntN(2) == 0 {
		s.MaxAttempts = uint16(1 + w.more.IntN(3))
	}
	if s.SampleRate != 0 || s.MaxAttempts != 0 || len(s.Filter.Rules) > 0 {
		c.settings = &s
	}
}

func (w *World) drawFilter() (f fold.Filter) {
	f.All, f.Invert = w.more.IntN(2) == 0, w.more.IntN(3) == 0
	for range 1 + w.more.IntN(2) {
		r := fold.Rule{Header: filterHeaders[w.more.IntN(len(filterHeaders))]}
		letter, digit := 'a'+rune(w.more.IntN(2)), w.more.IntN(3)
		switch w.more.IntN(5) {
		case 0:
			r.Match, r.Pattern = fold.MatchExact, fmt.Sprintf("%c%d", letter, digit)
		case 1:
			r.Match, r.Pattern = fold.MatchPrefix, string(letter)
		case 2:
			r.Match, r.Pattern = fold.MatchGlob, fmt.Sprintf("?%d", digit)
		case 3:
			r.Match, r.Pattern = fold.MatchRegexp, fmt.Sprintf("%d$", digit)
		case 4:
			r.Match = fold.MatchExists
		}
		f.Rules = append(f.Rules, r)
	}
	return f
}

// wants says whether a channel's filter lets a message through: what fold.Matcher should do, in other words.
func (c *channelModel) wants(val *value) bool {
	if c.settings == nil || len(c.settings.Filter.Rules) == 0 {
		return true
	}
	f := &c.settings.Filter
	holding := 0
	for _, r := range f.Rules {
		if slices.ContainsFunc(val.headers, func(h node.Header) bool {
			return string(h.Key) == r.Header && matches(&r, string(h.Value))
		}) {
			holding++
		}
	}
	if f.All {
		return (holding == len(f.Rules)) != f.Invert
	}
	return (holding > 0) != f.Invert
}

func matches(r *fold.Rule, value string) bool {
	switch r.Match {
	case fold.MatchExact:
		return value == r.Pattern
	case fold.MatchPrefix:
		return strings.HasPrefix(value, r.Pattern)
	case fold.MatchGlob: // ?1
		return len(value) == 2 && value[1] == r.Pattern[1]
	case fold.MatchRegexp: // 1$
		return strings.HasSuffix(value, r.Pattern[:1])
	}
	return true
}

// sampled channels leave messages out by chance.
func (c *channelModel) sampled() bool { return c.settings != nil && c.settings.SampleRate != 0 }

// spared says that a channel may never see a message of its topic.
func (c *channelModel) spared(s *stored, val *value) bool {
	return s.only != "" && s.only != c.name || !c.wants(val) || c.sampled()
}

// onlyFor is the channel that a message was sent back to; "": it is nobody's in particular.
func onlyFor(headers []node.Header) string {
	for _, h := range headers {
		if string(h.Key) == channel.ChannelHeader {
			return string(h.Value)
		}
	}
	return ""
}

// sawHeaders: a message has the headers that it was published with, and a channel gets none that its filter does not
// want, unless it was sent back to this channel.
func (a *agent) sawHeaders(d *node.Delivery, v int, val *value) {
	w, c := a.n.w, a.c
	if !w.has(FeatureFilters) || c.doomed {
		// a consumer that was about to subscribe makes a deleted channel again, without settings
		return
	}
	own := slices.DeleteFunc(slices.Clone(d.Headers), func(h node.Header) bool {
		return string(h.Key) == channel.ChannelHeader
	})
	if !slices.EqualFunc(own, val.headers, func(a, b node.Header) bool {
		return bytes.Equal(a.Key, b.Key) && bytes.Equal(a.Value, b.Value)
	}) {
		w.fail("value %d of topic %s came on channel %s with headers %s, and was published with %s",
			v, c.t.name, c.name, d.Headers, val.headers)
	}
	wanted := onlyFor(d.Headers) == c.name || c.wants(val)
	if !wanted && !w.overlap(meta.PartitionID{Topic: c.t.id, Partition: d.ID.Partition()}) {
		w.fail("channel %s of %s got value %d with headers %s, and wants %+v",
			c.name, c.t.name, v, d.Headers, c.settings.Filter)
	}
	if only := onlyFor(d.Headers); only != "" {
		if only != c.name {
			w.fail("channel %s of %s got value %d, which was sent back to channel %s", c.name, c.t.name, v, only)
		}
		c.noteCopy(v, d.ID)
	}
}

// source is the name of the topic that the messages come from.
func (t *topicModel) source() string {
	if t.of != nil {
		return t.of.name
	}
	return t.name
}

// noteCopy remembers a message that was sent back.
func (c *channelModel) noteCopy(v int, id node.ID) {
	if c.copies[v] == nil {
		c.copies[v] = map[node.ID]bool{}
	}
	c.copies[v][id] = true
}

// channelNamed is the channel of a name; nil: there was none.
func (t *topicModel) channelNamed(name string) *channelModel {
	at := slices.IndexFunc(t.channels, func(c *channelModel) bool { return c.name == name })
	if at < 0 {
		return nil
	}
	return t.channels[at]
}

// redrive sends some of a channel's dead letters back.
func (w *World) redrive(c *channelModel) {
	n := w.nodeWith(c)
	if n == nil || c.created == 0 || c.doomed || !c.configured {
		return
	}
	most := int(w.between(1, 100))
	moved := 0
	n.task(func(*node.Engine) (err error) {
		topic, ok := n.topic(c.t)
		if !ok {
			return errs.ErrNoTopic
		}
		ch, ok := topic.LookupChannel(c.name)
		if !ok {
			return errs.ErrNoChannel
		}
		if w.cfg.Break == MutantLostLetters {
			return w.loseLetters(n, c)
		}
		moved, err = ch.Redrive(context.Background(), most)
		return err
	}, func(err error) {
		c.redriven += moved
		w.Stats.Redriven += moved
		if moved > 0 {
			w.noteSentBack(c)
		}
		w.tracef("redrive of %s of %s: %d %v", c.name, c.t.name, moved, err)
	})
}

// noteSentBack remembers what the logs have that was sent back to a channel, as soon as an operator hears of it: every
// delivery of such a message may be lost on the way to another node; then it is a dead letter once more, and may be
// sent back again and removed before the end.
func (w *World) noteSentBack(c *channelModel) {
	for _, n := range w.nodes {
		if n.e == nil || n.failed || n == w.gray.rotten || len(n.ill.rules) > 0 {
			// what is damaged there is for the engine to find
			continue
		}
		for _, v := range n.inside.Partitions() {
			if v.ID.Topic == c.t.id && !v.Stuck {
				// What cannot be read now is looked for at the end, as all else.
				_ = n.readLog(v.ID, 0, func(_ segment.Offset, h *segment.Header, body []byte) bool {
					if h.Position < v.Committed && !h.Control() {
						w.noteCopies(c, v.ID, h, body)
					}
					return true
				})
			}
		}
	}
}

// noteCopies remembers what a batch has that was sent back to a channel.
func (w *World) noteCopies(c *channelModel, id meta.PartitionID, h *segment.Header, body []byte) {
	var it segment.RecordIter
	it.Reset(h, body)
	at := h.FirstID
	for r := it.NextRef(); r != nil; r = it.NextRef() {
		if v, err := w.book.parse(r.Body); err == nil && onlyFor(r.Headers) == c.name {
			c.noteCopy(v, engineID(id, at))
		}
		at++
	}
}

// loseLetters is MutantLostLetters: what was to be sent back is confirmed and nothing else.
func (w *World) loseLetters(n *host, c *channelModel) error {
	topic, ok := n.e.Catalog().LookupTopic(w.dead[c.t.index].name)
	if !ok {
		return errs.ErrNoTopic
	}
	ch, ok := topic.LookupChannel("redrive")
	if !ok {
		return errs.ErrNoChannel
	}
	return ch.Empty(context.Background())
}

// checkRedriven: what is confirmed in the dead-letter topic was sent back, and what an operator was told was sent back
// is there.
func (w *World) checkRedriven() {
	if !w.has(FeatureFilters) {
		return
	}
	for _, t := range w.topics {
		for _, c := range t.channels {
			n := 0
			for _, ids := range c.copies {
				n += len(ids)
			}
			if !c.doomed && !c.sampled() && !t.lossy && n+w.leftOut(c) < c.redriven {
				w.fail("%d dead letters of channel %s of %s were sent back, and %d messages came of that",
					c.redriven, c.name, t.name, n)
			}
		}
	}
	for _, d := range w.dead {
		for number, list := range d.lettersIn {
			w.checkConfirmed(d, number, list)
		}
	}
}

// leftOut is how many dead letters may have been sent back without a trace: a channel of that name, of a topic that was
// deleted, got them, and this one's filter does not want them, so retention may have removed them before anybody saw
// them.
func (w *World) leftOut(c *channelModel) (n int) {
	for _, list := range w.dead[c.t.index].lettersIn {
		for _, l := range list {
			if l.channel == c.name && !c.wants(&w.book.values[l.v]) && len(c.copies[l.v]) == 0 {
				n++
			}
		}
	}
	return n
}

// placedLetter is a message of a dead-letter topic.
type placedLetter struct {
	id msgID
	v  int
	letter
}

func (w *World) checkConfirmed(d *topicModel, number uint32, list []placedLetter) {
	view := w.redriveView(d, number)
	if view == nil {
		w.fail("partition %d of %s has dead letters, and no channel that keeps them", number, d.name)
		return
	}
	if view.Start != 0 {
		w.fail("the channel redrive of %s begins at %d in partition %d", d.name, view.Start, number)
	}
	type which struct {
		c *channelModel
		v int
	}
	confirmed := map[which]int{}
	for _, l := range list {
		holds := func(r fold.IDRange) bool { return r.From <= l.id && l.id < r.To }
		if l.id >= view.Confirmed && !slices.ContainsFunc(view.Ranges, holds) {
			continue
		}
		t := w.book.values[l.v].topic
		c := t.channelNamed(l.channel)
		if c == nil || c.doomed || t.doomed || t.lossy || c.sampled() {
			continue
		}
		k := which{c, l.v}
		confirmed[k]++
		if confirmed[k] > len(k.c.copies[l.v]) {
			w.fail("%d dead letters of value %d of channel %s of %s are confirmed, and %d messages were sent back",
				confirmed[k], l.v, l.channel, t.name, len(k.c.copies[l.v]))
		}
	}
}

// redriveView is the channel in the log of a partition's leader.
func (w *World) redriveView(d *topicModel, number uint32) *partition.ChannelView {
	id := meta.PartitionID{Topic: d.id, Partition: number}
	for _, n := range w.nodes {
		for _, v := range n.inside.Partitions() {
			if v.ID != id || !v.Serves {
				continue
			}
			for i := range v.Channels {
				if v.Channels[i].Name == "redrive" {
					return &v.Channels[i]
				}
			}
		}
	}
	return nil
}

// checkSample: of many messages a sample has some and not all, and not fewer than it should.
func (w *World) checkSample(c *channelModel, logs logs) {
	if !c.sampled() || c.doomed || !c.first || len(c.t.cuts) > 0 {
		return
	}
	all, some := 0, 0
	for id, s := range logs[c.t] {
		if s.only == "" && c.wants(&w.book.values[s.value]) {
			all++
			if c.delivered[id] > 0 || w.isLetter(c, id) {
				some++
			}
		}
	}
	w.Stats.Sampled += some
	p := float64(c.settings.SampleRate) / 100
	least := float64(all)*p - 6*math.Sqrt(float64(all)*p*(1-p))
	if float64(some) < least || all > 200 && some == all {
		w.fail("channel %s of %s, a sample of %d %%, got %d of %d messages",
			c.name, c.t.name, c.settings.SampleRate, some, all)
	}
}
