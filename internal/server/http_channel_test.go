package server

import (
	"encoding/json"
	"fmt"
	"net/url"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"penstock/internal/node"
	"penstock/internal/node/errs"
	"penstock/internal/node/fold"
	"penstock/internal/server/api"
	"penstock/internal/server/auth"
	"penstock/tests/support/authtest"
	"penstock/tests/support/nsqtest"
)

// onOneAndThree runs a test against a lone node, and against a cluster of three nodes.
func onOneAndThree(t *testing.T, test func(t *testing.T, nodes []*testNode)) {
	t.Run("one node", func(t *testing.T) {
		test(t, []*testNode{startNode(t, node.Options{}, Options{BroadcastAddress: "127.0.0.1"})})
	})
	t.Run("three nodes", func(t *testing.T) { test(t, startCluster(t, 3, Options{BroadcastAddress: "127.0.0.1"})) })
}

// makeChannel creates a topic, waits until every node knows it, creates the channel through every node, and returns the
// query that names both.
func makeChannel(t *testing.T, nodes []*testNode, topic, channel string, partitions int) string {
	t.Helper()
	nodes[0].post(t, fmt.Sprintf("/topic/create?topic=%s&partitions=%d", topic, partitions), "")
	q := "?topic=" + topic + "&channel=" + channel
	for _, n := range nodes {
		nsqtest.Eventually(t, "the topic to be known", func() bool { _, ok := n.e.Catalog().LookupTopic(topic); return ok })
		n.post(t, "/channel/create"+q, "")
	}
	return q
}

// ask expects status 200 and decodes the answer into into.
func (n *testNode) ask(t testing.TB, method, path, body string, into any) {
	t.Helper()
	code, got := n.do(t, method, path, body)
	if code != 200 {
		t.Fatalf("%s %s: %d %s", method, path, code, got)
	}
	if err := json.Unmarshal([]byte(got), into); err != nil {
		t.Fatalf("%s %s: %s: %v", method, path, got, err)
	}
}

// sentence returns an error's text over HTTP, which lacks the package's name.
func sentence(err error) string {
	_, text, _ := strings.Cut(err.Error(), ": ")
	return text
}

// refused expects an error with this status whose text contains text.
func (n *testNode) refused(t testing.TB, method, path, body string, status int, text string) {
	t.Helper()
	code, got := n.do(t, method, path, body)
	var said map[string]string
	if json.Unmarshal([]byte(got), &said) != nil || code != status || !strings.Contains(said["message"], text) {
		t.Errorf("%s %s %s: %d %s, want %d %s", method, path, body, code, got, status, text)
	}
}

// TestChannelSettingsHTTP: settings are read and changed through any node, and a change based on an old version is
// refused.
func TestChannelSettingsHTTP(t *testing.T) {
	onOneAndThree(t, func(t *testing.T, nodes []*testNode) {
		first, last := nodes[0], nodes[len(nodes)-1]
		path := "/channel/settings" + makeChannel(t, nodes, "t", "c", 3)
		var s fold.ChannelSettings
		last.ask(t, "GET", path, "", &s)
		if s.Version != 0 || s.Order != fold.OrderNone {
			t.Fatalf("settings that nobody made: %+v", s)
		}
		const body = `{"version":0,"order":"key","key_header":"key","max_attempts":7,"dead_letter":"dead",` +
			`"rate_per_second":1000,"max_in_flight":20,"sample_rate":50,` +
			`"filter":{"all":true,"invert":false,"rules":[{"header":"kind","match":"prefix","pattern":"in"}]}}`
		first.ask(t, "POST", path, body, &s)
		if s.Version != 1 || s.Order != fold.OrderKey || s.MaxAttempts != 7 || len(s.Filter.Rules) != 1 {
			t.Fatalf("got %+v", s)
		}
		for _, n := range nodes {
			_, got := n.do(t, "GET", path, "")
			if want := strings.Replace(body, `"version":0`, `"version":1`, 1); got != want {
				t.Errorf("GET gives %s, want %s", got, want)
			}
			n.refused(t, "POST", path, `{"version":0,"max_attempts":8}`, 409, sentence(errs.ErrVersion))
		}
		last.ask(t, "POST", path, `{"version":1}`, &s)
		if s.Version != 2 || s.MaxAttempts != 0 {
			t.Errorf("what a change does not say is not the default: %+v", s)
		}
		for body, why := range map[string]string{
			`{"version":2,"order":"sideways"}`: `order "sideways" is none of none, partition, key`,
			`{"version":2,"max_atempts":3}`:    "max_atempts",
			`{"version":2} {}`:                 "there is more behind them",
			`[]`:                               "is not the JSON of settings",
			`{"version":2,"max_attempts":"x"}`: "(max_attempts is a string, and must be a whole number of 0 or more)",
			``:                                 "is not the JSON of settings",
			`{"version":2,"sample_rate":100}`:  "sample_rate is 100",
			`{"version":2,"max_attempts":1,"dead_letter":"t"}`:                                 "is the topic itself",
			`{"version":2,"filter":{"rules":[{"header":"h","match":"regexp","pattern":"("}]}}`: "nothing was changed",
		} {
			last.refused(t, "POST", path, body, 400, why)
		}
		last.refused(t, "POST", path, strings.Repeat(" ", 64<<10+1), 413, "larger than any")
		first.ask(t, "GET", path, "", &s)
		if s.Version != 2 {
			t.Errorf("a refused change changed something: %+v", s)
		}
	})
}

