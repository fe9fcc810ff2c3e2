package api

import (
	"cmp"
	"encoding/json"
	"net/http"
	"slices"

	"penstock/internal/node/topic"
)

// DeadLetters is how many dead letters wait in a topic until somebody redrives them, or deletes the topic.
type DeadLetters struct {
	Topic string `json:"topic"`
	Count int64  `json:"count"`
}

// maxLetterTopics bounds the topics that a page names.
const maxLetterTopics = 100

// lettersHere returns this node's part of deadLetters, without topics in which none waits.
func (s *Service) lettersHere() []DeadLetters {
	out := []DeadLetters{}
	for _, t := range s.engine.Catalog().Topics() {
		if _, ok := t.LookupChannel(topic.RedriveChannel); !ok {
			continue
		}
		for _, st := range s.engine.Stats(t.Name(), topic.RedriveChannel) {
			for i := range st.Channels {
				if c := &st.Channels[i]; c.Depth+int64(c.InFlightCount)+int64(c.DeferredCount) > 0 {
					out = append(out, DeadLetters{st.Name, c.Depth + int64(c.InFlightCount) + int64(c.DeferredCount)})
				}
			}
		}
	}
	return out
}

// deadLetters returns the topics in which dead letters wait, the most first, at most maxLetterTopics. Of nodes that do
// not answer, Missing of the same page says it.
func (s *Service) deadLetters(r *http.Request) []DeadLetters {
	sums := map[string]int64{}
	_ = s.askAll(r.Context(), question{What: askLetters}, func(_ string, text []byte) error {
		var all []DeadLetters
		err := json.Unmarshal(text, &all)
		for _, l := range all {
			sums[l.Topic] += l.Count
		}
		return err
	})
	out := make([]DeadLetters, 0, len(sums))
	for topic, n := range sums {
		out = append(out, DeadLetters{topic, n})
	}
	slices.SortFunc(out, func(a, b DeadLetters) int {
		return cmp.Or(cmp.Compare(b.Count, a.Count), cmp.Compare(a.Topic, b.Topic))
	})
	return part(out, 0, maxLetterTopics)
}
