package world

import (
	"context"
	"fmt"

	"penstock/internal/meta"
	"penstock/internal/node"
	"penstock/internal/node/errs"
	"penstock/internal/node/fold"
)

// startWorkload makes the topics, and producers, consumers and administrators who use them.
func (w *World) startWorkload() {
	for i := range w.opt.topics {
		t := w.newModel(i)
		w.topics = append(w.topics, t)
		w.dead = append(w.dead, w.deadModel(t))
		w.after(60*ms, func() { w.makeTopic(i) })
	}
	w.every(w.opt.putEvery, func() {
		if !w.busy() {
			return
		}
		if n := w.anyNode(); n != nil {
			w.put(n, w.topics[w.rng.IntN(len(w.topics))])
		}
	})
	w.every(w.opt.adminEvery, func() {
		if w.busy() {
			w.administer()
		}
	})
	w.every(20*ms, w.attachAgents)
}

// anyNode is a node that clients can talk to, or nil.
func (w *World) anyNode() *host {
	var open []*host
	for _, n := range w.nodes {
		if n.e != nil && n.running() && !n.closing {
			open = append(open, n)
		}
	}
	if len(open) == 0 {
		return nil
	}
	return open[w.rng.IntN(len(open))]
}

// task runs f on a node, with a process that lives; then is told, unless the process ends before.
func (n *host) task(f func(e *node.Engine) error, then func(error)) {
	e := n.e
	n.m.Go(func() { then(f(e)) })
	n.poke()
}

// makeTopic creates a topic, again and again until that is answered. Where it was deleted it makes it anew.
func (w *World) makeTopic(index int) {
	again := func() { w.after(50*ms, func() { w.makeTopic(index) }) }
	there := func() bool { t := w.topics[index]; return t.ready && !t.doomed }
	n, t := w.anyNode(), w.topics[index]
	if n == nil || there() {
		if !there() {
			again()
		}
		return
	}
	life := n.life
	n.task(func(e *node.Engine) error {
		topic, err := e.CreateTopic(context.Background(), t.name, t.partitions)
		if err == nil {
			t = w.models[topic.ID()]
		}
		return err
	}, func(err error) {
		switch {
		case err != nil:
			w.tracef("topic %s: %v", t.name, err)
			again()
		case t.doomed: // the node has not heard of its end yet
			again()
		case !t.ready:
			t.ready = true
			w.tracef("topic %s is there", t.name)
			w.makeChannels(t)
		}
	})
	w.after(3000*ms, func() { // its process may end before it answers
		if !there() && n.life != life {
			w.makeTopic(index)
		}
	})
}

func (w *World) makeChannels(t *topicModel) {
	for i := range w.opt.consumers {
		w.after(w.skewed(0, 600*ms), func() { w.makeChannel(t, fmt.Sprintf("c%d", i), false) })
	}
}

// makeChannel creates a channel on some node, again and again until it is answered.
func (w *World) makeChannel(t *topicModel, name string, once bool) {
	t.attempts++
	c := newChannel(t, name)
	w.chooseSettings(c)
	w.chooseFilter(c)
	c.configured = c.settings == nil
	c.far = w.has(FeatureRemote) && w.more.IntN(2) == 0
	t.channels = append(t.channels, c)
	w.createUntilDone(c)
}

func newChannel(t *topicModel, name string) *channelModel {
	return &channelModel{
		t: t, name: name, delivered: map[node.ID]int{}, done: map[node.ID]bool{}, high: map[uint32]msgID{},
		doneValues: map[int]bool{},
		versions:   map[uint64]fold.ChannelSettings{}, lanes: map[lane]msgID{},
		copies: map[int]map[node.ID]bool{},
	}
}

// createUntilDone asks nodes to create a channel until one has answered.
func (w *World) createUntilDone(c *channelModel) {
	t, name := c.t, c.name
	var try func()
	try = func() {
		if c.created != 0 || c.doomed {
			return
		}
		if n := w.anyNode(); n != nil {
			if c.asking++; c.begun == 0 {
				c.begun = w.now
			}
			n.task(func(*node.Engine) error {
				topic, ok := n.topic(t)
				if !ok {
					return errs.ErrNoTopic
				}
				_, err := topic.CreateChannel(context.Background(), name)
				return err
			}, func(err error) {
				if err == nil || err == errs.ErrNoTopic {
					c.asking-- // else a leader may still be about to do it
				}
				w.tracef("channel %s of %s: %v", name, t.name, err)
				if err == nil && c.created == 0 && !c.doomed {
					c.created, c.first = w.now, t.attempts == 1
					w.Stats.Channels++
					w.configureFirst(c)
				}
			})
		}
		w.after(500*ms, try)
	}
	try()
}

