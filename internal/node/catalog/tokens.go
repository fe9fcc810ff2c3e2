package catalog

import (
	"cmp"
	"slices"

	"penstock/internal/node/budget"
)

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
