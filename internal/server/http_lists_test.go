package server

import (
	"encoding/json"
	"fmt"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"penstock/internal/node"
	"penstock/internal/server/api"
	"penstock/internal/server/auth"
	"penstock/internal/server/history"
	"penstock/internal/server/stats"
	"penstock/tests/support/authtest"
	"penstock/tests/support/nsqtest"
)

// answer decodes the answer to a GET.
func answer[T any](t *testing.T, n *testNode, path string) (v T) {
	t.Helper()
	code, text := n.do(t, "GET", path, "")
	if code != 200 {
		t.Fatalf("%s: %d %s", path, code, text)
	}
	if err := json.Unmarshal([]byte(text), &v); err != nil {
		t.Fatalf("%s: %v in %s", path, err, text)
	}
	return v
}

// Any node answers for all: the lists have the sums of what each leads.
func TestListsOfTheWholeCluster(t *testing.T) {
	onOneAndThree(t, func(t *testing.T, nodes []*testNode) {
		n := nodes[0]
		for i, name := range []string{"apples", "pears", "quinces"} {
			n.post(t, "/topic/create?topic="+name+"&partitions=6", "")
			n.post(t, "/channel/create?topic="+name+"&channel=c", "")
			for range 6 * (i + 1) {
				n.post(t, "/pub?topic="+name, "x")
			}
		}
		names := func(p api.TopicPage) (out []string) {
			for _, row := range p.Topics {
				out = append(out, fmt.Sprint(row.Name, row.Depth, row.PublishedCount, row.Partitions, row.ChannelCount, row.State))
			}
			return out
		}
		for _, n := range nodes {
			nsqtest.Eventually(t, "all messages are in the sums", func() bool {
				p := answer[api.TopicPage](t, n, "/topics")
				return slices.Equal(names(p), []string{"apples6 6 6 1ok", "pears12 12 6 1ok", "quinces18 18 6 1ok"}) &&
					p.Count == 3 && len(p.Missing) == 0
			})
			p := answer[api.TopicPage](t, n, "/topics?filter=e&sort=name&offset=1&count=1")
			if p.Count != 3 || p.Offset != 1 || len(p.Topics) != 1 || p.Topics[0].Name != "pears" {
				t.Errorf("%+v", p)
			}
			c := answer[api.ChannelPage](t, n, "/channels?topic=quinces")
			if c.Count != 1 || c.Channels[0].Name != "c" || c.Channels[0].Depth != 18 || len(c.Missing) != 0 {
				t.Errorf("%+v", c)
			}
		}
		for _, n := range nodes { // as the clock would do
			n.api.Look(time.Now().Add(history.Interval))
		}
		p := answer[api.TopicPage](t, nodes[len(nodes)-1], "/topics?sort=depth&count=2")
		if p.Count != 3 || len(p.Topics) != 2 || p.Topics[0].Name != "quinces" || p.Topics[1].Name != "pears" {
			t.Errorf("%+v", p)
		}
		h := answer[api.Histories](t, n, "/history?topic=quinces&channel=c")
		depth := float32(0)
		for _, one := range h.Nodes {
			if p := one.Fields["depth"]; len(p) == history.Length {
				depth += p[history.Length-1]
			}
		}
		if len(h.Nodes) != len(nodes) || depth != 18 {
			t.Errorf("%d nodes remember a depth of %v", len(h.Nodes), depth)
		}
	})
}

func TestListArguments(t *testing.T) {
	n := startNode(t, node.Options{}, Options{})
	n.post(t, "/topic/create?topic=a", "")
	for path, want := range map[string]int{
		"/topics?count=0": 400, "/topics?count=201": 400, "/topics?offset=-1": 400, "/topics?offset=100001": 400,
		"/topics?sort=color": 400, "/topics?filter=none": 200, "/channels": 400, "/channels?topic=none": 404,
		"/channels?topic=a": 200, "/history?topic=": 400, "/history?topic=none": 404, "/history?channel=c": 400,
		"/history?topic=a&channel=%20": 400, "/history?topic=a&channel=none": 200, "/history": 200, "/audit?all": 200,
		"/audit?all&count=0": 400, "/audit?count=0": 400, "/audit?count=many": 400, "/audit?count=1": 200,
	} {
		if code, text := n.do(t, "GET", path, ""); code != want {
			t.Errorf("%s: %d %s, want %d", path, code, text, want)
		}
	}
	n.post(t, "/topic/create?topic=b", "")
	if a := answer[api.ClusterAudit](t, n, "/audit?count=1"); len(a.Entries) != 1 || a.Entries[0].Names != "topic=b" {
		t.Errorf("the newest entry is %+v", a)
	}
}

