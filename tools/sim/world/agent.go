package world

import (
	"context"
	"errors"
	"time"

	"penstock/internal/node"
	"penstock/internal/node/errs"
	"penstock/internal/node/message"
	"penstock/internal/node/partition"
)

// agent consumes a channel on a node: what the node serves of it or, where the world has FeatureRemote and the node
// leads nothing of the topic, what other nodes do.
type agent struct {
	n        *host
	life     int
	c        *channelModel
	consumer node.Consumer // nil: Subscribe has not returned
	remote   bool
	closed   bool
	finished map[node.ID]bool  // by this channel's machine
	got      map[node.ID]int64 // when what it has not finished was delivered
	taken    map[node.ID]int64 // when it finished what it had for less than half of its timeout
	values   map[node.ID]int   // what was delivered last under an id
	high     map[uint32]agentHigh
}

// agentHigh is how far the first deliveries to an agent have come in a partition.
type agentHigh struct {
	next msgID
	at   int64
}

// attachAgents looks on every node for channels that nobody consumes.
func (w *World) attachAgents() {
	for _, n := range w.nodes {
		if n.e == nil || !n.running() || n.closing {
			continue
		}
		for _, t := range w.topics {
			for _, c := range t.channels {
				if c.doomed || n.agentOf(c) != nil || !c.configured {
					continue
				}
				if !w.has(FeatureRemote) {
					n.attach(c)
				} else if c.created != 0 && !(c.far && n.serves(t) && w.hasIdle(t)) {
					n.subscribe(c)
				}
			}
		}
	}
}

// serves says whether the node delivers anything of t itself.
func (n *host) serves(t *topicModel) (any bool) {
	n.inside.EachMarks(func(v *partition.Marks) { any = any || v.Serves && v.ID.Topic == t.id })
	return any
}

// hasIdle says whether clients can talk to a node that serves nothing of t.
func (w *World) hasIdle(t *topicModel) bool {
	for _, n := range w.nodes {
		if n.e != nil && n.running() && !n.closing && !n.serves(t) {
			return true
		}
	}
	return false
}

func (n *host) agentOf(c *channelModel) *agent {
	for _, a := range n.agents {
		if a.c == c && !a.closed {
			return a
		}
	}
	return nil
}

func (n *host) attach(c *channelModel) {
	topic, ok := n.topic(c.t)
	if !ok {
		return
	}
	ch, ok := topic.LookupChannel(c.name)
	if !ok {
		return
	}
	a := &agent{n: n, life: n.life, c: c, finished: map[node.ID]bool{}, values: map[node.ID]int{}}
	var sink node.Sink = a
	if len(n.agents)%2 == 0 {
		sink = runAgent{a}
	}
	k, err := ch.Attach(node.ConsumerOptions{MsgTimeout: time.Duration(n.w.opt.msgTimeout)}, sink)
	if err != nil {
		return
	}
	a.consumer = k
	n.agents = append(n.agents, a)
	a.ready()
	n.poke()
}

func (a *agent) ready() {
	if err := a.consumer.Ready(int(a.n.w.between(1, 20))); err == nil {
		a.consumer.Pump()
	}
}

// subscribe is attach as servers do it for their clients.
func (n *host) subscribe(c *channelModel) {
	a := &agent{
		n: n, life: n.life, c: c, finished: map[node.ID]bool{}, values: map[node.ID]int{}, high: map[uint32]agentHigh{},
	}
	n.agents = append(n.agents, a)
	n.task(func(*node.Engine) error {
		ctx := context.Background()
		topic, ok := n.topic(c.t)
		if !ok {
			return errs.ErrNoTopic
		}
		ch, ok := topic.LookupChannel(c.name)
		if !ok {
			var err error
			if ch, err = topic.CreateChannel(ctx, c.name); err != nil {
				return err
			}
		}
		if n.wantsNative(c) {
			attach := n.attachNative
			if n.w.seq%4 == 1 {
				attach = n.attachSlow
			}
			err := attach(ch, a)
			if err == nil {
				a.consumer.Pump()
			}
			return err
		}
		a.remote = !n.serves(c.t) // nothing else runs until Subscribe has seen the same
		k, err := ch.SubscribeClient(ctx, node.ConsumerOptions{MsgTimeout: time.Duration(n.w.opt.msgTimeout)}, a)
		if err == nil {
			a.consumer = k
			a.ready()
		}
		return err
	}, func(err error) {
		n.w.tracef("%s subscribes to %s of %s, remote %v: %v", n.name, c.name, c.t.name, a.remote, err)
		if err != nil {
			n.later(50*ms, func() { a.closed = true }) // and then it tries again
		}
	})
}

