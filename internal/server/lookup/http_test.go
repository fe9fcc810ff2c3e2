package lookup

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"penstock/internal/node"
)

// transcript sends a request for each line "METHOD path", and compares requests and answers with a golden file. Each
// name in places stands for a text that differs between runs.
func (s *service) transcript(t *testing.T, golden string, places map[string]string, questions ...string) {
	t.Helper()
	var out strings.Builder
	for _, q := range questions {
		method, path, _ := strings.Cut(q, " ")
		reply, body := s.do(t, method, path)
		fmt.Fprintf(&out, "%s\n%d", q, reply.StatusCode)
		for _, h := range []string{"Content-Type", "X-NSQ-Content-Type"} {
			if v := reply.Header.Get(h); v != "" {
				fmt.Fprintf(&out, " | %s", v)
			}
		}
		fmt.Fprintf(&out, "\n%s\n\n", body)
	}
	got := regexp.MustCompile(`"last_update":\d{19}`).ReplaceAllString(out.String(), `"last_update":NOW`)
	got = regexp.MustCompile(`"tombstoned_at":\d{19}`).ReplaceAllString(got, `"tombstoned_at":THEN`)
	for name, value := range places {
		got = strings.ReplaceAll(got, value, name)
	}
	file := filepath.Join("testdata", golden)
	if os.Getenv("UPDATE_GOLDEN") != "" {
		if err := os.WriteFile(file, []byte(got), 0o600); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("answers changed; other people's tools read them. Got:\n%s\nwant:\n%s", got, want)
	}
}

// Every endpoint, as answered by a lone node. Later answers show the effects of earlier requests on the engine.
func TestLookupAlone(t *testing.T) {
	s := start(t, node.Options{}, Options{})
	s.transcript(t, "lookup_alone.txt", map[string]string{"TCPPORT": "4150", "HTTPPORT": ownPort},
		"GET /ping", "GET /info", "GET /topics", "GET /nodes", "GET /debug",
		"GET /channels?topic=unknown", "GET /channels?topic=a:b",
		"POST /topic/create?topic=t", "POST /topic/create?topic=t", // again: no error
		"POST /topic/create?topic=wide&partitions=3",
		"POST /channel/create?topic=t&channel=c2", "POST /channel/create?topic=t&channel=c1",
		"POST /channel/create?topic=made&channel=c", // creates the topic, too
		"GET /topics", "GET /channels?topic=t", "GET /lookup?topic=t", "GET /lookup?topic=wide",
		"POST /topic/tombstone?topic=t&node=127.0.0.1:1", // another node
		"GET /lookup?topic=t",
		"POST /topic/tombstone?topic=t&node=here.example:"+ownPort,
		"GET /lookup?topic=t", "GET /nodes", "GET /debug",
		"POST /tombstone_topic_producer?topic=unknown&node=here.example:"+ownPort,
		"POST /tombstone_topic_producer?topic=made&node=here.example:"+ownPort,
		"GET /lookup?topic=made", "GET /lookup?topic=wide",
		"POST /channel/delete?topic=t&channel=c1", "POST /channel/delete?topic=t&channel=c1",
		"GET /channels?topic=t",
		"POST /topic/delete?topic=t", "POST /topic/delete?topic=t", "POST /topic/delete?topic=a:b",
		"GET /lookup?topic=t", "GET /topics",
		"POST /topic/create?topic=t", "GET /lookup?topic=t", // the tombstone was deleted with the topic
	)
	if wide, ok := s.e.Catalog().LookupTopic("wide"); !ok || wide.Partitions() != 3 {
		t.Errorf("partitions=3 was not obeyed: %v", ok)
	}
}

