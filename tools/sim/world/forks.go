package world

import (
	"context"
	"fmt"
	"math/rand/v2"

	"penstock/internal/node"
	"penstock/internal/node/errs"
)

// Forks are channels that begin where another one stands, or at the oldest message that is kept. What was answered OK
// before somebody asked for the fork, and the other channel had not finished when the fork was there, comes on the
// fork, too; and all that is kept, if the fork begins at the oldest message.

//
// Retention may take what every other channel has confirmed until the fork is in the log. So a leader may skip some of
// the fork's first messages, which a later leader still has: see retention.go.

// fork is what a channelModel has that may have begun as one.
type fork struct {
	of       *channelModel
	oldest   bool
	asked    int64
	made     bool             // somebody has asked for the channel as one that is no fork
	answered bool             // OK, before that
	done     map[node.ID]bool // of the other channel, when the fork was there
}

// maxForks is how many a topic gets at most.
const maxForks = 3

func (w *World) startForks() {
	if !w.has(FeatureForks) || w.has(FeatureChannels|FeatureFilters) {
		return
	}
	r := rand.New(rand.NewPCG(w.Seed, 0x8ebc6af09c88c6e3))
	w.every(500*ms, func() {
		t := w.topics[r.IntN(len(w.topics))]
		if n := w.anyNode(); n != nil && w.busy() && t.ready && !t.doomed && len(t.channels) > 0 && t.forks < maxForks {
			c, oldest := t.channels[r.IntN(len(t.channels))], r.IntN(2) == 0
			if c.created != 0 && !c.doomed {
				w.fork(n, c, oldest)
			}
		}
	})
}

// fork asks a node for a fork, once. Whatever the answer is, the channel is then made as one that is no fork, because
// it may be in some partitions.
func (w *World) fork(n *host, of *channelModel, oldest bool) {
	t := of.t
	t.forks++
	c := newChannel(t, fmt.Sprintf("f%d", t.forks))
	f := &fork{of: of, oldest: oldest, asked: w.now, done: map[node.ID]bool{}}
	c.configured, c.loose, c.fork = true, true, f
	t.attempts++
	t.channels = append(t.channels, c)
	n.task(func(*node.Engine) error {
		topic, ok := n.topic(t)
		if !ok {
			return errs.ErrNoTopic
		}
		ch, ok := topic.LookupChannel(of.name)
		if !ok {
			return errs.ErrNoChannel
		}
		var at *node.SeekTo
		if oldest {
			at = &node.SeekTo{Kind: node.SeekBeginning}
		}
		if w.cfg.Break == MutantForkElsewhere {
			at = &node.SeekTo{Kind: node.SeekEnd}
		}
		_, err := ch.Fork(context.Background(), c.name, at)
		return err
	}, func(err error) {
		w.tracef("fork %s of %s of %s, oldest %v: %v", c.name, of.name, t.name, oldest, err)
		if err != nil || f.made || c.doomed || of.doomed {
			return
		}
		for id := range of.done {
			f.done[id] = true
		}
		f.answered, c.created = true, w.now
		w.Stats.Channels++
		w.Stats.Forked++
	})
	w.after(1500*ms, func() {
		f.made = true
		w.createUntilDone(c)
	})
}

// mustHave says that a value which was answered OK comes on the fork although it was published before. held: a log has
// it in the end.
func (c *channelModel) mustHave(val *value, held bool) bool {
	f := c.fork
	if f == nil || !f.answered || val.answered == 0 || val.answered >= f.asked || c.missed(val.id) {
		return false
	}
	if f.oldest {
		return held // what a log has now it had then
	}
	return (f.of.first || f.of.created < val.submitted) && !f.done[val.id]
}

// missed says that a copy which has served may have lost a message before the fork was in its log.
func (c *channelModel) missed(id node.ID) bool {
	return c.fork != nil && id.MsgID() < c.t.served[id.Partition()]
}
