package topic

import "sync/atomic"

// tally counts a topic and its partitions among those of the node, and of the token that has made the topic, while the
// node lists the topic. The catalog calls set and learnMaker with its lock held; a topic that grows calls recount. A
// crash loses the counts, and recovery counts again.
type tally struct {
	t       *Topic
	listed  atomic.Bool  // whether recount counts the topic
	counted atomic.Int64 // what it has counted
}

// SetListed says whether the node lists the topic. When it begins to, it also takes over the node's options, which may
// have changed just before.
func (t *Topic) SetListed(listed bool) {
	t.tally.listed.Store(listed)
	t.tally.recount()
	if listed {
		t.config.relimit()
	}
}

// recount counts the topic's partitions among those of the node while the topic is listed. It is called after the one
// or the other has changed. Of calls at the same time the last one may count what the earlier one did; the next call,
// at the latest the one that finds the topic no longer listed, mends that.
func (c *tally) recount() {
	now := int64(0)
	if c.listed.Load() {
		now = int64(c.t.Partitions())
	}
	before := c.counted.Swap(now)
	c.t.env.partitions.Add(now - before)
	if sh := c.t.shared.Share.Load(); sh != nil {
		sh.Partitions.Add(now - before)
		sh.Topics.Add(min(now, 1) - min(before, 1))
	}
}

// MadeBy returns the name of the token that has made the topic, if it counts against its share; "": it counts for
// nobody.
func (t *Topic) MadeBy() string {
	if sh := t.shared.Share.Load(); sh != nil {
		return sh.Name
	}
	return ""
}

// learnMaker makes the topic count for this token, as the cluster's metadata say. A topic.json that an older version
// has written does not say it. Only the worker calls it. It returns whether that is new.
func (c *tally) learnMaker(name string) bool {
	t := c.t
	if t.MadeBy() == name {
		return false
	}
	t.env.Catalog.Locked(func() {
		listed := c.listed.Swap(false)
		c.recount()
		to := t.env.Store.Share(name)
		from := t.shared.Share.Swap(to)
		for _, pt := range t.PartitionList() {
			pt.Moved(from, to)
		}
		c.listed.Store(listed)
		c.recount()
	})
	return true
}