// A node that is gone is named, and what the others know is shown.
func TestListsNameTheMissing(t *testing.T) {
	nodes := startCluster(t, 3, Options{BroadcastAddress: "127.0.0.1"})
	nodes[0].post(t, "/topic/create?topic=a&partitions=6", "")
	for _, n := range nodes {
		nsqtest.Eventually(t, "all nodes are connected", func() bool {
			return len(answer[api.TopicPage](t, n, "/topics").Missing) == 0
		})
	}
	nodes[2].e.OnQuestion(nil) // it is alive, and answers nothing
	p := answer[api.TopicPage](t, nodes[0], "/topics")
	if len(p.Missing) != 1 || p.Missing[0].Node != nodes[2].api.Name() ||
		!strings.Contains(p.Missing[0].Why, "answers no") ||
		len(p.Topics) != 1 {
		t.Errorf("%+v", p)
	}
	if a := answer[api.ClusterAudit](t, nodes[1], "/audit?all"); len(a.Missing) != 1 || len(a.Entries) != 1 ||
		a.Entries[0].Node != nodes[0].api.Name() || a.Entries[0].What != "POST /topic/create" {
		t.Errorf("%+v", a)
	}
	nodes[1].post(t, "/topic/create?topic=b", "")
	if a := answer[api.ClusterAudit](t, nodes[0], "/audit?all&count=1"); len(a.Entries) != 1 ||
		a.Entries[0].Node != nodes[1].api.Name() {
		t.Errorf("the newest entry is %+v", a)
	}
}

