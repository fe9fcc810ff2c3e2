package server

import (
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"penstock/internal/node"
	"penstock/internal/server/auth"
	"penstock/internal/server/listen"
	"penstock/internal/server/stats"
	"penstock/internal/server/web"
	"penstock/tests/support/authtest"
	"penstock/tests/support/nsqtest"
)

// B97
func TestHTTPErrors(t *testing.T) {
	n := startNode(t, node.Options{}, Options{})
	n.post(t, "/topic/create?topic=there", "")
	big := strings.Repeat("x", 1<<20+1)
	for _, x := range []struct {
		method, path, body string
		status             int
		code               string
	}{
		{"POST", "/pub?topic=t", "", 400, "MSG_EMPTY"},
		{"POST", "/pub", "", 400, "MSG_EMPTY"}, // the body is checked first
		{"POST", "/pub", big, 413, "MSG_TOO_BIG"},
		{"POST", "/pub", "x", 400, "MISSING_ARG_TOPIC"},
		{"POST", "/pub?topic=a:b", "x", 400, "INVALID_TOPIC"},
		{"POST", "/pub?topic=t&defer=x", "x", 400, "INVALID_DEFER"},
		{"POST", "/pub?topic=t&defer=-1", "x", 400, "INVALID_DEFER"},
		{"POST", "/pub?topic=t&defer=3600001", "x", 400, "INVALID_DEFER"},
		{"POST", "/pub?topic=%zz", "x", 400, "INVALID_REQUEST"},
		{"GET", "/pub?topic=t", "", 405, "METHOD_NOT_ALLOWED"},
		{"PUT", "/ping", "", 405, "METHOD_NOT_ALLOWED"},
		{"GET", "/nonsense", "", 404, "NOT_FOUND"},
		{"POST", "/mpub", "x", 400, "MISSING_ARG_TOPIC"},
		{"POST", "/mpub?topic=t", big, 413, "MSG_TOO_BIG"},
		{"POST", "/mpub?topic=t", strings.Repeat("x\n", 5<<19+1), 413, "BODY_TOO_BIG"},
		{"POST", "/mpub?topic=t&binary=true", nsqtest.U32(0), 413, "BAD_BODY"},
		{"POST", "/mpub?topic=t&binary=true", "", 413, "BAD_BODY"},
		{"POST", "/mpub?topic=t&binary=zzz", nsqtest.BatchBody("a", ""), 413, "BAD_MESSAGE"},
		{"POST", "/topic/empty?topic=t", "", 404, "TOPIC_NOT_FOUND"},
		{"POST", "/topic/delete?topic=t", "", 404, "TOPIC_NOT_FOUND"},
		{"POST", "/channel/create?topic=t&channel=c", "", 404, "TOPIC_NOT_FOUND"},
		{"POST", "/channel/create?topic=a:b", "", 400, "INVALID_ARG_TOPIC"},
		{"POST", "/channel/create?topic=t", "", 400, "MISSING_ARG_CHANNEL"},
		{"POST", "/channel/create?topic=t&channel=a:b", "", 400, "INVALID_ARG_CHANNEL"},
		{"POST", "/channel/pause?topic=there&channel=c", "", 404, "CHANNEL_NOT_FOUND"},
		{"POST", "/channel/delete?topic=there&channel=c", "", 404, "CHANNEL_NOT_FOUND"},
		{"GET", "/config/nope", "", 400, "INVALID_OPTION"},
		{"PUT", "/config/nope", "x", 400, "INVALID_OPTION"},
		{"PUT", "/config/log_level", "chatty", 400, "INVALID_VALUE"},
		{"PUT", "/config/log_level", "", 413, "INVALID_VALUE"},
		{"PUT", "/config/nsqlookupd_tcp_addresses", `["noport"]`, 400, "INVALID_VALUE"},
		{"GET", "/stats?include_mem=perhaps", "", 400, "INVALID_REQUEST"},
	} {
		reply, body := request(t, x.method, n.base+x.path, x.body)
		beyond := regexp.MustCompile("^(MSG|BODY)_TOO_BIG$|^INVALID_DEFER$") // they name value, limit and setting
		var got map[string]string
		err := json.Unmarshal([]byte(body), &got)
		if reply.StatusCode != x.status || err != nil || got["message"] != x.code ||
			len(got) != 1 || beyond.MatchString(x.code) != (reply.Header.Get("Penstock-Detail") != "") {
			t.Errorf("%s %s: %d %v %v, want %d %s", x.method, x.path, reply.StatusCode, got, err, x.status, x.code)
		}
		if reply.Header.Get("X-NSQ-Content-Type") != "nsq; version=1.0" ||
			reply.Header.Get("Content-Type") != "application/json; charset=utf-8" {
			t.Errorf("%s %s: headers %v", x.method, x.path, reply.Header)
		}
	}
	if s := n.e.Stats("t", ""); len(s) != 0 {
		t.Errorf("a refused request made the topic: %+v", s)
	}
}