// TestPeekHTTP: messages are shown with their headers, as text or as bytes, by partition, number and id. Showing them
// does not consume them.
func TestPeekHTTP(t *testing.T) {
	onOneAndThree(t, func(t *testing.T, nodes []*testNode) {
		q := makeChannel(t, nodes, "t", "c", 2)
		for i := range 10 {
			n := nodes[i%len(nodes)]
			code, got := n.postWith(t, "/pub?topic=t", fmt.Sprint("text ", i), "X-Penstock-Header-Kind", "greeting")
			if code != 200 {
				t.Fatal(code, got)
			}
		}
		nodes[0].post(t, "/pub?topic=t", "\xff\xfe")
		for _, n := range nodes {
			for _, path := range []string{"/channel/peek" + q, "/topic/peek?topic=t"} {
				var all api.PeekList
				n.ask(t, "GET", path+"&count=100", "", &all)
				texts, raw := 0, 0
				for _, m := range all.Messages {
					switch {
					case m.Body != nil && strings.HasPrefix(*m.Body, "text ") &&
						len(m.Headers) == 1 && m.Headers[0].Name == "kind" && *m.Headers[0].Value == "greeting":
						texts++
					case m.Body == nil && string(m.BodyBase64) == "\xff\xfe" && m.BodyBytes == 2:
						raw++
					}
				}
				if texts != 10 || raw != 1 || len(all.Messages) != 11 {
					t.Fatalf("%s: %d texts, %d others in %+v", path, texts, raw, all)
				}
				for _, m := range all.Messages { // B96: by id, and by its place
					for _, from := range []string{"&from=" + m.ID, fmt.Sprintf("&partition=%d&from=%d", m.Partition, m.Number)} {
						var one api.PeekList
						n.ask(t, "GET", path+"&count=1"+from, "", &one)
						if len(one.Messages) != 1 || one.Messages[0].ID != m.ID || !one.Messages[0].Timestamp.Equal(m.Timestamp) {
							t.Errorf("%s%s gives %+v", path, from, one)
						}
					}
				}
				var few api.PeekList
				n.ask(t, "GET", path+"&count=3&partition=1", "", &few)
				if len(few.Messages) != 3 || few.Messages[0].Partition != 1 || few.Messages[2].Partition != 1 {
					t.Errorf("%s: three of partition 1 are %+v", path, few)
				}
				n.refused(t, "GET", path+"&partition=2", "", 400, "no such partition")
				n.refused(t, "GET", path+"&partition=x", "", 400, "is not the number of a partition")
				n.refused(t, "GET", path+"&count=0", "", 400, "is not a number from 1 to 1000")
				n.refused(t, "GET", path+"&count=1001", "", 400, "is not a number from 1 to 1000")
				n.refused(t, "GET", path+"&from=zz", "", 400, "neither a message id")
				n.refused(t, "GET", path+"&from=5", "", 400, "say which one")
				n.refused(t, "GET", path+"&partition=0&from=0001000000000000", "", 400, "is in partition 1, not in 0")
			}
		}
	})
}

