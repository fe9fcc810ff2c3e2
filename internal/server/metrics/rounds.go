package metrics

import (
	"cmp"
	"slices"
	"sync"
	"time"

	"penstock/internal/node"
)

// objects is what one round read of the topics and channels of this node.
type objects struct {
	at        time.Time         // when the round began
	now       time.Time         // the same by the engine's clock, by which messages have their times
	topics    []node.TopicStats // all topics of this node, by name
	freeBytes int64             // see penstock_disk_free_bytes
	freeErr   error

	freeInodes   int64 // see penstock_disk_free_inodes
	countsInodes bool
}

// eachTopic visits the topics of which this node leads a partition.
func (o *objects) eachTopic(visit func(*node.TopicStats)) {
	for i := range o.topics {
		if o.topics[i].Led > 0 {
			visit(&o.topics[i])
		}
	}
}

// eachChannel visits the channels of these topics.
func (o *objects) eachChannel(visit func(topic string, c *node.ChannelStats)) {
	o.eachTopic(func(t *node.TopicStats) {
		for i := range t.Channels {
			visit(t.Name, &t.Channels[i])
		}
	})
}

// exists says whether this node knows the topic, whoever leads it.
func (o *objects) exists(topic string) bool {
	_, ok := slices.BinarySearchFunc(o.topics, topic, func(t node.TopicStats, name string) int {
		return cmp.Compare(t.Name, name)
	})
	return ok
}

// rounds reads objects for all scrapes: at most one goroutine does it at a time, and scrapes that begin meanwhile share
// its result. That goroutine takes locks whose holders may wait for the disk. While it hangs there, scrapes get the
// result of the round before.
type rounds struct {
	read func() *objects

	mu      sync.Mutex    // held briefly, and nothing is called meanwhile
	running chan struct{} // closed when the round that runs has ended; nil: none runs
	last    *objects      // nil: no round has ended yet
}

// latest returns the result of a round that ends within wait, or else that of the last one that ended, nil if none has.
func (r *rounds) latest(wait time.Duration) *objects {
	r.mu.Lock()
	if r.running == nil {
		r.running = make(chan struct{})
		go r.run(r.running)
	}
	running := r.running
	r.mu.Unlock()
	late := time.NewTimer(wait)
	defer late.Stop()
	select {
	case <-running:
	case <-late.C:
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.last
}

func (r *rounds) run(ended chan struct{}) {
	o := r.read()
	r.mu.Lock()
	r.last, r.running = o, nil
	r.mu.Unlock()
	close(ended)
}

// readObjects is a round.
func (c *Collector) readObjects() *objects {
	o := &objects{at: time.Now(), now: c.o.Engine.Now(), topics: c.o.Engine.Stats("", "")}
	o.freeBytes, o.freeErr = c.o.Engine.DiskFreeBytes()
	o.freeInodes, o.countsInodes = c.o.Engine.DiskFreeInodes()
	return o
}