func TestConsoleIsServed(t *testing.T) {
	n := startNode(t, node.Options{}, Options{})
	for _, x := range []struct {
		path, accept string
		status       int
		location     string
	}{
		{"/console/", "", 200, ""},
		{"/console/app.js", "", 200, ""},
		{"/console/none", "", 404, ""},
		{"/console", "", 302, "console/"},
		{"/", "text/html,*/*", 302, "console/"},
		{"/", "*/*", 404, ""},
	} {
		r, err := http.NewRequest("GET", n.base+x.path, nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Accept", x.accept)
		reply, err := http.DefaultTransport.RoundTrip(r)
		if err != nil {
			t.Fatal(err)
		}
		_ = reply.Body.Close()
		if reply.StatusCode != x.status || reply.Header.Get("Location") != x.location {
			t.Errorf("%s: %d %s", x.path, reply.StatusCode, reply.Header.Get("Location"))
		}
	}
}

// A browser's session: the token goes in once, comes back as a cookie that scripts cannot read, and is in force until
// the logout. What refuses other sites' pages holds for it as well.
func TestSession(t *testing.T) {
	name := filepath.Join(t.TempDir(), "tokens.toml")
	authtest.Write(t, name, authtest.Token("root", "s;cret, \"ü", `permissions = ["admin"]`+"\n"+`topics = ["*"]`)+
		authtest.Token("looker", "look", `permissions = ["view"]`+"\n"+`topics = ["*"]`))
	n := startNode(t, node.Options{}, Options{Auth: auth.Options{File: name}})
	who := func(text string) (s api.Session) {
		if err := json.Unmarshal([]byte(text), &s); err != nil {
			t.Fatalf("%v in %s", err, text)
		}
		return s
	}
	if _, text := n.do(t, "GET", "/session", ""); who(text) != (api.Session{Auth: true}) {
		t.Errorf("a stranger is told %s", text)
	}
	for body, want := range map[string]int{
		`{"token":"wrong"}`: 401, `{"token":""}`: 400, `x`: 400,
		`{"token":"` + strings.Repeat("x", 20_000) + `"}`: 413,
	} {
		if code, text := n.do(t, "POST", "/session", body); code != want {
			t.Errorf("%.30s: %d %s", body, code, text)
		}
	}
	reply, text := request(t, "POST", n.base+"/session", `{"token":"s;cret, \"ü"}`)
	if s := who(text); s.Name != "root" || !s.Admin || !s.View || s.Node == "" {
		t.Errorf("%+v", s)
	}
	set := reply.Header.Get("Set-Cookie")
	if !strings.HasPrefix(set, "penstock-") || !strings.HasSuffix(set, "; Path=/; HttpOnly; SameSite=Strict") {
		t.Fatalf("cookie %q", set)
	}
	cookie, _, _ := strings.Cut(set, ";")
	for _, x := range []struct {
		method, path, extra string
		status              int
	}{
		{"POST", "/topic/create?topic=a", "", 200},
		{"GET", "/audit", "", 200},
		{"GET", "/topics", "", 200},
		{"POST", "/topic/create?topic=b", "Origin: http://localhost:1", 403},
		{"POST", "/topic/create?topic=b", "Sec-Fetch-Site: same-site", 403},
		{"DELETE", "/session", "Sec-Fetch-Site: cross-site", 403},
	} {
		headers := []string{"Cookie", cookie}
		if name, value, ok := strings.Cut(x.extra, ": "); ok {
			headers = append(headers, name, value)
		}
		if reply, text := request(t, x.method, n.base+x.path, "", headers...); reply.StatusCode != x.status {
			t.Errorf("%s %s %s: %d %s", x.method, x.path, x.extra, reply.StatusCode, text)
		}
	}
	reply, text = request(t, "GET", n.base+"/session", "", "Cookie", cookie, "Authorization", "Bearer look")
	if s := who(text); s.Name != "looker" || s.Admin || !s.View || reply.StatusCode != 200 {
		t.Errorf("a header counts more than a cookie, but: %+v", s)
	}
	reply, text = request(t, "DELETE", n.base+"/session", "", "Cookie", cookie)
	if got := reply.Header.Get("Set-Cookie"); !strings.Contains(got, "=; ") ||
		!strings.Contains(got, "Max-Age=0") || who(text).Name != "" {
		t.Errorf("logout: %q %s", got, text)
	}
	logins := 0
	for _, e := range n.audit.List().Entries {
		if strings.HasPrefix(e.What, "login") && e.Kind == "refused" {
			logins++
		}
		if strings.Contains(fmt.Sprint(e), "wrong") {
			t.Errorf("the audit has a token: %+v", e)
		}
	}
	if logins == 0 {
		t.Error("the audit has no failed login")
	}
}

// The states of a channel that does not deliver what is published are in /channels and in both forms of /stats.
func TestStatesOfChannels(t *testing.T) {
	n := startNode(t, node.Options{MaxRanges: 4}, Options{})
	n.post(t, "/topic/create?topic=t", "")
	n.post(t, "/channel/create?topic=t&channel=c", "")
	c := n.dial(t)
	c.Sub("t", "c")
	c.Send("RDY 40\n")
	for i := range 8 {
		n.post(t, "/pub?topic=t", "x")
		if m := c.Message(); i%2 == 1 {
			c.Send("FIN " + m.ID + "\n")
		}
	}
	nsqtest.Eventually(t, "the finished ones to be confirmed: the next message would be delivered before", func() bool {
		return answer[api.ChannelPage](t, n, "/channels?topic=t").Channels[0].InFlightCount == 4
	})
	n.post(t, "/pub?topic=t", "more")
	nsqtest.Eventually(t, "it is full", func() bool {
		return answer[api.ChannelPage](t, n, "/channels?topic=t").Channels[0].FullPartitions == 1
	})
	st := answer[stats.Reply](t, n, "/stats?format=json")
	if ch := st.Topics[0].Channels[0]; ch.FullPartitions != 1 || st.Storage.FullChannels != 1 {
		t.Errorf("/stats: %+v", ch)
	}
	aside := node.ChannelStats{Name: "c", OutboxCount: 3, AsideCount: 2, AsideWhy: "too big"}
	aside.DroppedCount, aside.Dropping, aside.SkippedCount, aside.Skipping = 4, true, 5, true
	aside.SkippedBefore = true
	out := stats.ChannelOf(&aside, false, time.Now())
	if out.OutboxCount != 3 || out.AsideCount != 2 || out.AsideWhy != "too big" {
		t.Errorf("%+v", out)
	}
	st.Topics[0].Channels = append(st.Topics[0].Channels, out)
	if out.DroppedCount != 4 || !out.Dropping || out.SkippedCount != 5 || !out.Skipping || !out.SkippedBefore {
		t.Errorf("%+v", out)
	}
	for _, want := range []string{
		"[full partitions: 1] too many messages wait", "[dead letters aside: 2] too big",
		"[dropped: 4] removed by retention or a quota before",
		"[skipping: 5] what is published is discarded, at least 5 messages since ",
	} {
		if text := st.Text(time.Now()); !strings.Contains(text, want) {
			t.Errorf("/stats does not say %q:\n%s", want, text)
		}
	}
	row := history.ChannelOf(&aside, time.Now())
	if row.OutboxCount != 3 || row.AsideCount != 2 || row.AsideWhy != "too big" ||
		row.DroppedCount != 4 || !row.Dropping || row.SkippedCount != 5 || !row.Skipping ||
		!row.SkippedBefore {
		t.Errorf("/channels: %+v", row)
	}
}

// Who may look at some channels of a topic is told of these.
func TestChannelsListsWhatOneMaySee(t *testing.T) {
	t.Parallel()
	n := startNode(t, node.Options{}, Options{Auth: auth.Options{File: grantTokens(t)}})
	for _, path := range []string{
		"/topic/create?topic=shop-a", "/channel/create?topic=shop-a&channel=mail",
		"/channel/create?topic=shop-a&channel=bills",
	} {
		if code, text := ask(t, "POST", n.base+path, "root"); code != 200 {
			t.Fatalf("%s: %d %s", path, code, text)
		}
	}
	for token, want := range map[string]string{"root": "bills mail", "mailer": "mail"} {
		code, text := ask(t, "GET", n.base+"/channels?topic=shop-a", token)
		var page api.ChannelPage
		if err := json.Unmarshal([]byte(text), &page); err != nil || code != 200 {
			t.Fatalf("%s: %d %s", token, code, text)
		}
		var names []string
		for _, c := range page.Channels {
			names = append(names, c.Name)
		}
		if got := strings.Join(names, " "); got != want || page.Count != len(names) {
			t.Errorf("%s is told of %q (%d), want %q", token, got, page.Count, want)
		}
	}
}