// TestWaitingHTTP: every node lists the messages in flight and the deferred messages.
func TestWaitingHTTP(t *testing.T) {
	onOneAndThree(t, func(t *testing.T, nodes []*testNode) {
		q := makeChannel(t, nodes, "t", "c", 3)
		for i, n := range nodes {
			c := n.dial(t)
			c.Identify(fmt.Sprintf(`{"client_id":"reader %d"}`, i))
			c.Sub("t", "c")
			c.Send("RDY 100\n")
		}
		for i := range 6 {
			nodes[i%len(nodes)].post(t, "/pub?topic=t", "now")
		}
		nodes[0].post(t, "/pub?topic=t&defer=60000", "later")
		for _, n := range nodes {
			var list api.WaitingList
			nsqtest.Eventually(t, "all messages to be in flight", func() bool {
				n.ask(t, "GET", "/channel/pending"+q+"&count=100", "", &list)
				return len(list.Messages) == 6
			})
			for _, m := range list.Messages {
				if !strings.HasPrefix(m.Client, "reader ") || m.Attempts != 1 || m.Since.IsZero() {
					t.Errorf("in flight: %+v", m)
				}
			}
			n.ask(t, "GET", "/channel/deferred"+q, "", &list)
			if len(list.Messages) != 1 || time.Until(list.Messages[0].Due) < 30*time.Second || list.Messages[0].Attempts != 0 {
				t.Errorf("deferred: %+v", list)
			}
			n.refused(t, "GET", "/channel/pending"+q+"&count=x", "", 400, "is not a number")
		}
	})
}

// TestSeekHTTP B56
func TestSeekHTTP(t *testing.T) {
	onOneAndThree(t, func(t *testing.T, nodes []*testNode) {
		q := makeChannel(t, nodes, "t", "c", 2)
		first, last := nodes[0], nodes[len(nodes)-1]
		for i := range 20 {
			first.post(t, "/pub?topic=t", fmt.Sprint(i))
		}
		depth := func(want int, why string) {
			t.Helper()
			var list api.PeekList
			last.ask(t, "GET", "/channel/peek"+q+"&count=1000", "", &list)
			if len(list.Messages) != want {
				t.Errorf("%s: %d messages wait, want %d", why, len(list.Messages), want)
			}
		}
		seek := func(n *testNode, args string) {
			t.Helper()
			n.post(t, "/channel/seek"+q+"&"+args, "")
		}
		var list api.PeekList
		first.ask(t, "GET", "/channel/peek"+q+"&partition=1&count=1000", "", &list)
		inOne := len(list.Messages)
		if inOne < 4 {
			t.Fatalf("%d of 20 messages are in partition 1", inOne)
		}
		seek(last, "to=end")
		depth(0, "end")
		seek(first, "to=beginning")
		depth(20, "beginning")
		seek(last, "to=count&value=3")
		depth(14, "forward 3 in each")
		seek(last, "to=count&value=-2")
		depth(18, "back 2 in each")
		seek(first, "to=end")
		seek(last, "to=id&value="+list.Messages[1].ID)
		depth(inOne-1, "from an id of partition 1")
		seek(last, "to=time&value="+url.QueryEscape(time.Now().Add(-time.Hour).Format(time.RFC3339)))
		depth(20, "an hour ago")
		seek(first, fmt.Sprint("to=time&value=", time.Now().Add(time.Hour).UnixNano()))
		depth(0, "in an hour")
		for args, why := range map[string]string{
			"":                             "is not a place",
			"to=nowhere":                   "is not a place",
			"to=end&value=1":               "takes no value",
			"to=id&value=17":               "is not a message id",
			"to=id&value=ffffffffffffffff": "topic t has 2, counted from 0, and message ffffffffffffffff is of partition 65535",
			"to=time&value=noon":           "is not a time",
			"to=count&value=many":          "is not a number of messages",
		} {
			last.refused(t, "POST", "/channel/seek"+q+"&"+args, "", 400, why)
		}
	})
}

