package api

import (
	"encoding/json"
	"maps"
	"net/http"
	"net/url"
	"slices"

	"penstock/internal/node/topic"
	"penstock/internal/server/history"
)

// maxAttention bounds the rows that a node names, and those of the answer.
const maxAttention = MaxPageCount

// AttentionPage is the answer of /attention: what a person should look at, the worst first.
type AttentionPage struct {
	Count    int                 `json:"count"` // at most maxAttention
	Offset   int                 `json:"offset"`
	Channels []history.Attention `json:"channels"` // rows without a name are about a topic
	// DeadLetters are the topics in which dead letters wait, the most first.
	DeadLetters []DeadLetters `json:"dead_letters"`
	Missing     []Missing     `json:"missing"`
}

// attentionHere returns this node's rows: those with a reason or, with keys, the rows of these.
func (s *Service) attentionHere(keys []string) []history.Attention {
	return s.history.Attention(maxAttention, keys, func(channel string) bool {
		return channel == topic.RedriveChannel // what waits there is told as dead letters
	})
}

// serveAttention first asks all nodes which channels have a reason for attention there, and then all of them for their
// parts of these channels: whether nobody consumes a channel only all leaders know together.
func (s *Service) serveAttention(r *http.Request, q url.Values) (any, error) {
	offset, count, err := page(q)
	if err != nil {
		return nil, err
	}
	sums := map[string]*history.Attention{}
	ask := question{What: askAttention}
	take := func(_ string, text []byte) error {
		var all []history.Attention
		err := json.Unmarshal(text, &all)
		for i := range all {
			if had := sums[all[i].Key()]; had != nil {
				had.Add(&all[i])
			} else {
				sums[all[i].Key()] = &all[i]
			}
		}
		return err
	}
	out := AttentionPage{Offset: offset, Missing: s.askAll(r.Context(), ask, take), DeadLetters: s.deadLetters(r)}
	if len(sums) > 0 {
		ask.Names = slices.Collect(maps.Keys(sums))
		clear(sums)
		out.Missing = s.askAll(r.Context(), ask, take)
	}
	rows := make([]history.Attention, 0, len(sums))
	for _, row := range sums {
		if row.Judge() {
			rows = append(rows, *row)
		}
	}
	slices.SortFunc(rows, func(a, b history.Attention) int { return history.CompareAttention(&a, &b) })
	rows = part(rows, 0, maxAttention)
	out.Count, out.Channels = len(rows), part(rows, offset, count)
	return out, nil
}