func TestHTTPPublish(t *testing.T) {
	n := startNode(t, node.Options{}, Options{})
	c := n.dial(t)
	c.Sub("t", "c")
	c.Send("RDY 100\n")
	next := func(want ...string) {
		t.Helper()
		for _, w := range want {
			m := c.Message()
			if m.Body != w {
				t.Fatalf("got %q, want %q", m.Body, w)
			}
			c.Send("FIN " + m.ID + "\n")
		}
	}
	if code, body := n.do(t, "POST", "/pub?topic=t", "one"); code != 200 || body != "OK" {
		t.Fatalf("%d %q", code, body)
	}
	next("one")
	n.post(t, "/mpub?topic=t", "a\n\nb\nc\n\n")
	next("a", "b", "c")
	n.post(t, "/mpub?topic=t&binary=1", nsqtest.BatchBody("x\ny", "z"))
	next("x\ny", "z")
	n.post(t, "/mpub?topic=t&binary=false", "p\nq")
	next("p", "q")
	n.post(t, "/mpub?topic=t", "\n\n")
	n.post(t, "/pub?topic=t&defer=50", "later")
	next("later")
	if got := n.topicNow(t, "t").MessageCount; got != 9 {
		t.Errorf("%d messages", got)
	}
	if held := n.received.Used(); held != 0 {
		t.Errorf("%d bytes of bodies are still counted", held)
	}
}

// The total memory of request bodies is bounded, and so is the share of a client. Requests beyond a bound are refused,
// and may be repeated; small ones never are.
func TestHTTPBodyBudget(t *testing.T) {
	n := startNode(t, node.Options{}, Options{})
	large := strings.Repeat("x", 100<<10)
	refused := func(why string) {
		t.Helper()
		n.post(t, "/pub?topic=t", "x")
		reply, body := request(t, "POST", n.base+"/pub?topic=t", large)
		if detail := reply.Header.Get(web.DetailHeader); reply.StatusCode != 503 ||
			body != `{"message":"TOO_MANY_BODIES"}` || !strings.Contains(detail, why) {
			t.Errorf("%d %s %q", reply.StatusCode, body, detail)
		}
	}
	take := func(who string, bytes int64) {
		t.Helper()
		if err := n.received.TryTake(who, bytes); err != nil {
			t.Fatal(err)
		}
	}
	for i := range 4 {
		take(fmt.Sprint("tenant ", i), 64<<20)
	}
	refused("268435456 is allowed: see the node's setting max-large-input-bytes")
	n.received.Give("tenant 0", 64<<20)
	n.post(t, "/pub?topic=t", large)
	take("127.0.0.1", 64<<20-50<<10)
	refused("67108864 is allowed: see the node's setting max-large-input-bytes, of which it may have a quarter")
	n.received.Give("127.0.0.1", 64<<20-50<<10)
	n.post(t, "/pub?topic=t", large)
	if got := n.topicNow(t, "t").MessageCount; got != 4 {
		t.Errorf("%d messages", got)
	}
}