// A new channel starts where the request says, on one node and on three.
func TestCreateChannelFromHTTP(t *testing.T) {
	onOneAndThree(t, func(t *testing.T, nodes []*testNode) {
		q := makeChannel(t, nodes, "t", "keeper", 2)
		first, last := nodes[0], nodes[len(nodes)-1]
		for i := range 20 {
			first.post(t, "/pub?topic=t", fmt.Sprint(i))
		}
		var list api.PeekList
		first.ask(t, "GET", "/channel/peek"+q+"&partition=1&count=1000", "", &list)
		inOne := len(list.Messages)
		if inOne < 4 {
			t.Fatalf("%d of 20 messages are in partition 1", inOne)
		}
		for from, want := range map[string]int{
			"oldest": 20, "newest": 0, list.Messages[1].ID: inOne - 1,
			url.QueryEscape(time.Now().Add(-time.Hour).Format(time.RFC3339)): 20,
			fmt.Sprint(time.Now().Add(time.Hour).UnixNano()):                 0,
		} {
			q := "?topic=t&channel=from-" + strings.Map(func(r rune) rune {
				if strings.ContainsRune(":%+", r) {
					return '-'
				}
				return r
			}, from)
			last.post(t, "/channel/create"+q+"&from="+from, "")
			first.ask(t, "GET", "/channel/peek"+q+"&count=1000", "", &list)
			if len(list.Messages) != want {
				t.Errorf("from %s: %d messages, want %d", from, len(list.Messages), want)
			}
		}
		last.refused(t, "POST", "/channel/create?topic=t&channel=x&from=noon", "", 400, "is not a place")
	})
}

// TestSkipHTTP B54
func TestSkipHTTP(t *testing.T) {
	onOneAndThree(t, func(t *testing.T, nodes []*testNode) {
		q := makeChannel(t, nodes, "t", "c", 1)
		last := nodes[len(nodes)-1]
		last.post(t, "/channel/skip"+q, "")
		for range 3 {
			last.post(t, "/pub?topic=t", "dropped")
		}
		last.post(t, "/channel/unskip"+q, "")
		last.post(t, "/pub?topic=t", "kept")
		var list api.PeekList
		last.ask(t, "GET", "/channel/peek"+q, "", &list)
		if len(list.Messages) != 1 || *list.Messages[0].Body != "kept" {
			t.Errorf("after a skip there is %+v", list)
		}
		last.refused(t, "POST", "/channel/skip?topic=t&channel=none", "", 404, "CHANNEL_NOT_FOUND")
		last.refused(t, "POST", "/channel/skip?topic=none&channel=c", "", 404, "TOPIC_NOT_FOUND")
	})
}

// readBy consumes a channel of topic t at every node, answers each message with the given command, and returns the
// bodies.
func readBy(t *testing.T, nodes []*testNode, channel, answer string) chan string {
	bodies := make(chan string, 100)
	for _, n := range nodes {
		c := n.dial(t)
		c.Sub("t", channel)
		c.Send("RDY 5\n")
		go func() {
			for {
				k, d, err := c.Frame(nsqtest.Patience)
				if err != nil {
					return
				}
				if k == nsqtest.FrameMessage {
					bodies <- string(d[26:])
					_, _ = fmt.Fprintf(c.W, answer, d[10:26]) // fails when the end of the test closes the connection
				}
			}
		}()
	}
	return bodies
}

// TestRedriveHTTP B64: a message that failed too often is in the dead-letter topic, and is delivered again after a
// redrive.
func TestRedriveHTTP(t *testing.T) {
	t.Parallel()
	onOneAndThree(t, func(t *testing.T, nodes []*testNode) {
		q := makeChannel(t, nodes, "t", "c", 2)
		other := makeChannel(t, nodes, "t", "other", 2)
		var s fold.ChannelSettings
		nodes[0].ask(t, "POST", "/channel/settings"+q, `{"version":0,"max_attempts":1}`, &s)
		bodies := readBy(t, nodes, "c", "REQ %s 0\n")
		expect := func() {
			t.Helper()
			select {
			case b := <-bodies:
				if b != "poison" {
					t.Fatalf("got %q", b)
				}
			case <-time.After(nsqtest.Patience):
				t.Fatal("no message")
			}
		}
		last := nodes[len(nodes)-1]
		last.post(t, "/pub?topic=t", "poison")
		expect()
		var dead api.PeekList
		for round := range 2 {
			nsqtest.Eventually(t, "the dead letter", func() bool {
				code, got := last.do(t, "GET", "/topic/peek?topic=t.DLQ", "")
				dead = api.PeekList{}
				return code == 200 && json.Unmarshal([]byte(got), &dead) == nil && len(dead.Messages) == round+1
			})
			if round == 0 {
				var moved api.Redriven
				nsqtest.Eventually(t, "the redrive", func() bool {
					last.ask(t, "POST", "/channel/redrive"+q+"&count=10", "", &moved)
					return moved.Moved == 1
				})
				expect()
			}
		}
		headers := map[string]string{}
		for _, h := range dead.Messages[1].Headers {
			headers[h.Name] = *h.Value
		}
		if headers["penstock-origin-topic"] != "t" || headers["penstock-origin-channel"] != "c" {
			t.Errorf("headers of a dead letter: %v", headers)
		}
		got := readBy(t, nodes, "other", "FIN %s\n")
		nsqtest.Eventually(t, "the other channel to have read all", func() bool {
			var waits api.PeekList
			last.ask(t, "GET", "/channel/peek"+other, "", &waits)
			return len(waits.Messages) == 0
		})
		if len(got) != 1 {
			t.Errorf("another channel got %d messages: the redriven one is not its own", len(got))
		}
	})
}

