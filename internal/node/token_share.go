package node

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"unicode/utf8"

	"penstock/internal/node/budget"
	"penstock/internal/node/errs"
	"penstock/internal/node/names"
)

// A program that lets others in by tokens says of each topic which token makes it (TopicOptions.MadeBy). The topics of
// a token, with their partitions and the state of their channels, may take Options.TokenShare of the node's limits, so
// that one token leaves others the rest. A topic that no token made, or one that administers the node, counts for
// nobody.

// TokenUse is what the topics take that one token has made.
type TokenUse struct {
	Token      string
	Topics     int64
	Partitions int64
	StateBytes int64 // what their deferred messages and confirmed ranges cost in memory, of the copies on this node
	// StoredBytes are those of the logs of the copies on this node, as they were a moment ago. When the disk is nearly
	// full, a token that has more than Options.TokenShare of it stores nothing more.
	StoredBytes int64
	// OfLimit is the part of a limit of the node that they take, 0 to 1, without the disk: of that of which they take the
	// most. At Options.TokenShare, requests that would add to it are refused.
	OfLimit float64
}

// TokenUses returns what each token takes that has made a topic which this node lists, those with the largest OfLimit
// first.
func (e *Engine) TokenUses() (all []TokenUse) {
	o := e.current()
	e.store.Shares(func(sh *budget.Share) {
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

// checkMaker returns an ErrTopicOptions for a name that no topic remembers.
func checkMaker(name string) error {
	if len(name) > names.MaxTokenBytes || !utf8.ValidString(name) {
		return fmt.Errorf("%w: it remembers who made it by a name of at most %d bytes of UTF-8, not of %d",
			errs.ErrTopicOptions, names.MaxTokenBytes, len(name))
	}
	return nil
}

// TokenShare is how many percent of a limit of this node one token may have: Options.TokenShare.
func (e *Engine) TokenShare() int { return e.current().TokenShare }

// ofShare returns how much of a limit one token may take.
func (e *Engine) ofShare(most int) int {
	return max(1, int(int64(most)*int64(e.current().TokenShare)/100))
}

// mayMakeTopic returns a LimitError if one more topic is too many: for the node, or for the token that makes it. mu is
// held.
func (e *Engine) mayMakeTopic(by string) error {
	if n := e.topicCount(); n >= e.current().MaxTopics {
		return &errs.LimitError{
			Err: errs.ErrTooManyTopics, What: "with this one the number of topics", Value: n + 1, Most: e.current().MaxTopics,
			Setting: "max-topics",
		}
	}
	if by == "" || e.current().TokenShare >= 100 {
		return nil
	}
	n, most := int(e.store.Share(by).Topics.Load())+1, e.ofShare(e.current().MaxTopics)
	for name, cr := range e.creating {
		if e.topics[name] == nil && cr.madeBy == by {
			n++
		}
	}
	if n <= most {
		return nil
	}
	return &errs.LimitError{
		Err: errs.ErrTopicShare, What: "with this one the number of topics of " + names.Token(by), Value: n, Most: most,
		Setting: "token-share",
	}
}

// mayShare returns a LimitError if so many partitions more are too many for the token that makes them, or has made
// their topic. mu is held.
func (e *Engine) mayShare(by string, more int) error {
	if by == "" || e.current().TokenShare >= 100 {
		return nil
	}
	n, most := int(e.store.Share(by).Partitions.Load())+more, e.ofShare(e.current().MaxPartitions)
	for name, cr := range e.creating {
		if e.topics[name] == nil && cr.madeBy == by {
			n += cr.partitions
		}
	}
	for t, to := range e.growing {
		if t.MadeBy() == by {
			n += max(to-t.Partitions(), 0)
		}
	}
	if n <= most {
		return nil
	}
	return &errs.LimitError{
		Err: errs.ErrPartitionShare, What: "with these the number of partitions of all topics of " + names.Token(by),
		Value: n, Most: most, Setting: "token-share",
	}
}

// TopicAs is Topic for a client with a token that does not administer the node: a topic that it makes counts for the
// token. "": for any other client.
func (e *Engine) TopicAs(ctx context.Context, token, name string) (*Topic, error) {
	if t, ok := e.LookupTopic(name); ok {
		return t, nil
	}
	if !names.ValidTopic(name) {
		return nil, errs.ErrTopicName
	}
	if e.current().DisableAutoCreate {
		return nil, errs.ErrAutoCreateOff
	}
	return e.CreateTopicWith(ctx, name, TopicOptions{MadeBy: token, quotaBytes: e.current().DefaultQuotaBytes})
}