func TestHTTPTopicsAndChannels(t *testing.T) {
	n := startNode(t, node.Options{}, Options{})
	n.post(t, "/topic/create?topic=t", "")
	n.post(t, "/topic/create?topic=t", "")
	n.post(t, "/channel/create?topic=t&channel=c", "")
	c := n.dial(t)
	c.Sub("t", "c")
	c.Send("RDY 2\n")
	n.post(t, "/channel/pause?topic=t&channel=c", "")
	n.post(t, "/mpub?topic=t", "a\nb\nc")
	c.Silent(50 * time.Millisecond)
	n.post(t, "/channel/unpause?topic=t&channel=c", "")
	m := c.Message()
	c.Message()
	n.post(t, "/channel/empty?topic=t&channel=c", "")
	if ch := n.topicNow(t, "t").Channels[0]; ch.Depth != 0 || ch.InFlightCount != 0 {
		t.Errorf("after empty: %+v", ch)
	}
	c.Send("FIN " + m.ID + "\n")
	c.Expect(nsqtest.FrameError, "E_FIN_FAILED FIN "+m.ID+" failed ID not in flight")
	n.post(t, "/topic/pause?topic=t", "")
	n.post(t, "/pub?topic=t", "d")
	c.Silent(50 * time.Millisecond)
	if s := n.topicNow(t, "t"); !s.Paused || s.Depth != 1 {
		t.Errorf("paused topic: %+v", s)
	}
	n.post(t, "/topic/unpause?topic=t", "")
	if m := c.Message(); m.Body != "d" {
		t.Errorf("got %+v", m)
	}
	n.post(t, "/topic/empty?topic=t", "")
	n.post(t, "/channel/delete?topic=t&channel=c", "")
	n.post(t, "/topic/delete?topic=t", "")
	if s := n.e.Stats("t", ""); len(s) != 0 {
		t.Errorf("%+v", s)
	}
}

// keysOf flattens a JSON document to its field names and the kinds of their values.
func keysOf(path string, v any, out *[]string) {
	switch v := v.(type) {
	case map[string]any:
		for k, x := range v {
			keysOf(path+"."+k, x, out)
		}
	case []any:
		if len(v) == 0 {
			*out = append(*out, path+" []")
		}
		for _, x := range v {
			keysOf(path+"[]", x, out)
		}
	default:
		*out = append(*out, fmt.Sprintf("%s %T", path, v))
	}
}

// The structure of /stats is a contract, recorded in the golden file. A change to the golden file breaks other people's
// tools.
func TestStatsShape(t *testing.T) {
	n := startNode(t, node.Options{}, Options{Version: "1.3.0+engine.test"})
	c := n.dial(t)
	c.Identify(`{"client_id":"me","hostname":"host","user_agent":"agent/1","sample_rate":0}`)
	c.Sub("t", "c")
	c.Send("RDY 7\n" + nsqtest.Pub("other", "12345"))
	c.OK()
	n.post(t, "/pub?topic=t", "12345")
	c.Message()
	n.post(t, "/topic/create?topic=u", "")
	_, body := n.do(t, "GET", "/stats?format=json", "")
	var doc map[string]any
	if err := json.Unmarshal([]byte(body), &doc); err != nil {
		t.Fatal(err)
	}
	var keys []string
	keysOf("", doc, &keys)
	slices.Sort(keys)
	got := strings.Join(slices.Compact(keys), "\n") + "\n"
	golden := filepath.Join("testdata", "stats_shape.txt")
	want, err := os.ReadFile(golden)
	if err != nil && os.Getenv("UPDATE_GOLDEN") == "" {
		t.Fatal(err)
	}
	if os.Getenv("UPDATE_GOLDEN") != "" {
		if err := os.WriteFile(golden, []byte(got), 0o600); err != nil {
			t.Fatal(err)
		}
	} else if got != string(want) {
		t.Errorf("shape changed:\n%s\nwant:\n%s", got, want)
	}
	r := n.stats.Collect("", "", true)
	ch := r.Topics[1].Channels[0]
	if cl := ch.Clients[0]; cl.ReadyCount != 7 || cl.InFlightCount != 1 || cl.MessageCount != 1 ||
		cl.State != stats.StateSubscribed ||
		cl.ClientID != "me" {
		t.Errorf("client %+v", cl)
	}
	if len(r.Producers) != 1 || r.Producers[0].PubCounts[0] != (stats.PubCount{Topic: "other", Count: 1}) {
		t.Errorf("producers %+v", r.Producers)
	}
}

