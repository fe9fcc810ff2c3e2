package node_test

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"penstock/internal/node"
	"penstock/tests/support/faultaio"
)

// The model of a topic says which messages each channel must get, and which it may get. It states at-least-once
// delivery in as few words as possible: the machine has states, the model has only duties.
type model struct {
	t    *testing.T
	rng  *rand.Rand
	disk *faultaio.Disk
	e    *node.Engine
	n    int // bodies made

	topic     *node.Topic
	bodies    map[node.ID]string
	due       map[node.ID]time.Time // deferred: not before
	end       [modelPartitions]node.ID
	unclaimed map[node.ID]bool // waits for the first channel
	held      map[node.ID]bool // a paused topic holds it back
	paused    bool
	channels  map[string]*modelChannel
	script    []string
}

type modelChannel struct {
	name    string
	ch      *node.Channel
	seat    *testClient
	owed    map[node.ID]bool
	maybe   map[node.ID]bool      // allowed, not owed: its confirmation may be lost, or a skip discarded it
	recent  map[node.ID]time.Time // confirmed so lately that a crash may take it back
	paused  bool
	skipped bool
}

const (
	modelPartitions = 2
	modelTimeout    = 60 * time.Millisecond
	// A confirmation is in the log after ConfirmInterval and a commit. This is far longer, even on a busy machine.
	modelSettled = 2 * time.Second
)

// Random operations on a topic and its channels, with restarts of every kind between them, never break the duties.
// Every channel gets the messages that it must get. No channel gets a message that it has confirmed or dropped, or that
// is not committed, not due, paused or held.
//
// B42, B44, B47, B49, B50, B51, B52, B53, B54, B56
func TestModel(t *testing.T) {
	for seed := range uint64(seedCount(t, "TEST_MODEL_SEEDS", 24)) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			m := &model{
				t: t, rng: rand.New(rand.NewPCG(seed, 11)), disk: faultaio.New(faultaio.Options{Seed: seed}),
				bodies: map[node.ID]string{}, due: map[node.ID]time.Time{},
				unclaimed: map[node.ID]bool{}, held: map[node.ID]bool{}, channels: map[string]*modelChannel{},
			}
			defer func() {
				if t.Failed() {
					t.Logf("what was done: %v", m.script)
				}
			}()
			m.open()
			for range 120 {
				m.step()
			}
			m.drain()
		})
	}
}

func (m *model) say(format string, args ...any) {
	m.script = append(m.script, fmt.Sprintf(format, args...))
}

func (m *model) must(err error) {
	m.t.Helper()
	if err != nil {
		m.t.Fatal(err)
	}
}

func (m *model) open() {
	// Resets may go back to any message.
	m.e = openOnDisk(m.t, m.disk, func(o *node.Options) { o.RetentionInterval = time.Hour })
	topic, err := m.e.CreateTopic(ctxBg, "t", modelPartitions)
	m.must(err)
	m.topic = topic
	if n := len(topic.Channels()); n != len(m.channels) {
		m.t.Fatalf("%d channels after the start, want %d", n, len(m.channels))
	}
	for name, c := range m.channels {
		ch, ok := topic.LookupChannel(name)
		if !ok {
			m.t.Fatalf("channel %s is gone", name)
		}
		c.ch, c.seat = ch, nil
	}
}

func (m *model) step() {
	switch r := m.rng.IntN(100); {
	case r < 30:
		m.publish()
	case r < 62:
		m.consume()
	case r < 70:
		m.create()
	case r < 72:
		m.delete()
	case r < 78:
		m.pause()
	case r < 81:
		m.pauseTopic()
	case r < 85:
		m.empty()
	case r < 91:
		m.reset()
	case r < 94:
		m.skip()
	default:
		m.restart()
	}
}

func (m *model) publish() {
	batch := make([][]byte, 1+m.rng.IntN(5))
	for i := range batch {
		m.n++
		batch[i] = fmt.Appendf(nil, "body %d %s", m.n, make([]byte, m.rng.IntN(2000)))
	}
	done := make(chan result, 1)
	p := &node.Put{Messages: batch, Done: func(p *node.Put) { done <- result{p.First, p.Err} }}
	if m.rng.IntN(4) == 0 {
		p.Defer = time.Duration(1+m.rng.IntN(80)) * time.Millisecond
	}
	begun := time.Now()
	m.must(m.topic.Submit(p))
	r := answer(m.t, done)
	m.must(r.err)
	m.say("publish %d at %s after %v", len(batch), r.id, p.Defer)
	if r.id != node.ID(r.id.Partition())<<48+m.end[r.id.Partition()] {
		m.t.Fatalf("the id %s does not follow %d", r.id, m.end[r.id.Partition()])
	}
	m.end[r.id.Partition()] += node.ID(len(batch))
	for i, b := range batch {
		id := r.id + node.ID(i)
		m.bodies[id] = string(b)
		if p.Defer > 0 {
			m.due[id] = begun.Add(p.Defer - time.Millisecond)
		}
		if m.paused {
			m.held[id] = true
		}
		if len(m.channels) == 0 {
			m.unclaimed[id] = true
		}
		for _, c := range m.channels {
			if c.skipped {
				c.maybe[id] = true
			} else {
				c.owed[id] = true
			}
		}
	}
}