func TestLookupErrors(t *testing.T) {
	s := start(t, node.Options{}, Options{})
	s.post(t, "/topic/create?topic=there")
	for _, x := range []struct {
		method, path string
		status       int
		code         string
	}{
		{"GET", "/nonsense", 404, "NOT_FOUND"},
		{"GET", "/pub?topic=t", 404, "NOT_FOUND"}, // a path of nsqd
		{"POST", "/ping", 405, "METHOD_NOT_ALLOWED"},
		{"POST", "/info", 405, "METHOD_NOT_ALLOWED"},
		{"POST", "/debug", 405, "METHOD_NOT_ALLOWED"},
		{"POST", "/lookup?topic=there", 405, "METHOD_NOT_ALLOWED"},
		{"POST", "/topics", 405, "METHOD_NOT_ALLOWED"},
		{"POST", "/channels?topic=there", 405, "METHOD_NOT_ALLOWED"},
		{"PUT", "/nodes", 405, "METHOD_NOT_ALLOWED"},
		{"GET", "/topic/create?topic=t", 405, "METHOD_NOT_ALLOWED"},
		{"GET", "/topic/delete?topic=there", 405, "METHOD_NOT_ALLOWED"},
		{"GET", "/channel/create?topic=t&channel=c", 405, "METHOD_NOT_ALLOWED"},
		{"GET", "/channel/delete?topic=t&channel=c", 405, "METHOD_NOT_ALLOWED"},
		{"GET", "/topic/tombstone?topic=there&node=a:1", 405, "METHOD_NOT_ALLOWED"},
		{"GET", "/tombstone_topic_producer?topic=there&node=a:1", 405, "METHOD_NOT_ALLOWED"},
		{"GET", "/lookup", 400, "MISSING_ARG_TOPIC"},
		{"GET", "/lookup?topic=%zz", 400, "INVALID_REQUEST"},
		{"GET", "/lookup?topic=t", 404, "TOPIC_NOT_FOUND"},
		{"GET", "/lookup?topic=a:b", 404, "TOPIC_NOT_FOUND"},
		{"GET", "/lookup?topic=", 404, "TOPIC_NOT_FOUND"},
		{"GET", "/channels", 400, "MISSING_ARG_TOPIC"},
		{"POST", "/topic/create", 400, "MISSING_ARG_TOPIC"},
		{"POST", "/topic/create?topic=a:b", 400, "INVALID_ARG_TOPIC"}, // nsqd says INVALID_TOPIC
		{"POST", "/topic/create?topic=t&partitions=0", 400, "INVALID_PARTITIONS"},
		{"POST", "/topic/create?topic=t&partitions=65537", 400, "INVALID_PARTITIONS"},
		{"POST", "/topic/delete", 400, "MISSING_ARG_TOPIC"},
		{"POST", "/channel/create", 400, "MISSING_ARG_TOPIC"},
		{"POST", "/channel/create?topic=a:b", 400, "INVALID_ARG_TOPIC"},
		{"POST", "/channel/create?topic=t", 400, "MISSING_ARG_CHANNEL"},
		{"POST", "/channel/create?topic=t&channel=a:b", 400, "INVALID_ARG_CHANNEL"},
		{"POST", "/channel/delete", 400, "MISSING_ARG_TOPIC"},
		{"POST", "/channel/delete?topic=a:b&channel=c", 400, "INVALID_ARG_TOPIC"},
		{"POST", "/channel/delete?topic=t", 400, "MISSING_ARG_CHANNEL"},
		{"POST", "/channel/delete?topic=t&channel=a:b", 400, "INVALID_ARG_CHANNEL"},
		{"POST", "/channel/delete?topic=t&channel=c", 404, "CHANNEL_NOT_FOUND"},
		{"POST", "/channel/delete?topic=there&channel=c", 404, "CHANNEL_NOT_FOUND"},
		{"POST", "/topic/tombstone?node=a:1", 400, "MISSING_ARG_TOPIC"},
		{"POST", "/topic/tombstone?topic=there", 400, "MISSING_ARG_NODE"},
		{"POST", "/tombstone_topic_producer?topic=there", 400, "MISSING_ARG_NODE"},
	} {
		reply, body := s.do(t, x.method, x.path)
		if want := `{"message":"` + x.code + `"}`; reply.StatusCode != x.status || body != want {
			t.Errorf("%s %s: %d %s, want %d %s", x.method, x.path, reply.StatusCode, body, x.status, want)
		}
		if reply.Header.Get("X-NSQ-Content-Type") != "nsq; version=1.0" ||
			reply.Header.Get("Content-Type") != "application/json; charset=utf-8" {
			t.Errorf("%s %s: headers %v", x.method, x.path, reply.Header)
		}
	}
	if all := s.e.Stats("", ""); len(all) != 1 || len(all[0].Channels) != 0 {
		t.Errorf("a refused request changed something: %+v", all)
	}
	for _, path := range []string{
		"/debug/pprof", "/debug/pprof/", "/debug/pprof/goroutine?debug=1", "/debug/pprof/heap", "/debug/pprof/cmdline",
		"/debug/pprof/symbol",
	} {
		if reply, _ := s.do(t, "GET", path); reply.StatusCode != 200 {
			t.Errorf("%s: %d", path, reply.StatusCode)
		}
	}
}