func TestStatsFilters(t *testing.T) {
	n := startNode(t, node.Options{}, Options{})
	c := n.dial(t)
	c.Sub("t", "c1")
	c.Send(nsqtest.Pub("t", "x"))
	for k, d, err := c.Frame(nsqtest.Patience); string(d) != "OK"; k, d, err = c.Frame(nsqtest.Patience) {
		if err != nil {
			t.Fatal(k, err)
		}
	}
	n.post(t, "/channel/create?topic=t&channel=c2", "")
	n.post(t, "/topic/create?topic=u", "")
	if r := n.stats.Collect("t", "c1", false); len(r.Topics) != 1 || len(r.Topics[0].Channels) != 1 ||
		r.Topics[0].Channels[0].ClientCount != 1 || len(r.Topics[0].Channels[0].Clients) != 0 || len(r.Producers) != 0 {
		t.Errorf("%+v", r)
	}
	if r := n.stats.Collect("u", "", true); len(r.Topics) != 1 || len(r.Producers) != 0 {
		t.Errorf("%+v", r)
	}
	_, body := n.do(t, "GET", "/stats?format=json&topic=unknown&include_mem=false", "")
	if !strings.Contains(body, `"topics":null`) || strings.Contains(body, `"memory"`) {
		t.Errorf("%s", body)
	}
}

func TestStatsText(t *testing.T) {
	n := startNode(t, node.Options{}, Options{})
	c := n.dial(t)
	c.Identify(`{"hostname":"host","user_agent":"agent/1"}`)
	c.Sub("t", "c")
	p := n.dial(t)
	p.Send(nsqtest.Pub("t", "x"))
	p.OK()
	n.post(t, "/topic/pause?topic=t", "")
	_, body := n.do(t, "GET", "/stats", "")
	for _, want := range []string{
		`(?m)^nsqd v1\.3\.0\+engine \(built w/go`, `(?m)^start_time \d{4}-`, `(?m)^Health: OK$`,
		`(?m)^   heap_objects +\t\d+$`,
		`(?m)^\*P \[t {14}\] depth: \d+ +be-depth: \d+ +msgs: 1 +e2e%: $`,
		`(?m)^      \[c {24}\] depth: 1 .* inflt: 0 .* msgs: \d+ +e2e%: $`,
		`(?m)^        \[V2 host:\d+ agent/1 *\] state: 3 inflt: 0    rdy: 0    fin: 0 .* connected: \d+s$`,
		`(?m)^   \[V2 127\.0\.0\.1:\d+ +\] msgs: 1        topics: t=1 connected: \d+s$`,
	} {
		if !regexp.MustCompile(want).MatchString(body) {
			t.Errorf("no %s in\n%s", want, body)
		}
	}
}

func TestHTTPConfig(t *testing.T) {
	level := new(slog.LevelVar)
	n := startNode(t, node.Options{}, Options{LogLevel: level, ConfigValues: func(name string) (any, bool) {
		return 42, name == "max_rdy_count"
	}})
	for name, want := range map[string]slog.Level{
		"debug": slog.LevelDebug, "info": slog.LevelInfo, "warn": slog.LevelWarn, "error": slog.LevelError,
		"fatal": slog.Level(12), "warning": slog.LevelWarn,
	} {
		if code, body := n.do(t, "PUT", "/config/log_level", name); code != 200 || level.Level() != want {
			t.Errorf("PUT %s: %d %s, level %v", name, code, body, level.Level())
		}
		if _, body := n.do(t, "GET", "/config/log_level", ""); body != strings.TrimSuffix(name, "ing") {
			t.Errorf("GET after %s: %s", name, body)
		}
	}
	if code, body := n.do(t, "GET", "/config/max_rdy_count", ""); code != 200 || body != "42" {
		t.Errorf("%d %s", code, body)
	}
	if _, body := n.do(t, "GET", "/config/nsqlookupd_tcp_addresses", ""); body != "[]" {
		t.Errorf("%s", body)
	}
	if code, body := n.do(t, "PUT", "/config/nsqlookupd_tcp_addresses", `["127.0.0.1:4160"]`); code != 200 ||
		body != `["127.0.0.1:4160"]` {
		t.Errorf("%d %s", code, body)
	}
}