// pick returns a channel, or nil. It chooses by name, because a seed does not fix the order of a map.
func (m *model) pick() *modelChannel {
	for range 8 {
		if c := m.channels[string(rune('a'+m.rng.IntN(4)))]; c != nil {
			return c
		}
	}
	return nil
}

func (m *model) consume() {
	c := m.pick()
	if c == nil {
		return
	}
	if c.seat == nil {
		c.seat = subscribe(m.t, c.ch, 1+m.rng.IntN(20), node.ConsumerOptions{MsgTimeout: modelTimeout})
	}
	for range 1 + m.rng.IntN(12) {
		got, ok := c.seat.poll(4 * time.Millisecond)
		if !ok {
			return
		}
		m.check(c, got)
		switch m.rng.IntN(10) {
		case 0:
			_ = c.seat.Requeue(got.id, time.Duration(m.rng.IntN(30))*time.Millisecond) // may have timed out
		case 1: // it times out
		case 2:
			_ = c.seat.Touch(got.id) // may have timed out
		default:
			m.finish(c, got.id)
		}
		c.seat.Pump()
	}
	if m.rng.IntN(6) == 0 {
		m.leave(c)
	}
}

func (m *model) finish(c *modelChannel, id node.ID) {
	if c.seat.Finish(id) != nil {
		return // it timed out: the duty stays
	}
	delete(c.owed, id)
	delete(c.maybe, id)
	c.recent[id] = time.Now()
}

// leave closes the consumer; its messages in flight go back to the channel.
func (m *model) leave(c *modelChannel) {
	if c.seat != nil {
		c.seat.Consumer.Close()
		c.seat = nil
	}
}

// check says whether the model allows a delivery.
func (m *model) check(c *modelChannel, got delivered) {
	m.t.Helper()
	body, known := m.bodies[got.id]
	switch {
	case !known || body != got.body:
		m.t.Fatalf("channel %s got %s %.20q, published was %.20q", c.name, got.id, got.body, body)
	case got.at.Before(c.recent[got.id]):
		// It timed out and came again before the test finished it, because the test got no processor meanwhile.
	case !c.owed[got.id] && !c.maybe[got.id]:
		m.t.Fatalf("channel %s got %s (attempt %d), which it confirmed or dropped", c.name, got.id, got.attempts)
	case got.attempts == 0:
		m.t.Fatalf("channel %s got %s with no attempts", c.name, got.id)
	case got.at.Before(m.due[got.id]):
		m.t.Fatalf("channel %s got %s %v too early", c.name, got.id, m.due[got.id].Sub(got.at))
	case m.held[got.id]:
		m.t.Fatalf("channel %s got %s, which the paused topic holds back", c.name, got.id)
	}
}

// forget drops the deliveries that a consumer got before the channel changed under it.
func (c *modelChannel) forget() {
	if c.seat != nil {
		c.seat.mu.Lock()
		c.seat.got = nil
		c.seat.mu.Unlock()
	}
}

// quiet checks that nothing is delivered to the channel now.
func (m *model) quiet(c *modelChannel, why string) {
	m.t.Helper()
	if c.seat == nil {
		return
	}
	if got, ok := c.seat.poll(3 * time.Millisecond); ok {
		m.t.Fatalf("channel %s got %s although %s", c.name, got.id, why)
	}
}

func (m *model) create() {
	name := string(rune('a' + m.rng.IntN(4)))
	if m.channels[name] != nil {
		return
	}
	m.say("create %s", name)
	ch, err := m.topic.Channel(ctxBg, name)
	m.must(err)
	c := &modelChannel{
		name: name, ch: ch,
		owed: map[node.ID]bool{}, maybe: map[node.ID]bool{}, recent: map[node.ID]time.Time{},
	}
	from := m.held
	if len(m.channels) == 0 {
		from, m.unclaimed = m.unclaimed, map[node.ID]bool{}
	}
	for id := range from {
		c.owed[id] = true
	}
	m.channels[name] = c
}