// Errors of the engine are reported with nsqd's codes, or in the engine's own words.
func TestLookupWhileExiting(t *testing.T) {
	s := start(t, node.Options{MaxTopics: 1}, Options{})
	s.post(t, "/topic/create?topic=t")
	if reply, body := s.do(t, "POST", "/topic/create?topic=u"); reply.StatusCode != 503 ||
		!strings.Contains(body, "as many topics as MaxTopics allows") {
		t.Errorf("%d %s", reply.StatusCode, body)
	}
	if err := s.e.Close(); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{"/topic/create?topic=u", "/topic/delete?topic=t", "/channel/create?topic=u&channel=c"} {
		if reply, body := s.do(t, "POST", path); reply.StatusCode != 503 || body != `{"message":"EXITING"}` {
			t.Errorf("%s: %d %s", path, reply.StatusCode, body)
		}
	}
	if reply, body := s.do(t, "GET", "/ping"); reply.StatusCode != 200 || body != "OK" {
		t.Errorf("/ping: %d %s", reply.StatusCode, body)
	}
}

// B100 on one node: a tombstone ends, and the number of tombstones never exceeds the limit.
func TestLookupLocalTombstones(t *testing.T) {
	s := start(t, node.Options{}, Options{})
	s.post(t, "/topic/create?topic=t")
	l := s.api
	set := func(topic string, until time.Time) {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.hidden[topic] = until
	}
	listed := func() bool {
		_, body := s.do(t, "GET", "/lookup?topic=t")
		return strings.Contains(body, "tcp_port")
	}
	tombstone := "/topic/tombstone?topic=t&node=here.example:" + ownPort
	s.do(t, "POST", tombstone)
	l.mu.Lock()
	left := time.Until(l.hidden["t"])
	l.mu.Unlock()
	if listed() || left > tombstoneTime || left < tombstoneTime-patience {
		t.Errorf("a tombstone for %v, listed: %v", left, listed())
	}
	set("t", time.Now())
	if !listed() {
		t.Error("the tombstone did not end")
	}
	for i := range maxLocalTombstones {
		set(fmt.Sprint("x", i), time.Now().Add(time.Hour))
	}
	if reply, body := s.do(t, "POST", tombstone); reply.StatusCode != 503 || body != `{"message":"TOO_MANY_TOMBSTONES"}` {
		t.Errorf("%d %s", reply.StatusCode, body)
	}
	for i := range maxLocalTombstones {
		set(fmt.Sprint("x", i), time.Now())
	}
	if reply, _ := s.do(t, "POST", tombstone); reply.StatusCode != 200 || listed() {
		t.Errorf("%d, listed: %v", reply.StatusCode, listed())
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.hidden) != 1 {
		t.Errorf("%d tombstones are kept that have ended", len(l.hidden)-1)
	}
}