// /channel/fork makes a channel with the settings of another one, at the place that is named or where that one stands,
// through any node.
func TestForkHTTP(t *testing.T) {
	onOneAndThree(t, func(t *testing.T, nodes []*testNode) {
		q := makeChannel(t, nodes, "t", "c", 2)
		nodes[0].post(t, "/channel/settings"+q, `{"version":0,"max_attempts":9}`)
		for i := range 10 {
			nodes[0].post(t, "/pub?topic=t", fmt.Sprint("m", i))
		}
		nodes[0].post(t, "/channel/seek"+q+"&to=count&value=2", "") // in each partition
		for i, n := range nodes {
			for at, want := range map[string]int{"": 6, "&at=oldest": 10, "&at=newest": 0, "&at=0001000000000004": 4} {
				name := fmt.Sprintf("fork%d-%d-%d", i, want, len(at))
				n.post(t, "/channel/fork"+q+"&new="+name+at, "")
				n.refused(t, "POST", "/channel/fork"+q+"&new="+name+at, "", 409, sentence(errs.ErrChannelExists))
				var list api.PeekList
				n.ask(t, "GET", "/channel/peek?topic=t&channel="+name+"&count=100", "", &list)
				var set fold.ChannelSettings
				n.ask(t, "GET", "/channel/settings?topic=t&channel="+name, "", &set)
				if len(list.Messages) != want || set.MaxAttempts != 9 {
					t.Errorf("%s has %d messages, want %d, and the settings %+v", name, len(list.Messages), want, set)
				}
			}
			for query, status := range map[string]int{
				q: 400, q + "&new=": 400, q + "&new=n%20n": 400, q + "&new=n&at=noon": 400, q + "&new=n&at=": 400,
				"?topic=t&new=n": 400, "?topic=t&channel=none&new=n": 404, "?topic=none&channel=c&new=n": 404,
				q + "&new=n%23ephemeral": 400, q + "&new=n&at=0007000000000000": 400,
			} {
				if got, text := n.do(t, "POST", "/channel/fork"+query, ""); got != status {
					t.Errorf("%s: %d %s, want %d", query, got, text, status)
				}
			}
			if got, _ := n.do(t, "GET", "/channel/fork"+q+"&new=n", ""); got != 405 {
				t.Errorf("GET: %d", got)
			}
		}
	})
}

// A node that leads nothing carries out operations on an existing channel, and creates no channel that does not exist.
func TestChannelVerbsAtANodeThatLeadsNothing(t *testing.T) {
	nodes := startCluster(t, 3, Options{BroadcastAddress: "127.0.0.1"})
	nodes[0].post(t, "/topic/create?topic=t&partitions=1", "")
	nodes[0].post(t, "/channel/create?topic=t&channel=c", "")
	for _, n := range nodes {
		nsqtest.Eventually(t, "the topic to be known", func() bool { _, ok := n.e.Catalog().LookupTopic("t"); return ok })
		nsqtest.Eventually(t, "the channel to be known", func() bool {
			code, _ := n.do(t, "POST", "/channel/pause?topic=t&channel=c", "")
			return code == 200
		})
		n.post(t, "/channel/unpause?topic=t&channel=c", "")
		n.refused(t, "POST", "/channel/pause?topic=t&channel=none", "", 404, "CHANNEL_NOT_FOUND")
	}
	nodes[1].post(t, "/channel/delete?topic=t&channel=c", "")
	for _, n := range nodes[1:] {
		nsqtest.Eventually(t, "the channel to be gone", func() bool {
			code, _ := n.do(t, "POST", "/channel/pause?topic=t&channel=c", "")
			return code == 404
		})
	}
}

