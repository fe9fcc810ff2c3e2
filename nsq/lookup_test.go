package nsq

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	gonsq "github.com/nsqio/go-nsq"

	"penstock/engine"
	"penstock/nsq/internal/listen"
)

// lookupDo asks the lookup service of a node.
func (n *node) lookupDo(t testing.TB, method, path string) (*http.Response, string) {
	t.Helper()
	return request(t, method, "http://"+n.LookupAddr().String()+path, "")
}

// transcript asks for every line of "METHOD path" and compares questions and answers with a golden file. Each name in places
// stands for what differs from run to run.
func (n *node) transcript(t *testing.T, golden string, places map[string]string, questions ...string) {
	t.Helper()
	var out strings.Builder
	for _, q := range questions {
		method, path, _ := strings.Cut(q, " ")
		reply, body := n.lookupDo(t, method, path)
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

// ports are the places of a lone node's transcript.
func (n *node) ports() map[string]string {
	return map[string]string{"TCPPORT": fmt.Sprint(listen.Port(n.TCPAddr())), "HTTPPORT": fmt.Sprint(listen.Port(n.HTTPAddr()))}
}

// Every endpoint, as a lone node answers it. What it does to the engine is in the answers that follow.
func TestLookupAlone(t *testing.T) {
	n := startNode(t, engine.Options{}, Options{BroadcastAddress: "here.example", Version: "1.3.0+engine.test"})
	ownPort := fmt.Sprint(listen.Port(n.HTTPAddr()))
	n.transcript(t, "lookup_alone.txt", n.ports(),
		"GET /ping", "GET /info", "GET /topics", "GET /nodes", "GET /debug",
		"GET /channels?topic=unknown", "GET /channels?topic=a:b",
		"POST /topic/create?topic=t", "POST /topic/create?topic=t", // again: no error
		"POST /topic/create?topic=wide&partitions=3",
		"POST /channel/create?topic=t&channel=c2", "POST /channel/create?topic=t&channel=c1",
		"POST /channel/create?topic=made&channel=c", // makes the topic, too
		"GET /topics", "GET /channels?topic=t", "GET /lookup?topic=t", "GET /lookup?topic=wide",
		"POST /topic/tombstone?topic=t&node=127.0.0.1:1", // somebody else
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
		"POST /topic/create?topic=t", "GET /lookup?topic=t", // the tombstone went with the topic
	)
	if wide, ok := n.e.LookupTopic("wide"); !ok || wide.Partitions() != 3 {
		t.Errorf("partitions=3 was not obeyed: %v", ok)
	}
}

func TestLookupErrors(t *testing.T) {
	n := startNode(t, engine.Options{}, Options{})
	n.post(t, "/topic/create?topic=there", "")
	for _, x := range []struct {
		method, path string
		status       int
		code         string
	}{
		{"GET", "/nonsense", 404, "NOT_FOUND"},
		{"GET", "/pub?topic=t", 404, "NOT_FOUND"}, // nsqd's
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
		reply, body := n.lookupDo(t, x.method, x.path)
		if want := `{"message":"` + x.code + `"}`; reply.StatusCode != x.status || body != want {
			t.Errorf("%s %s: %d %s, want %d %s", x.method, x.path, reply.StatusCode, body, x.status, want)
		}
		if reply.Header.Get("X-NSQ-Content-Type") != "nsq; version=1.0" || reply.Header.Get("Content-Type") != "application/json; charset=utf-8" {
			t.Errorf("%s %s: headers %v", x.method, x.path, reply.Header)
		}
	}
	if s := n.e.Stats("", ""); len(s) != 1 || len(s[0].Channels) != 0 {
		t.Errorf("a refused request changed something: %+v", s)
	}
	for _, path := range []string{"/debug/pprof", "/debug/pprof/", "/debug/pprof/goroutine?debug=1", "/debug/pprof/heap", "/debug/pprof/cmdline", "/debug/pprof/symbol"} {
		if reply, _ := n.lookupDo(t, "GET", path); reply.StatusCode != 200 {
			t.Errorf("%s: %d", path, reply.StatusCode)
		}
	}
}

// What the engine refuses is said in nsqd's codes, or in the engine's words.
func TestLookupWhileExiting(t *testing.T) {
	n := startNode(t, engine.Options{MaxTopics: 1}, Options{})
	n.post(t, "/topic/create?topic=t", "")
	if reply, body := n.lookupDo(t, "POST", "/topic/create?topic=u"); reply.StatusCode != 503 || !strings.Contains(body, "as many topics as MaxTopics allows") {
		t.Errorf("%d %s", reply.StatusCode, body)
	}
	if err := n.e.Close(); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{"/topic/create?topic=u", "/topic/delete?topic=t", "/channel/create?topic=u&channel=c"} {
		if reply, body := n.lookupDo(t, "POST", path); reply.StatusCode != 503 || body != `{"message":"EXITING"}` {
			t.Errorf("%s: %d %s", path, reply.StatusCode, body)
		}
	}
	if reply, body := n.lookupDo(t, "GET", "/ping"); reply.StatusCode != 200 || body != "OK" {
		t.Errorf("/ping: %d %s", reply.StatusCode, body)
	}
}

// B100 on one node: a tombstone ends, and there are never more than the limit.
func TestLookupLocalTombstones(t *testing.T) {
	n := startNode(t, engine.Options{}, Options{BroadcastAddress: "127.0.0.1"})
	n.post(t, "/topic/create?topic=t", "")
	l := n.Server.lookup
	set := func(topic string, until time.Time) {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.hidden[topic] = until
	}
	listed := func() bool {
		_, body := n.lookupDo(t, "GET", "/lookup?topic=t")
		return strings.Contains(body, "tcp_port")
	}
	tombstone := fmt.Sprintf("/topic/tombstone?topic=t&node=127.0.0.1:%d", listen.Port(n.HTTPAddr()))
	n.lookupDo(t, "POST", tombstone)
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
	if reply, body := n.lookupDo(t, "POST", tombstone); reply.StatusCode != 503 || body != `{"message":"TOO_MANY_TOMBSTONES"}` {
		t.Errorf("%d %s", reply.StatusCode, body)
	}
	for i := range maxLocalTombstones {
		set(fmt.Sprint("x", i), time.Now())
	}
	if reply, _ := n.lookupDo(t, "POST", tombstone); reply.StatusCode != 200 || listed() {
		t.Errorf("%d, listed: %v", reply.StatusCode, listed())
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.hidden) != 1 {
		t.Errorf("%d tombstones are kept that have ended", len(l.hidden)-1)
	}
}

func TestLookupListener(t *testing.T) {
	off := startNode(t, engine.Options{}, Options{LookupAddress: Off})
	if off.LookupAddr() != nil {
		t.Errorf("lookups are off and answered at %v", off.LookupAddr())
	}
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	if err := free.Close(); err != nil {
		t.Fatal(err)
	}
	o := Options{TCPAddress: free.Addr().String(), HTTPAddress: "127.0.0.1:0", LookupAddress: taken.Addr().String()}
	if _, err := Listen(off.e, o); err == nil || !strings.Contains(err.Error(), "lookups on "+taken.Addr().String()) {
		t.Errorf("two at one address: %v", err)
	}
	// What was opened before the failure is closed again, and so is everything of a server that was never served.
	o.LookupAddress = "127.0.0.1:0"
	for range 2 {
		s, err := Listen(off.e, o)
		if err != nil {
			t.Fatal(err)
		}
		o.HTTPAddress, o.LookupAddress = s.HTTPAddr().String(), s.LookupAddr().String()
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		if err := s.Shutdown(ctx); err != nil {
			t.Error(err)
		}
		cancel()
	}
}

// A lookup after the shutdown is refused, and one that is under way is answered.
func TestLookupShutdown(t *testing.T) {
	n := startNode(t, engine.Options{}, Options{})
	n.lookupDo(t, "GET", "/ping")
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if err := n.Shutdown(ctx); err != nil {
		t.Fatal(err)
	}
	if nc, err := net.Dial("tcp", n.LookupAddr().String()); err == nil {
		nc.Close()
		t.Error("the lookup address is still open")
	}
}

// lookupConsumer is go-nsq's consumer that finds its nodes by the lookup services at these addresses. It hands over each body.
func lookupConsumer(t *testing.T, topic string, bodies chan<- string, addrs ...string) *gonsq.Consumer {
	t.Helper()
	cfg := gonsq.NewConfig()
	cfg.LookupdPollInterval = 20 * time.Millisecond
	cfg.LookupdPollJitter = 0
	cfg.MaxInFlight = 10_000 // more than the server's MaxRdyCount: else the first node gets all, and the next waits 5 s for its share
	consumer, err := gonsq.NewConsumer(topic, "billing", cfg)
	if err != nil {
		t.Fatal(err)
	}
	consumer.SetLogger(log.New(io.Discard, "", 0), gonsq.LogLevelError)
	consumer.AddHandler(gonsq.HandlerFunc(func(m *gonsq.Message) error {
		select {
		case bodies <- string(m.Body):
			return nil
		case <-t.Context().Done():
			return errors.New("the test is over")
		}
	}))
	if err := consumer.ConnectToNSQLookupds(addrs); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		consumer.Stop()
		<-consumer.StopChan
	})
	return consumer
}

// collect waits until every one of these bodies came.
func collect(t *testing.T, bodies <-chan string, want ...string) {
	t.Helper()
	missing := map[string]bool{}
	for _, w := range want {
		missing[w] = true
	}
	for end := time.After(patience); len(missing) != 0; {
		select {
		case b := <-bodies:
			delete(missing, b)
		case <-end:
			t.Fatalf("did not come: %v", missing)
		}
	}
}

// The stock client finds the node of a topic that is there, and of one that comes later.
func TestGoNSQFindsTheNode(t *testing.T) {
	n := startNode(t, engine.Options{}, Options{BroadcastAddress: "127.0.0.1"})
	bodies := make(chan string)
	n.post(t, "/mpub?topic=orders", "a\nb\nc")
	lookupConsumer(t, "orders", bodies, n.LookupAddr().String())
	collect(t, bodies, "a", "b", "c")
	lookupConsumer(t, "later", bodies, n.LookupAddr().String())
	n.post(t, "/mpub?topic=later", "d\ne")
	collect(t, bodies, "d", "e")
	if _, body := n.lookupDo(t, "GET", "/channels?topic=later"); body != `{"channels":["billing"]}` {
		t.Errorf("%s", body)
	}
}