func (m *model) delete() {
	c := m.pick()
	if c == nil {
		return
	}
	m.say("delete %s", c.name)
	m.must(m.topic.DeleteChannel(ctxBg, c.name))
	delete(m.channels, c.name)
	if len(m.channels) == 0 {
		for id := range m.held {
			m.unclaimed[id] = true
		}
	}
}

func (m *model) pause() {
	c := m.pick()
	if c == nil {
		return
	}
	m.say("pause %s %v", c.name, !c.paused)
	if c.paused {
		c.paused = false
		m.must(c.ch.Unpause(ctxBg))
		return
	}
	m.must(c.ch.Pause(ctxBg))
	c.paused = true
	c.forget()
	m.quiet(c, "it is paused")
}

func (m *model) pauseTopic() {
	m.say("pause topic %v", !m.paused)
	if m.paused {
		clear(m.held)
		m.paused = false
		m.must(m.topic.Unpause(ctxBg))
		return
	}
	m.must(m.topic.Pause(ctxBg))
	m.paused = true
}

func (m *model) empty() {
	c := m.pick()
	if c == nil {
		return
	}
	m.say("empty %s", c.name)
	m.must(c.ch.Empty(ctxBg))
	c.forget()
	clear(c.recent)
	for _, set := range []map[node.ID]bool{c.owed, c.maybe} {
		for id := range set {
			if !m.held[id] {
				delete(set, id)
			}
		}
	}
	m.quiet(c, "it is empty")
}

func (m *model) reset() {
	c := m.pick()
	part := node.ID(m.rng.IntN(modelPartitions))
	if c == nil || m.end[part] == 0 {
		return
	}
	to := part<<48 + node.ID(m.rng.Uint64N(uint64(m.end[part])+1))
	m.say("reset %s to %s", c.name, to)
	m.must(c.ch.Seek(ctxBg, node.SeekTo{Kind: node.SeekID, ID: to}))
	c.forget()
	for id := range m.held { // a reset reaches as far as the channel sees
		if id.Partition() == uint32(part) {
			to = min(to, id)
		}
	}
	for id := range m.bodies {
		if id.Partition() != uint32(part) {
			continue
		}
		delete(c.recent, id)
		delete(c.maybe, id)
		delete(c.owed, id)
		switch {
		case id >= to && c.skipped:
			c.maybe[id] = true
		case id >= to:
			c.owed[id] = true
		}
	}
}

func (m *model) skip() {
	c := m.pick()
	if c == nil {
		return
	}
	m.say("skip %s %v", c.name, !c.skipped)
	c.skipped = !c.skipped
	m.must(c.ch.Skip(ctxBg, c.skipped))
	if !c.skipped {
		return
	}
	for id := range c.owed {
		c.maybe[id] = true
	}
	clear(c.owed)
	c.forget()
	m.quiet(c, "it skips")
}

func (m *model) restart() {
	kind := m.rng.IntN(3)
	m.say("restart %d", kind)
	old := m.disk
	switch kind {
	case 0:
		if err := m.e.Close(); err != nil {
			m.t.Fatal(err)
		}
		m.disk = old.Kill(m.rng.Uint64())
	case 1:
		m.disk = old.Kill(m.rng.Uint64())
	case 2:
		m.disk = old.Crash(m.rng.Uint64())
	}
	now := time.Now()
	if kind != 0 {
		for _, c := range m.channels {
			for id, at := range c.recent {
				if now.Sub(at) < modelSettled {
					c.maybe[id] = true
				}
			}
		}
		m.e.Close() // its disk is nobody's any more
	}
	for _, c := range m.channels {
		clear(c.recent)
	}
	m.open()
}

// drain delivers to every channel all messages that it must get.
func (m *model) drain() {
	if m.paused {
		m.pauseTopic()
	}
	for _, c := range m.channels {
		m.leave(c)
		if c.paused {
			m.must(c.ch.Unpause(ctxBg))
		}
		if c.skipped {
			m.must(c.ch.Skip(ctxBg, false))
		}
		c.seat = subscribe(m.t, c.ch, 100, node.ConsumerOptions{MsgTimeout: 5 * time.Second})
		for len(c.owed) > 0 {
			got, ok := c.seat.poll(patience / 2)
			if !ok {
				m.t.Fatalf("channel %s waits for %d messages: %+v", c.name, len(c.owed), channelStats(m.t, c.ch))
			}
			m.check(c, got)
			m.finish(c, got.id)
			c.seat.Pump()
		}
		for got, ok := c.seat.poll(20 * time.Millisecond); ok; got, ok = c.seat.poll(20 * time.Millisecond) {
			m.check(c, got)
			m.finish(c, got.id)
		}
	}
	if err := m.e.Health(); err != nil {
		m.t.Error(err)
	}
}