// administer does something to a channel or topic.
func (w *World) administer() {
	n, t := w.anyNode(), w.topics[w.rng.IntN(len(w.topics))]
	if n == nil || !t.ready || t.doomed || len(t.channels) == 0 {
		return
	}
	c := t.channels[w.rng.IntN(len(t.channels))]
	if w.has(FeatureChannels) && w.chance(0.4) {
		w.reconfigure(c)
		return
	}
	if w.has(FeatureFilters) && w.chance(0.3) {
		w.redrive(c)
		return
	}
	if w.has(FeatureSettings) && w.chance(0.4) {
		w.configureTopic(n, t, w.topicChange(t))
		return
	}
	switch w.rng.IntN(6) {
	case 0:
		if len(t.channels) < 8 {
			w.makeChannel(t, fmt.Sprintf("x%d", len(t.channels)), true)
		}
	case 1:
		if c.name[0] == 'x' && c.created != 0 && !c.doomed {
			c.doomed = true
			once := c.asking == 0 && !w.has(FeatureRemote) // nobody makes it again
			n.task(func(*node.Engine) error {
				topic, ok := n.topic(t)
				if !ok {
					return errs.ErrNoTopic
				}
				return topic.DeleteChannel(context.Background(), c.name)
			}, func(err error) {
				c.erased = once && err == nil
				w.tracef("delete channel %s of %s: %v", c.name, t.name, err)
			})
		}
	case 2, 3:
		if n = w.nodeWith(c); n != nil {
			w.pauseFor(n, c, w.between(10*ms, 400*ms))
		}
	case 4:
		w.Stats.Pauses++
		w.pauseTopic(n, t, true)
		w.after(w.between(10*ms, 300*ms), func() { w.unpauseTopic(t) })
	}
}

func (w *World) pauseFor(n *host, c *channelModel, d int64) {
	if c.created == 0 || c.doomed {
		return
	}
	w.Stats.Pauses++
	w.changeChannel(n, c, true, func(error) {})
	w.after(d, func() { w.unpause(c) })
}

// unpause tries until it is done: a channel that stays paused keeps its messages.
func (w *World) unpause(c *channelModel) {
	if c.doomed {
		return
	}
	done := false
	if n := w.nodeWith(c); n != nil {
		w.changeChannel(n, c, false, func(err error) { done = err == nil })
	}
	w.after(400*ms, func() {
		if !done {
			w.unpause(c)
		}
	})
}

// nodeWith is a node that has the channel, or nil.
func (w *World) nodeWith(c *channelModel) *host {
	for _, n := range w.nodes {
		if n.e == nil || !n.running() || n.closing {
			continue
		}
		if t, ok := n.topic(c.t); ok {
			if _, ok := t.LookupChannel(c.name); ok {
				return n
			}
		}
	}
	return nil
}

// unpauseAll comes when every request to pause something has ended, known or not.
func (w *World) unpauseAll() {
	for _, t := range w.topics {
		w.unpauseTopic(t)
		for _, c := range t.channels {
			w.unpause(c)
		}
	}
}

func (w *World) changeChannel(n *host, c *channelModel, pause bool, then func(error)) {
	n.task(func(*node.Engine) error {
		topic, ok := n.topic(c.t)
		if !ok {
			return errs.ErrNoTopic
		}
		ch, ok := topic.LookupChannel(c.name)
		if !ok {
			return errs.ErrNoChannel
		}
		if pause {
			return ch.Pause(context.Background())
		}
		return ch.Unpause(context.Background())
	}, func(err error) {
		w.tracef("pause %v of channel %s of %s: %v", pause, c.name, c.t.name, err)
		then(err)
	})
}

func (w *World) pauseTopic(n *host, t *topicModel, pause bool) (done *bool) {
	done = new(bool)
	n.task(func(*node.Engine) error {
		topic, ok := n.topic(t)
		if !ok {
			return errs.ErrNoTopic
		}
		if pause {
			return topic.Pause(context.Background())
		}
		return topic.Unpause(context.Background())
	}, func(err error) {
		w.tracef("pause %v of topic %s: %v", pause, t.name, err)
		*done = err == nil
	})
	return done
}

func (w *World) unpauseTopic(t *topicModel) {
	if t.doomed {
		return
	}
	done := new(bool)
	if n := w.anyNode(); n != nil {
		done = w.pauseTopic(n, t, false)
	}
	w.after(400*ms, func() {
		if !*done {
			w.unpauseTopic(t)
		}
	})
}

func (w *World) partName(id meta.PartitionID) string {
	if t := w.store.snap.Topics[id.Topic]; t != nil {
		return fmt.Sprintf("%s/%d", t.Name, id.Partition)
	}
	return fmt.Sprintf("%s/%d", id.Topic, id.Partition)
}