// Strangers are not told the identity of the data directory when the node knows its users (O9).
func TestInfoForStrangers(t *testing.T) {
	name := filepath.Join(t.TempDir(), "tokens.toml")
	authtest.Write(t, name, authtest.Token("shop", "shop", `permissions = ["publish"]`+"\n"+`topics = ["orders"]`))
	n := startNode(t, node.Options{}, Options{Auth: auth.Options{File: name}, OpenPages: true})
	for token, want := range map[string]bool{"": false, "wrong": false, "shop": true} {
		r, err := http.NewRequestWithContext(t.Context(), "GET", n.base+"/info", nil)
		if err != nil {
			t.Fatal(err)
		}
		if token != "" {
			r.Header.Set("Authorization", "Bearer "+token)
		}
		resp, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		if err != nil || resp.StatusCode != 200 || strings.Contains(string(body), n.e.Info().StoreID) != want {
			t.Errorf("token %q: %d %s, %v", token, resp.StatusCode, body, err)
		}
	}
}

func TestHTTPInfoPingDebug(t *testing.T) {
	n := startNode(t, node.Options{}, Options{BroadcastAddress: "here.example"})
	if code, body := n.do(t, "GET", "/ping", ""); code != 200 || body != "OK" {
		t.Errorf("%d %q", code, body)
	}
	_, body := n.do(t, "GET", "/info", "")
	var info struct {
		BroadcastAddress string `json:"broadcast_address"`
		TCPPort          int    `json:"tcp_port"`
		HTTPPort         int    `json:"http_port"`
		Storage          struct {
			IOEngine string `json:"io_engine"`
			StoreID  string `json:"store_id"`
		} `json:"storage"`
	}
	if err := json.Unmarshal([]byte(body), &info); err != nil {
		t.Fatal(err)
	}
	if info.BroadcastAddress != "here.example" || info.TCPPort != listen.Port(n.TCPAddr()) ||
		info.HTTPPort != listen.Port(n.HTTPAddr()) ||
		info.Storage.IOEngine != n.e.Info().IOEngine ||
		info.Storage.StoreID == "" {
		t.Errorf("%s", body)
	}
	for _, path := range []string{
		"/debug/pprof/", "/debug/pprof/goroutine?debug=1", "/debug/pprof/heap", "/debug/pprof/cmdline", "/debug/pprof/block",
		"/debug/pprof/threadcreate",
	} {
		if code, _ := n.do(t, "GET", path, ""); code != 200 {
			t.Errorf("%s: %d", path, code)
		}
	}
	// Arguments may hold secrets.
	for _, base := range []string{n.base, "http://" + n.LookupAddr().String()} {
		if _, body := request(t, "GET", base+"/debug/pprof/cmdline", ""); body != os.Args[0] || len(os.Args) == 1 {
			t.Errorf("cmdline: %q", body)
		}
	}
	if code, _ := n.do(t, "PUT", "/debug/setblockrate?rate=0", ""); code != 200 {
		t.Error("setblockrate", code)
	}
	if code, _ := n.do(t, "POST", "/debug/freememory", ""); code != 200 {
		t.Error("freememory", code)
	}
}

// A client of a node that is stopping meets a closed engine.
func TestHTTPWhileExiting(t *testing.T) {
	n := startNode(t, node.Options{}, Options{})
	n.post(t, "/topic/create?topic=t", "")
	if err := n.e.Close(); err != nil {
		t.Fatal(err)
	}
	if code, body := n.do(t, "POST", "/pub?topic=t", "x"); code != 503 || body != `{"message":"EXITING"}` {
		t.Errorf("%d %s", code, body)
	}
}
