package topic

import (
	"context"
	"fmt"

	"penstock/internal/meta"
	"penstock/internal/node/names"
)

// SetListed says whether the node lists the topic. Then recount counts it.
func (t *Topic) SetListed(listed bool) {
	t.listed.Store(listed)
	t.recount()
}

// recount counts the topic's partitions among those of the node while the topic is listed. It is called after the one
// or the other has changed. Of calls at the same time the last one may count what the earlier one did; the next call,
// at the latest the one that finds the topic no longer listed, mends that.
func (t *Topic) recount() {
	now := int64(0)
	if t.listed.Load() {
		now = int64(t.Partitions())
	}
	before := t.counted.Swap(now)
	t.env.partitions.Add(now - before)
	if sh := t.shared.Share.Load(); sh != nil {
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
func (t *Topic) learnMaker(name string) bool {
	if t.MadeBy() == name {
		return false
	}
	t.env.Catalog.Recounted(func() {
		listed := t.listed.Swap(false)
		t.recount()
		to := t.env.Store.Share(name)
		from := t.shared.Share.Swap(to)
		for _, pt := range t.PartitionList() {
			pt.Moved(from, to)
		}
		t.listed.Store(listed)
		t.recount()
	})
	return true
}

// ConfigureAs is Configure for a client with a token that does not administer the node; "": for any other. Partitions
// that it adds count for the token that has made the topic. It adds none to a topic that counts for nobody: these would
// be in nobody's share.
func (t *Topic) ConfigureAs(ctx context.Context, token string, s meta.TopicSettings) (meta.TopicSettings, error) {
	if token != "" && t.MadeBy() == "" && s.Partitions > t.Partitions() && t.env.options().TokenShare < 100 {
		return t.Settings(), fmt.Errorf("%w: topic %s counts for no token, so partitions that %s adds would be in nobody's "+
			"share: ask an administrator, whose token has admin on *, to add them (see the node's setting token-share)",
			meta.ErrSettings, t.Name(), names.Token(token))
	}
	return t.configureAs(ctx, token, s)
}
