package migrate

import (
	"context"
	"fmt"
	"maps"
	"slices"
)

// importer imports one topic after the other, each by its plan. One goroutine uses it.
type importer struct {
	ctx       context.Context
	target    Target
	state     *State
	counts    map[*Queue]Counts
	progress  func(int64)
	published int64 // messages published by this run
	seen      int64 // messages done, of those that Scan counted; for progress

	name string // of the current topic
	ts   *topicState
	plan *plan

	bodies [][]byte // the current batch; the bodies are in room, and end at ends
	room   []byte
	ends   []int
	first  uint64 // id of the first message that this run published in the current step
	ran    int64  // number of messages that this run published in the current step
}

// topic imports one topic, starting with the step at which an earlier run stopped.
func (im *importer) topic(rec *record, t *Topic) error {
	before, counted := im.seen, int64(0)
	for _, q := range t.queues() {
		counted += im.counts[q].Messages
	}
	im.name, im.ts = t.Name, rec.Topics[t.Name]
	im.room, im.ends, im.ran = im.room[:0], im.ends[:0], 0 // an error may have left a batch of the previous topic
	if im.ts == nil {
		im.ts = new(topicState)
	}
	if im.ts.Step != stepDone {
		p, err := newPlan(t, im.counts)
		if err != nil {
			return err
		}
		im.plan = p
		if err := im.steps(rec, t); err != nil {
			return err
		}
	}
	im.seen = before + counted // a message of several channels was published once, but counted for each of them
	im.tell()
	return nil
}

func (im *importer) tell() {
	if im.progress != nil {
		im.progress(im.seen)
	}
}

func (im *importer) steps(rec *record, t *Topic) error {
	if im.ts.Step == "" {
		if err := im.check(rec); err != nil {
			return err
		}
	}
	if im.ts.Step == stepBegin {
		if err := im.create(); err != nil {
			return err
		}
	}
	if im.ts.Step == stepPublish {
		if err := im.publishChannels(); err != nil {
			return err
		}
	}
	if im.ts.Step == stepConfirm {
		if err := im.confirm(t); err != nil {
			return err
		}
	}
	if im.ts.Step == stepTopic {
		if err := im.publishTopic(t); err != nil {
			return err
		}
	}
	for _, c := range im.plan.channels {
		if c.paused && !slices.Contains(im.ts.Existing, c.name) {
			if err := im.target.PauseChannel(im.ctx, im.name, c.name); err != nil {
				return err
			}
		}
	}
	return im.enter(stepDone)
}

// check refuses a topic that the target cannot take, before anything of the topic is in the target.
func (im *importer) check(rec *record) error {
	tt, err := im.target.Topic(im.ctx, im.name)
	if err != nil {
		return err
	}
	im.ts.New, im.ts.Existing = !tt.Exists, slices.Sorted(maps.Keys(tt.Channels))
	if tt.Paused {
		return fmt.Errorf(
			"%w: it is paused there and would hold the import back; nothing of it was imported: unpause it first", errTarget)
	}
	for _, f := range im.foreign() {
		switch {
		case !im.target.Exclusive():
			return fmt.Errorf("%w: channel %s would get messages that are not its own; nothing of the topic was imported: "+
				"import it with --to while the node is stopped", errInseparable, f.name)
		case tt.Partitions > 1:
			return fmt.Errorf("%w: it has %d partitions there, and channels with different backlogs need one; nothing of it "+
				"was imported: import it into another directory", errTarget, tt.Partitions)
		case tt.Channels[f.name].Paused:
			return fmt.Errorf("%w: its channel %s is paused there, so that nothing can be confirmed for it; nothing of it was "+
				"imported: unpause the channel first", errTarget, f.name)
		}
	}
	rec.Topics[im.name] = im.ts
	im.ts.Step = stepBegin
	return im.state.save()
}

// create creates the topic, and the channels that get every message. The first of these takes over the messages that
// wait at the topic.
func (im *importer) create() error {
	if err := im.target.CreateTopic(im.ctx, im.name); err != nil {
		return err
	}
	if err := im.createChannels(0); err != nil {
		return err
	}
	return im.enter(stepPublish)
}

// foreigner is a channel that is given messages which it did not have in nsqd.
type foreigner struct {
	name   string
	number int   // in the plan; -1: a channel that nsqd does not know
	last   int64 // index of the last such message
}

// foreign lists these channels. A channel that the import creates gets all messages from its own first one on. A
// channel that existed before gets every message.
func (im *importer) foreign() []foreigner {
	var out []foreigner
	add := func(name string, number int, from int64) {
		if last := im.plan.lastForeign(number); last >= from {
			out = append(out, foreigner{name, number, last})
		}
	}
	for i, c := range im.plan.channels {
		from := c.first
		if slices.Contains(im.ts.Existing, c.name) {
			from = 0
		}
		add(c.name, i, from)
	}
	for _, name := range im.ts.Existing {
		if !slices.ContainsFunc(im.plan.channels, func(c plannedChannel) bool { return c.name == name }) {
			add(name, -1, 0)
		}
	}
	return out
}

// createChannels creates the channels whose first message is number i. Channels that exist are left unchanged.
func (im *importer) createChannels(i int64) error {
	for _, c := range im.plan.channels {
		if c.first == i {
			if err := im.target.CreateChannel(im.ctx, im.name, c.name); err != nil {
				return err
			}
		}
	}
	return nil
}

