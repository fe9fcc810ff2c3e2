package server

import (
	"fmt"
	"net/url"
	"slices"
	"testing"
	"time"

	"penstock/internal/node"
	"penstock/internal/server/api"
	"penstock/tests/support/nsqtest"
)

// Every node finds the messages of a topic by key, header, text and time, in all partitions.
func TestTopicSearchHTTP(t *testing.T) {
	onOneAndThree(t, func(t *testing.T, nodes []*testNode) {
		makeChannel(t, nodes, "t", "c", 4)
		for i := range 40 {
			path := fmt.Sprintf("/pub?topic=t&key=customer-%d", i%5)
			if code, text := nodes[0].postWith(t, path, fmt.Sprintf(`{"order": %d}`, 100+i), "X-Penstock-Header-Region",
				[]string{"eu", "us"}[i%2]); code != 200 {
				t.Fatalf("%d %s", code, text)
			}
		}
		var list api.PeekList
		nsqtest.Eventually(t, "the messages", func() bool {
			nodes[0].ask(t, "GET", "/topic/peek?topic=t&count=100", "", &list)
			return len(list.Messages) == 40
		})
		middle := list.Messages[20].Timestamp
		later := 0
		for i := range list.Messages {
			if !list.Messages[i].Timestamp.Before(middle) {
				later++
			}
		}
		for _, n := range nodes {
			find := func(q url.Values) api.SearchList {
				q.Set("topic", "t")
				return answer[api.SearchList](t, n, "/topic/search?"+q.Encode())
			}
			all := find(url.Values{"count": {"100"}})
			if len(all.Messages) != 40 || all.Scanned != 40 || all.Next != "" ||
				!slices.IsSortedFunc(all.Messages, func(a, b api.PeekedMessage) int {
					return int(a.Partition) - int(b.Partition)
				}) {
				t.Errorf("%d messages, %d looked at, next %q", len(all.Messages), all.Scanned, all.Next)
			}
			for want, q := range map[int]url.Values{
				8: {"key": {"customer-3"}}, 20: {"header": {"region=eu"}}, 4: {"key": {"customer-3"}, "header": {"region=us"}},
				1: {"contains": {`"order": 117}`}}, 0: {"key": {"customer-9"}}, later: {"since": {middle.Format(time.RFC3339Nano)}},
				40: {"since": {"2020-01-01T00:00:00Z"}},
			} {
				q.Set("count", "100")
				if got := find(q); len(got.Messages) != want || got.Next != "" {
					t.Errorf("%v finds %d messages and goes on at %q; wanted %d", q, len(got.Messages), got.Next, want)
				}
			}
			// Three at a time come all, each once.
			ids, next := map[string]bool{}, ""
			for range 8 {
				got := find(url.Values{"header": {"region=eu"}, "count": {"3"}, "next": {next}})
				for i := range got.Messages {
					ids[got.Messages[i].ID] = true
				}
				if next = got.Next; next == "" {
					break
				}
			}
			if len(ids) != 20 || next != "" {
				t.Errorf("%d messages came, the next is %q", len(ids), next)
			}
			one := find(url.Values{"partition": {"2"}, "count": {"100"}, "from": {"1"}})
			for i := range one.Messages {
				if one.Messages[i].Partition != 2 || one.Messages[i].Number == 0 {
					t.Errorf("partition 2 from number 1 has %+v", one.Messages[i])
				}
			}
		}
		for q, want := range map[string]string{
			"partition=4": "topic t has 4 partitions", "since=monday": "is not a time", "next=7": "is not the next of",
			"header=~=(": "rule 1", "count=0": "is not a number from 1",
		} {
			nodes[0].refused(t, "GET", "/topic/search?topic=t&"+q, "", 400, want)
		}
	})
}

// A token searches what it may peek at: topics that it administers as a whole.
func TestTopicSearchRights(t *testing.T) {
	n := startNode(t, node.Options{}, Options{Auth: tenantTokens(t, "a", "b")})
	for _, name := range []string{"a", "b"} {
		if code, text := n.as(t, name, "/pub?topic="+name+".x", "secret of "+name); code != 200 {
			t.Fatalf("%d %s", code, text)
		}
	}
	for token, want := range map[string]int{"a": 200, "b": 403, "s3cret": 403, "root": 200, "": 401} {
		path := "/topic/search?topic=a.x&contains=secret"
		reply, text := request(t, "GET", n.base+path, "", "Authorization", "Bearer "+token)
		if reply.StatusCode != want {
			t.Errorf("%q: %d %s, wanted %d", token, reply.StatusCode, text, want)
		}
	}
}