// After a channel was deleted through another node, every operation reports at once that it does not exist: at the node
// that created it, at a node where a client was connected, and at the leader, even if that node still remembers the
// channel. After the channel was created again, it exists at every node.
func TestChannelVerbsAfterADeletionElsewhere(t *testing.T) {
	onOneAndThree(t, func(t *testing.T, nodes []*testNode) {
		q := makeChannel(t, nodes, "t", "c", 1)
		verbs := []string{
			"POST /channel/pause", "POST /channel/unpause", "POST /channel/empty", "POST /channel/skip", "POST /channel/unskip",
			"POST /channel/redrive",
			"GET /channel/settings", "GET /channel/peek", "GET /channel/pending", "GET /channel/deferred", "POST /channel/seek",
		}
		for round := range 2 {
			for _, n := range nodes {
				c := n.dial(t)
				c.Sub("t", "c")
				c.Conn.Close()
			}
			for _, n := range nodes {
				nsqtest.Eventually(t, "the clients to be gone", func() bool {
					s := n.topicNow(t, "t")
					return len(s.Channels) == 0 || len(s.Channels[0].Consumers) == 0
				})
				for _, verb := range verbs {
					method, path, _ := strings.Cut(verb, " ")
					body := ""
					if path == "/channel/seek" {
						path += q + "&to=end"
					} else {
						path += q
					}
					if code, text := n.do(t, method, path, body); code != 200 {
						t.Errorf("%s of a channel that exists: %d %s", verb, code, text)
					}
				}
			}
			nodes[round%len(nodes)].post(t, "/channel/delete"+q, "")
			for _, n := range nodes {
				for _, verb := range verbs {
					method, path, _ := strings.Cut(verb, " ")
					path += q
					if strings.HasPrefix(path, "/channel/seek") {
						path += "&to=end"
					}
					n.refused(t, method, path, "", 404, "CHANNEL_NOT_FOUND")
				}
				n.do(t, "POST", "/channel/delete"+q, "") // may succeed once: see web.Deletions
				n.refused(t, "POST", "/channel/delete"+q, "", 404, "CHANNEL_NOT_FOUND")
				n.refused(t, "POST", "/channel/settings"+q, `{"version":0}`, 404, "CHANNEL_NOT_FOUND")
				if s := n.topicNow(t, "t"); len(s.Channels) != 0 {
					t.Errorf("the statistics show %+v", s.Channels)
				}
			}
			for _, n := range nodes {
				n.post(t, "/channel/create"+q, "")
			}
		}
	})
}

// B98: reading and changing a channel or a topic requires the same permission as pausing it.
func TestChannelRoutesNeedAdmin(t *testing.T) {
	name := filepath.Join(t.TempDir(), "tokens.toml")
	authtest.Write(t, name,
		authtest.Token("shop", "shop", `permissions = ["publish", "subscribe"]`+"\n"+`topics = ["orders"]`)+
			authtest.Token("owner", "owner", `permissions = ["admin"]`+"\n"+`topics = ["orders"]`))
	n := startNode(t, node.Options{}, Options{Auth: auth.Options{File: name}})
	topic, err := n.e.CreateTopic(t.Context(), "orders", 1)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := topic.CreateChannel(t.Context(), "billing"); err != nil {
		t.Fatal(err)
	}
	nsqds := []string{"create", "delete", "empty", "pause", "unpause"}
	for path, rt := range n.api.Table() {
		if of, _, _ := strings.Cut(path[1:], "/"); of != "channel" && of != "topic" ||
			slices.Contains(nsqds, filepath.Base(path)) {
			continue
		}
		for method := range strings.SplitSeq(rt.Methods, ",") {
			url := n.base + path + "?topic=orders&channel=billing"
			if status, body := ask(t, method, url, ""); status != 401 {
				t.Errorf("%s %s without a token: %d %s", method, path, status, body)
			}
			if status, body := ask(t, method, url, "shop"); status != 403 {
				t.Errorf("%s %s of a publisher: %d %s", method, path, status, body)
			}
			if status, body := ask(t, method, url, "owner"); status != 200 && status != 400 && // the arguments are missing
				status != 409 { // a redrive of a channel that skips
				t.Errorf("%s %s of an administrator: %d %s", method, path, status, body)
			}
		}
	}
}
