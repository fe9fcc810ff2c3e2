package catalog

import (
	"cmp"
	"slices"

	"penstock/internal/node/budget"
	"penstock/internal/node/datadir"
	"penstock/internal/node/errs"
	"penstock/internal/node/names"
	"penstock/internal/node/topic"
)

// Every partition costs each node of the cluster some KiB of memory, and a file, also where the node has no copy of it.
// So a node lets only MaxPartitions of them come about through it: those of all topics that it lists, and those that
// are being made. What exists already always opens.

// Limits are those of the node's options that bound its topics. Package node documents them.
type Limits struct {
	MaxTopics, MaxPartitions int
	TokenShare               int // percent
	MaxStateBytes            int64
}

// count returns how many topics and partitions there will be of a token, with those that are being made; "": of all. mu
// is held.
func (c *Catalog) count(of string) (topics, partitions int) {
	if of == "" {
		topics, partitions = len(c.topics), int(c.env.Listed())
	} else {
		sh := c.env.Store.Share(of)
		topics, partitions = int(sh.Topics.Load()), int(sh.Partitions.Load())
	}
	for name, cr := range c.creating {
		if c.topics[name] == nil && (of == "" || cr.madeBy == of) { // a creation lists its topic before it ends
			topics, partitions = topics+1, partitions+cr.partitions
		}
	}
	for t, to := range c.growing {
		if of == "" || t.MadeBy() == of {
			partitions += max(to-t.Partitions(), 0)
		}
	}
	return topics, partitions
}

// mayMake returns a LimitError if so many topics and partitions more are too many: for the node, or for the token by
// that makes them, or has made their topic ("": for no token). mu is held.
func (c *Catalog) mayMake(by string, topics, partitions int) error {
	o := c.env.Limits()
	share := func(most int) int { return max(1, int(int64(most)*int64(o.TokenShare)/100)) }
	ofAll, partsOfAll := c.count("")
	ofToken, partsOfToken := 0, 0
	limited := by != "" && o.TokenShare < 100
	if limited {
		ofToken, partsOfToken = c.count(by)
	}
	for _, l := range []struct {
		holds   bool
		err     error
		what    string
		n, most int
		setting string
	}{
		{
			topics > 0, errs.ErrTooManyTopics, "with this one the number of topics",
			ofAll + topics, o.MaxTopics, "max-topics",
		},
		{
			topics > 0 && limited, errs.ErrTopicShare, "with this one the number of topics of " + names.Token(by),
			ofToken + topics, share(o.MaxTopics), "token-share",
		},
		{
			true, errs.ErrTooManyPartitions, "with these the number of partitions of all topics",
			partsOfAll + partitions, o.MaxPartitions, "max-partitions",
		},
		{
			limited, errs.ErrPartitionShare, "with these the number of partitions of all topics of " + names.Token(by),
			partsOfToken + partitions, share(o.MaxPartitions), "token-share",
		},
	} {
		if l.holds && l.n > l.most {
			return &errs.LimitError{Err: l.err, What: l.what, Value: l.n, Most: l.most, Setting: l.setting}
		}
	}
	return nil
}

// RoomToGrow returns a LimitError if the node has no room for a topic of so many partitions.
func (c *Catalog) RoomToGrow(t *topic.Topic, to int) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.mayGrow(t, to, "")
}

// mayGrow is RoomToGrow with mu held, for the token by of Topic.ConfigureAs. More than datadir.MaxPartitions are
// refused by who makes them.
func (c *Catalog) mayGrow(t *topic.Topic, to int, by string) error {
	if more := to - max(t.Partitions(), c.growing[t]); more > 0 && to <= datadir.MaxPartitions {
		if by != "" {
			by = t.MadeBy()
		}
		return c.mayMake(by, 0, more)
	}
	return nil
}

// Grow is RoomToGrow for the token by of Topic.ConfigureAs, and counts the partitions until done is called.
func (c *Catalog) Grow(t *topic.Topic, to int, by string) (done func(), err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.mayGrow(t, to, by); err != nil {
		return nil, err
	}
	c.growing[t] = max(c.growing[t], to)
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		delete(c.growing, t)
	}, nil
}

// A program that lets others in by tokens says of each topic which token makes it (node.TopicOptions.MadeBy). The
// topics of a token, with their partitions and the state of their channels, may take Limits.TokenShare of the node's
// limits, so that one token leaves others the rest. A topic that no token made, or one that administers the node,
// counts for nobody.

// TokenUse is what the topics take that one token has made.
type TokenUse struct {
	Token      string
	Topics     int64
	Partitions int64
	StateBytes int64 // what their deferred messages and confirmed ranges cost in memory, of the copies on this node
	// StoredBytes are those of the logs of the copies on this node, as they were a moment ago. When the disk is nearly
	// full, a token that has more than Limits.TokenShare of it stores nothing more.
	StoredBytes int64
	// OfLimit is the part of a limit of the node that they take, 0 to 1, without the disk: of that of which they take the
	// most. At Limits.TokenShare, requests that would add to it are refused.
	OfLimit float64
}

// TokenUses returns what each token takes that has made a topic which this node lists, those with the largest OfLimit
// first.
func (c *Catalog) TokenUses() (all []TokenUse) {
	o := c.env.Limits()
	c.env.Store.Shares(func(sh *budget.Share) {
		u := TokenUse{
			Token: sh.Name, Topics: sh.Topics.Load(), Partitions: sh.Partitions.Load(), StateBytes: sh.StateBytes(),
			StoredBytes: sh.StoredBytes(),
		}
		if u.Topics > 0 {
			u.OfLimit = max(float64(u.Topics)/float64(o.MaxTopics), float64(u.Partitions)/float64(o.MaxPartitions),
				float64(u.StateBytes)/float64(o.MaxStateBytes), sh.StoredState())
			all = append(all, u)
		}
	})
	slices.SortFunc(all, func(a, b TokenUse) int {
		return cmp.Or(cmp.Compare(b.OfLimit, a.OfLimit), cmp.Compare(a.Token, b.Token))
	})
	return all
}

// TokenShare is how many percent of a limit of this node one token may have.
func (c *Catalog) TokenShare() int { return c.env.Limits().TokenShare }
