package server

import (
	"strings"
	"testing"

	"penstock/tests/support/nsqtest"
	"penstock/tests/support/porttest"
)

// The service that deletes a topic or channel answers OK. Each other service answers OK once, and after that reports
// that it does not exist. The same holds after the name was created again and deleted again. The deletion of a name
// that never existed always fails.
func TestDeletedElsewhere(t *testing.T) {
	t.Parallel()
	onOneAndThree(t, func(t *testing.T, nodes []*testNode) {
		const topic, channel = "?topic=t", "?topic=t&channel=c"
		status := func(n *testNode, lookup bool, path string) int {
			if lookup {
				reply, _ := n.lookupDo(t, "POST", path)
				return reply.StatusCode
			}
			code, _ := n.do(t, "POST", path, "")
			return code
		}
		expect := func(n *testNode, lookup bool, path string, want int) {
			t.Helper()
			if got := status(n, lookup, path); got != want {
				t.Errorf("%s at %s, lookup %v: %d, want %d", path, n.base, lookup, got, want)
			}
		}
		for round := range 3 {
			for _, n := range nodes {
				expect(n, false, "/topic/delete?topic=never", 404)
			}
			makeChannel(t, nodes, "t", "c", 2)
			for _, n := range nodes {
				expect(n, false, "/channel/delete?topic=t&channel=never", 404)
				expect(n, true, "/channel/delete?topic=t&channel=never", 404)
			}
			first := nodes[round%len(nodes)]
			firstIsLookup := round%2 == 0
			expect(first, firstIsLookup, "/channel/delete"+channel, 200)
			expect(first, firstIsLookup, "/channel/delete"+channel, 404)
			for _, n := range nodes {
				for _, lookup := range []bool{true, false} {
					if n != first || lookup != firstIsLookup {
						expect(n, lookup, "/channel/delete"+channel, 200)
						expect(n, lookup, "/channel/delete"+channel, 404)
					}
				}
			}
			expect(first, firstIsLookup, "/topic/delete"+topic, 200)
			for _, n := range nodes {
				nsqtest.Eventually(t, "the topic to be gone", func() bool { _, ok := n.e.Catalog().LookupTopic("t"); return !ok })
				if n != first || firstIsLookup {
					expect(n, false, "/topic/delete"+topic, 200)
				}
				expect(n, false, "/topic/delete"+topic, 404)
				expect(n, true, "/topic/delete"+topic, 200) // always 200, as at nsqlookupd
			}
		}
	})
}

// The stock nsqadmin deletes a channel and a topic through our lookup service and our nsqd API without any warning,
// with one node and with several nodes that lead partitions.
func TestNSQAdminDeletes(t *testing.T) {
	onOneAndThree(t, func(t *testing.T, nodes []*testNode) {
		makeChannel(t, nodes, "t", "c", 6)
		var args []string
		for _, n := range nodes {
			args = append(args, "-lookupd-http-address="+n.LookupAddr().String())
		}
		web := porttest.Address(t)
		admin := startProgram(t, "nsqadmin", web, args...)
		if got := admin.do("GET", "/api/topics/t", ""); !strings.Contains(got, `"channel_name":"c"`) {
			t.Fatalf("nsqadmin shows %s", got)
		}
		for _, path := range []string{"/api/topics/t/c", "/api/topics/t"} {
			if got := admin.do("DELETE", path, ""); got != `{"message":""}` {
				t.Errorf("DELETE %s: %s", path, got)
			}
		}
		if got := admin.do("GET", "/api/topics", ""); got != `{"topics":null,"message":""}` {
			t.Errorf("afterwards there is %s", got)
		}
	})
}