// Deliver implements node.Sink.
func (a *agent) Deliver(d *node.Delivery) bool {
	w := a.n.w
	if w.watched() {
		w.showf("%s delivers %v attempt %d on %s of %s %s", a.n.name, d.ID, d.Attempts, a.c.name, a.c.t.name, d.Headers)
	}
	if a.closed {
		w.fail("%s delivers %v on %s to a consumer that was told of its end", a.n.name, d.ID, a.c.name)
	}
	// What another node takes of a FIN is known there only.
	if a.finished[d.ID] && !a.remote {
		w.fail("%s delivers %v on %s again, which it has taken the FIN of", a.n.name, d.ID, a.c.name)
	}
	if a.remote {
		w.Stats.Remote++
	} else {
		a.n.checkLeased("delivers %v on %s", d.ID, a.c.name)
	}
	a.notAgain(d)
	w.book.seen(a, d)
	a.answer(d.ID, d.Attempts)
	if w.faults && w.chance(0.02) {
		a.n.later(w.skewed(0, 30*ms), func() {
			if !a.closed {
				a.consumer.Unblock()
			}
		})
		return false
	}
	return true
}

// runAgent is an agent that takes messages next to each other at once.
type runAgent struct{ *agent }

// DeliverRun implements message.RunSink.
func (a runAgent) DeliverRun(r *message.Run) (count int, room bool) {
	for m := r.Next(); m != nil; m = r.Next() {
		d := node.Delivery{
			ID: r.ID + node.ID(count), Number: r.Number + uint64(count), Attempts: 1,
			Timestamp: r.Created + m.TimeDelta*1000, Headers: m.Headers, Body: m.Body,
		}
		if count++; !a.Deliver(&d) {
			return count, false
		}
	}
	return count, true
}

// answer decides what the consumer does with a message.
func (a *agent) answer(id node.ID, attempts uint16) {
	w := a.n.w
	d := w.skewed(0, 20*ms)
	if !w.faults || attempts > 6 || w.chance(w.opt.tidy) {
		a.n.later(d, func() { a.finish(id) })
		return
	}
	switch w.rng.IntN(5) {
	case 0: // it times out
	case 1:
		a.n.later(d, func() {
			if !a.closed {
				delay := time.Duration(w.skewed(0, 300*ms))
				if w.leaps != nil {
					delay = 0
				}
				_ = a.consumer.Requeue(id, delay)
				a.consumer.Pump()
			}
		})
	case 2:
		a.n.later(d, func() {
			if !a.closed {
				_ = a.consumer.Touch(id)
			}
		})
		a.n.later(d+w.opt.msgTimeout/2, func() { a.finish(id) })
	case 3: // late
		a.n.later(w.opt.msgTimeout+w.skewed(0, 50*ms), func() { a.finish(id) })
	case 4: // it goes away
		a.n.later(d, func() {
			if !a.closed {
				a.closed = true
				a.consumer.Close()
			}
		})
	}
}

func (a *agent) finish(id node.ID) {
	if a.closed {
		return
	}
	err := a.consumer.Finish(id)
	if a.n.w.watched() {
		a.n.w.showf("%s finishes %v on %s of %s: %v", a.n.name, id, a.c.name, a.c.t.name, err)
	}
	if err == nil {
		if !a.remote {
			a.n.checkLeased("takes the FIN of %v on %s", id, a.c.name)
		}
		a.n.w.Stats.Finished++
		a.finished[id] = true
		a.noteFinish(id)
		a.c.done[id] = true
		if v, ok := a.values[id]; ok {
			a.c.doneValues[v] = true
		}
	}
	a.consumer.Pump()
}

// Flush implements node.Sink.
func (a *agent) Flush() {}

// Closed implements node.Sink.
func (a *agent) Closed(err error) {
	a.closed = true
	if a.n.w.watched() && !errors.Is(err, errs.ErrMoved) {
		a.n.w.showf("%s: the end of %s: %v", a.n.name, a.c.name, err)
	}
}
