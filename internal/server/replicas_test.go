package server

import (
	"fmt"
	"strings"
	"testing"

	"penstock/internal/meta"
)

// The number of replicas in a request that creates a topic counts, at nsqd's interface and at nsqlookupd's, under our
// name and under youzan's.
func TestCreateWithReplicas(t *testing.T) {
	onOneAndThree(t, func(t *testing.T, nodes []*testNode) {
		most := len(nodes)
		for i, query := range []string{"replicas=1", fmt.Sprintf("replicas=%d&partitions=2", most)} {
			nodes[0].post(t, fmt.Sprintf("/topic/create?topic=a%d&%s", i, query), "")
			reply, body := nodes[0].lookupDo(t, "POST", fmt.Sprintf("/topic/create?topic=b%d&%s", i, query))
			if reply.StatusCode != 200 {
				t.Errorf("%d %s", reply.StatusCode, body)
			}
		}
		nodes[0].lookupDo(t, "POST", fmt.Sprintf("/topic/create?topic=c&partition_num=1&replicator=%d", most))
		if s := nodes[0].e.Snapshot(); s != nil {
			for name, want := range map[string]meta.Topic{
				"a0": {Replicas: 1, MinISR: 1}, "a1": {Replicas: 3, MinISR: 2}, "b0": {Replicas: 1, MinISR: 1},
				"b1": {Replicas: 3, MinISR: 2}, "c": {Replicas: 3, MinISR: 2},
			} {
				if got := s.Names[name]; got == nil || got.Replicas != want.Replicas || got.MinISR != want.MinISR {
					t.Errorf("%s: %+v", name, got)
				}
			}
		}
		for _, c := range []struct {
			query, says string
			code        int
		}{
			{"replicas=0", "INVALID_REPLICAS", 400},
			{"replicas=", "INVALID_REPLICAS", 400},
			{"replicas=17", "INVALID_REPLICAS", 400},
			{fmt.Sprint("replicas=", most+1), "replica", map[bool]int{true: 400, false: 503}[most == 1]},
		} {
			code, body := nodes[0].do(t, "POST", "/topic/create?topic=d&"+c.query, "")
			if code != c.code || !strings.Contains(body, c.says) {
				t.Errorf("%s: %d %s", c.query, code, body)
			}
		}
		if _, ok := nodes[0].e.Catalog().LookupTopic("d"); ok {
			t.Error("a topic was made that was refused")
		}
	})
}