// enter begins a step. It records how many messages are waiting, so that a later run can determine how many messages
// this step has published.
func (im *importer) enter(to step) error {
	n, err := im.waiting()
	if err != nil {
		return err
	}
	im.ts.Step, im.ts.Base, im.ts.Published = to, n, 0
	im.ran = 0
	return im.state.save()
}

// waiting returns the number of messages that wait at the topic and in the reference channel. In an exclusive target
// each published message increases it by one.
func (im *importer) waiting() (int64, error) {
	if !im.target.Exclusive() {
		return 0, nil
	}
	tt, err := im.target.Topic(im.ctx, im.name)
	if err != nil {
		return 0, err
	}
	return tt.Waiting + tt.Channels[im.reference()].Waiting, nil
}

// reference returns a channel that gets every message of a step: one that existed before, or the first one that the
// import creates. It returns "" if there is no channel. The result is the same in every run.
func (im *importer) reference() string {
	if len(im.ts.Existing) > 0 {
		return im.ts.Existing[0]
	}
	for _, c := range im.plan.channels {
		if c.first == 0 {
			return c.name
		}
	}
	return ""
}

// resumeAt returns how many messages of the step an earlier run has published. most is the number of messages in the
// step.
func (im *importer) resumeAt(most int64) (int64, error) {
	n := im.ts.Published
	if im.target.Exclusive() {
		now, err := im.waiting()
		if err != nil {
			return 0, err
		}
		n = now - im.ts.Base
	}
	if n < 0 || n > most {
		return 0, fmt.Errorf("%w: the interrupted import published 0 to %d messages, and the target counts %d: a node has "+
			"run on it since; nothing was changed: import into a new directory", errTarget, most, n)
	}
	im.seen += n
	return n, nil
}

func (im *importer) publishChannels() error {
	from, err := im.resumeAt(im.plan.total)
	if err != nil {
		return err
	}
	starts := map[int64]bool{}
	for _, c := range im.plan.channels {
		starts[c.first] = true
	}
	err = im.plan.each(from, func(i int64, body []byte) error {
		if starts[i] {
			if err := im.flush(); err != nil {
				return err
			}
			if err := im.createChannels(i); err != nil {
				return err
			}
		}
		return im.add(body)
	})
	if err == nil {
		err = im.flush()
	}
	if err == nil {
		err = im.createChannels(im.plan.total)
	}
	if err != nil {
		return err
	}
	if len(im.foreign()) > 0 {
		if im.ts.First, err = im.firstID(from); err != nil {
			return err
		}
	}
	return im.enter(stepConfirm)
}

// firstID returns the id of the first message of the plan. from is how many messages an earlier run had published.
func (im *importer) firstID(from int64) (uint64, error) {
	if im.ran > 0 {
		return im.first - uint64(from), nil
	}
	last, err := im.target.LastID(im.ctx, im.name, im.reference())
	return last + 1 - uint64(im.plan.total), err
}

func (im *importer) confirm(t *Topic) error {
	first := im.ts.First
	for _, f := range im.foreign() {
		drop := func(id uint64) bool {
			return id >= first && id-first < uint64(im.plan.total) && !im.plan.has(f.number, int64(id-first))
		}
		if err := im.target.Confirm(im.ctx, im.name, f.name, first+uint64(f.last), drop); err != nil {
			return err
		}
	}
	if t.Paused && im.ts.New {
		if err := im.target.PauseTopic(im.ctx, im.name); err != nil {
			return err
		}
	}
	return im.enter(stepTopic)
}

// publishTopic publishes the messages that no channel had yet. All channels get them.
func (im *importer) publishTopic(t *Topic) error {
	from, err := im.resumeAt(im.counts[t.Queue].Messages)
	if err != nil {
		return err
	}
	if err := eachFrom(t.Queue, from, func(_ int64, body []byte) error { return im.add(body) }); err != nil {
		return err
	}
	return im.flush()
}

// add copies a body into the current batch, and publishes the batch first if it is full.
func (im *importer) add(body []byte) error {
	if len(im.ends) == MaxPublishCount || len(im.ends) > 0 && len(im.room)+len(body) > MaxPublishBytes {
		if err := im.flush(); err != nil {
			return err
		}
	}
	im.room = append(im.room, body...)
	im.ends = append(im.ends, len(im.room))
	return nil
}

func (im *importer) flush() error {
	if len(im.ends) == 0 {
		return nil
	}
	im.bodies = im.bodies[:0]
	start := 0
	for _, end := range im.ends {
		im.bodies = append(im.bodies, im.room[start:end])
		start = end
	}
	im.room, im.ends = im.room[:0], im.ends[:0]
	if err := im.ctx.Err(); err != nil {
		return err
	}
	id, err := im.target.Publish(im.ctx, im.name, im.bodies)
	if err != nil {
		return err
	}
	n := int64(len(im.bodies))
	if im.ran == 0 {
		im.first = id
	}
	im.ran += n
	im.ts.Published += n
	im.published += n
	im.seen += n
	im.tell()
	if im.target.Exclusive() {
		return nil // a later run relies on the target's own count
	}
	return im.state.save()
}
