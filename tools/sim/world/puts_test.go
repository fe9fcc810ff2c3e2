package world

import (
	"strings"
	"testing"

	"penstock/internal/node"
)

// The check of puts sees a message that is stored twice, a put of which a part is stored, and two puts that changed
// places; and it takes what retention has removed from the beginning of a log for no fault.
//
// B14, B19, C7.
func TestPutsAreChecked(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		log  map[node.ID]int // values by id: 0 and 1 are one put, 2 is the next
		says string
	}{
		"all":                         {map[node.ID]int{5: 0, 6: 1, 7: 2}, ""},
		"the beginning is removed":    {map[node.ID]int{6: 1, 7: 2}, ""},
		"none of the put":             {map[node.ID]int{5: 2}, ""},
		"twice":                       {map[node.ID]int{5: 0, 6: 1, 7: 2, 8: 2}, "stored twice"},
		"a part":                      {map[node.ID]int{5: 0, 6: 2}, "of the same put"},
		"a part behind other values":  {map[node.ID]int{3: 2, 6: 1}, "of the same put"},
		"with another one in between": {map[node.ID]int{5: 0, 6: 2, 7: 1}, "of the same put"},
		"in another order":            {map[node.ID]int{5: 2, 6: 0, 7: 1}, "was given value"},
	} {
		n, topic := &host{name: "n1"}, &topicModel{name: "t0"}
		w := &World{features: FeatureRemote, topics: []*topicModel{topic}}
		w.book.values = []value{
			{topic: topic, by: n, fate: acked, count: 2},
			{topic: topic, by: n, fate: acked, count: 2},
			{topic: topic, by: n, fate: acked, first: 2, count: 1},
		}
		all := logs{}
		for id, v := range c.log {
			all.add(topic, id, stored{value: v})
		}
		if w.checkPuts(all); (w.Violation == "") != (c.says == "") || !strings.Contains(w.Violation, c.says) {
			t.Errorf("%s: %q, want %q", name, w.Violation, c.says)
		}
	}
}
