package api

import (
	"bytes"
	"cmp"
	"context"
	"net/http"
	"net/url"
	"slices"
	"time"

	"penstock/batch"
	"penstock/internal/node"
	"penstock/internal/node/channel"
	"penstock/internal/node/fold"
	"penstock/internal/node/message"
)

// Bounds of one request of /topic/search. It goes as far as they allow, and says where the next one goes on.
const (
	maxSearchCount = 10_000   // messages that it looks at
	maxSearchBytes = 32 << 20 // of their bodies; and of those that it finds as many as a peek
	maxSearchTime  = time.Second
)

// SearchList is the answer of /topic/search: what was found, by partition and number.
type SearchList struct {
	PeekList
	Scanned int    `json:"scanned"`        // messages that were looked at
	Next    string `json:"next,omitempty"` // where the next request goes on; none: all was looked at
}

// search is one request of /topic/search. It looks at one partition after the other, so that one id says how far it
// has come. Its goroutine uses it alone, and it has nothing that a crash could leave.
type search struct {
	want  *fold.Matcher // of headers; nil: any
	text  []byte        // that the body has
	since time.Time
	count int // how many messages it may find

	at    node.ID // where it goes on
	end   uint32  // partition that it does not look at any more
	most  int     // messages of one look; tests have fewer
	bytes int     // of bodies that it has looked at
	kept  int     // of these, of messages that it found
	found []node.PeekedMessage
	seen  int
}

func serveTopicSearch(t *node.Topic, r *http.Request, q url.Values) (any, error) {
	s, err := newSearch(t, q)
	if err != nil {
		return nil, err
	}
	more, err := s.run(r.Context(), t)
	if err != nil {
		return nil, err
	}
	out := SearchList{PeekList: peekList(s.found), Scanned: s.seen}
	if more {
		out.Next = s.at.String()
	}
	return out, nil
}

// newSearch parses the parameters: those of a peek, next, which an earlier answer said, and what is searched for.
func newSearch(t *node.Topic, q url.Values) (*search, error) {
	o, err := peekOptions(q)
	if err != nil {
		return nil, err
	}
	s := &search{
		text: []byte(q.Get("contains")), count: channel.ListCount(o.Count), at: o.From, end: uint32(t.Partitions()),
		most: channel.MaxListCount,
	}
	if o.Partition >= t.Partitions() {
		return nil, badArgument("topic %s has %d partitions, counted from 0, and no %d", t.Name(), t.Partitions(),
			o.Partition)
	}
	if o.Partition >= 0 {
		s.at, s.end = max(s.at, batch.MakeID(uint32(o.Partition), 0)), uint32(o.Partition)+1
	}
	if next := q.Get("next"); next != "" {
		id, err := batch.ParseID([]byte(next))
		if err != nil {
			return nil, badArgument("next=%q is not the next of an earlier answer", next)
		}
		s.at = max(s.at, id)
	}
	if since := q.Get("since"); since != "" {
		if s.since, err = parseTime(since); err != nil {
			return nil, badArgument("since=%q is not a time: say it as 2026-01-31T12:00:00Z or in ns since 1970", since)
		}
	}
	f := fold.Filter{All: true}
	if key := q.Get("key"); key != "" {
		f.Rules = append(f.Rules, fold.Rule{Header: message.KeyHeader, Match: fold.MatchExact, Pattern: key})
	}
	for _, text := range q["header"] {
		f.Rules = append(f.Rules, fold.ParseRule(text))
	}
	s.want, err = f.Matcher()
	return s, err
}

// run looks at messages until all are seen, enough are found, or a bound is reached; more says that some are left.
func (s *search) run(ctx context.Context, t *node.Topic) (more bool, err error) {
	for until := time.Now().Add(maxSearchTime); s.at.Partition() < s.end; {
		if len(s.found) >= s.count || s.seen >= maxSearchCount || s.bytes >= maxSearchBytes || time.Now().After(until) {
			return true, nil
		}
		page, err := t.PeekSince(ctx, int(s.at.Partition()), s.at, min(s.most, maxSearchCount-s.seen), s.since)
		if err != nil {
			return true, err
		}
		if len(page) == 0 {
			if s.at.Partition()+1 >= s.end {
				break
			}
			s.at = batch.MakeID(s.at.Partition()+1, 0)
		}
		if s.take(page) {
			return true, nil
		}
	}
	return false, nil
}

// take looks at messages of one partition in the order of their numbers. full says that what was found has no room for
// the next one. A message that was cut to fit behind others is looked at again, as the first of the next page.
func (s *search) take(page []node.PeekedMessage) (full bool) {
	slices.SortFunc(page, func(a, b node.PeekedMessage) int { return cmp.Compare(a.ID, b.ID) })
	for i := range page {
		m := &page[i]
		if m.Truncated && i > 0 || len(s.found) >= s.count {
			return false
		}
		if s.finds(m) {
			if s.kept += len(m.Body); s.kept > channel.MaxPeekBytes && len(s.found) > 0 {
				return true
			}
			s.found = append(s.found, *m)
		}
		s.at, s.bytes = m.ID+1, s.bytes+len(m.Body)
		s.seen++
	}
	return false
}

func (s *search) finds(m *node.PeekedMessage) bool {
	return !m.Timestamp.Before(s.since) && s.want.Match(m.Headers) && bytes.Contains(m.Body, s.text)
}
