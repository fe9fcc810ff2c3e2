package node_test

import (
	"slices"
	"strings"
	"testing"

	"penstock/internal/node"
)

// From nine tenths of what may be made on, the node's health and its faults say that topics, or partitions, run out.
func TestHealthNearLimits(t *testing.T) {
	for name, x := range map[string]struct {
		set        func(*node.Options)
		partitions int
		fault      string
		says       string
	}{
		"topics": {
			func(o *node.Options) { o.MaxTopics = 10 }, 1, "topics_near_limit",
			"there are 9 topics, and max-topics of this node is 10",
		},
		"partitions": {
			func(o *node.Options) { o.MaxPartitions = 20 }, 2, "partitions_near_limit",
			"there are 18 partitions, and max-partitions of this node is 20",
		},
	} {
		t.Run(name, func(t *testing.T) {
			e := openOnDisk(t, newDisk(), x.set)
			told := func() bool {
				t.Helper()
				v, s := e.Verdict(), e.Storage()
				noted := strings.Contains(v.Health, x.says)
				counted := slices.ContainsFunc(s.Faults(), func(f node.Fault) bool { return f.Name == x.fault })
				if noted != counted || !v.Healthy || strings.Contains(v.Health, "; there are") != noted {
					t.Errorf("faults %v: %s", s.Faults(), v.Health)
				}
				return noted
			}
			for i := range 9 {
				if told() {
					t.Errorf("with %d topics it is told already", i)
				}
				if _, err := e.CreateTopic(t.Context(), "t"+string(rune('0'+i)), x.partitions); err != nil {
					t.Fatal(err)
				}
			}
			if !told() {
				t.Error("with 9 topics it is not told")
			}
			if err := e.DeleteTopic(t.Context(), "t0"); err != nil {
				t.Fatal(err)
			}
			if told() {
				t.Error("after a deletion it is still told")
			}
		})
	}
}
