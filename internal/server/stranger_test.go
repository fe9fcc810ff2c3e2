package server

import (
	"bufio"
	stdflate "compress/flate"
	"context"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"runtime"
	"strings"
	"testing"
	"time"

	"penstock/internal/node"
	"penstock/internal/server/auth"
	"penstock/internal/server/nsq"
	"penstock/internal/server/web"
	"penstock/tests/support/authtest"
	"penstock/tests/support/nsqtest"
)

// largeBytes is how much of a command may arrive before it needs room: see nsq.Settings.MaxLargeInputBytes.
const largeBytes = 64 << 10

// startClosed starts a node that requires AUTH and knows the secret "s3cret" for everything.
func startClosed(t *testing.T, o Options) *testNode {
	t.Helper()
	o.Auth.File = t.TempDir() + "/tokens.toml"
	authtest.Write(t, o.Auth.File, authtest.Token("ann", "s3cret", `permissions = ["admin", "publish", "subscribe"]`+"\n"+
		`topics = ["*"]`))
	return startNode(t, node.Options{}, o)
}

// login sends AUTH, and waits for the answer.
func login(c *nsqtest.Client) {
	c.T.Helper()
	c.Send(authCommand("s3cret"))
	if k, d, err := c.Frame(nsqtest.Patience); err != nil || k != nsqtest.FrameResponse ||
		!strings.Contains(string(d), `"ann"`) {
		c.T.Fatalf("AUTH: %d %q %v", k, d, err)
	}
}

// metric returns the value of a series of /metrics, as text.
func (n *testNode) metric(t *testing.T, series string) string {
	t.Helper()
	_, body := ask(t, "GET", n.base+"/metrics", "s3cret") // the token of startClosed
	for line := range strings.SplitSeq(body, "\n") {
		if value, ok := strings.CutPrefix(line, "penstock_"+series+" "); ok {
			return value
		}
	}
	t.Fatalf("/metrics has no %s", series)
	return ""
}

// O8. Before AUTH the bodies of a client have 4 KiB together. What is larger is refused before any of it has come;
// after AUTH there is no such limit.
func TestStrangersSendLittle(t *testing.T) {
	t.Parallel()
	n := startClosed(t, Options{})
	small := `{"client_id":"` + strings.Repeat("x", 1000) + `"}`
	for i, x := range []struct{ before, send, want string }{
		{"", "IDENTIFY\n" + nsqtest.U32(5<<20), "E_BAD_BODY IDENTIFY body too big 5242880 > 4096"},
		{"", "IDENTIFY\n" + nsqtest.U32(4097), "E_BAD_BODY IDENTIFY body too big 4097 > 4096"},
		{"", "AUTH\n" + nsqtest.U32(4097), "E_BAD_BODY AUTH body too big 4097 > 4096"},
		{small, "AUTH\n" + nsqtest.U32(4097-len(small)), "E_BAD_BODY AUTH body too big 3081 > 3080"},
		{small, "IDENTIFY\n" + nsqtest.U32(3081), "E_BAD_BODY IDENTIFY body too big 3081 > 3080"},
		{"", "PUB t\n" + nsqtest.U32(1<<20), "E_AUTH_FIRST AUTH required before PUB"},
		{"", "MPUB t\n" + nsqtest.U32(5<<20), "E_AUTH_FIRST AUTH required before MPUB"},
		{"", "DPUB t 1\n" + nsqtest.U32(4097), "E_AUTH_FIRST AUTH required before DPUB"},
	} {
		c := n.dial(t)
		if x.before != "" {
			c.Identify(x.before)
		}
		c.Send(x.send)
		want := x.want
		if strings.HasPrefix(want, "E_BAD") {
			want += ", the bytes that this client may still send before AUTH"
		}
		c.Fatal(want)
		if got := n.nsq.Meter().StrangersRefused["bytes"]; got != uint64(i+1) {
			t.Errorf("%q: %d refusals are counted, want %d", x.send, got, i+1)
		}
	}
	c := n.dial(t)
	c.Identify(small)
	login(c)
	c.Send(nsqtest.Pub("t", strings.Repeat("x", 1<<20)))
	c.OK()
	if got := n.metric(t, `unauthenticated_refused_total{reason="bytes"}`); got != "8" {
		t.Errorf("/metrics counts %s refusals", got)
	}
}

// O8. So many clients may be connected without AUTH; for the next one the oldest has to go. AUTH, or an end, makes a
// place free.
func TestStrangersAreFew(t *testing.T) {
	t.Parallel()
	n := startClosed(t, Options{Settings: nsq.Settings{MaxStrangers: 3}})
	known := n.dial(t)
	login(known)
	var silent []*nsqtest.Client
	for range 3 {
		silent = append(silent, n.dialRaw(t))
	}
	strangers := func(want int) {
		t.Helper()
		nsqtest.Eventually(t, "the count of strangers", func() bool { return n.nsq.Meter().Strangers == want })
	}
	strangers(3)
	const why = "no AUTH, and 3 further clients that have sent none are connected, which is the most that there may be"
	silent = append(silent, n.dialRaw(t))
	silent[0].Closed()
	silent = silent[1:]
	if got := n.metric(t, "unauthenticated_connections"); got != "3" {
		t.Errorf("/metrics shows %s connections before AUTH", got)
	}
	if got := n.metric(t, `unauthenticated_refused_total{reason="connections"}`); got != "1" {
		t.Errorf("/metrics counts %s refusals", got)
	}
	if e := n.audit.List().Entries; len(e) != 1 || e[0].Result != why || e[0].From == "" {
		t.Errorf("the audit has %+v", e)
	}
	known.Send(nsqtest.Pub("t", "x"))
	known.OK()

	silent[0].Send(nsqtest.Magic)
	login(silent[0])
	strangers(2)
	silent[1].Conn.Close()
	strangers(1)
	late := n.dial(t)
	login(late)
	late.Send(nsqtest.Pub("t", "x"))
	late.OK()
	strangers(1)
	for _, c := range []*nsqtest.Client{known, late, silent[0], silent[2]} {
		c.Conn.Close()
	}
	strangers(0)
}

// Whoever opens connections all the time pays for it: a client of another address has all the time that it needs.
func TestStrangersOfAnotherAddressStay(t *testing.T) {
	t.Parallel()
	n := startClosed(t, Options{Settings: nsq.Settings{MaxStrangers: 8}})
	for range 8 {
		n.dialRaw(t)
	}
	nsqtest.Eventually(t, "the places are taken", func() bool { return n.nsq.Meter().Strangers == 8 })
	honest := n.dialFrom(t, "127.0.0.2")
	honest.Send(nsqtest.Magic + "IDENTIFY\n\x00\x00\x00\x02{}")
	honest.OK() // it is among the strangers now
	refused := n.nsq.Meter().StrangersRefused["connections"]
	for range 100 {
		n.dialRaw(t)
	}
	nsqtest.Eventually(t, "the others had to go", func() bool {
		return n.nsq.Meter().StrangersRefused["connections"] == refused+100
	})
	login(honest)
	honest.Send(nsqtest.Pub("t", "x"))
	honest.OK()
}

// A client for which the node waits for an auth server does not have to go. If all are such, the next one is told so.
func TestStrangersThatWaitStay(t *testing.T) {
	t.Parallel()
	slow, asked, answer := newAuthServer(t), make(chan struct{}), make(chan struct{})
	slow.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		close(asked)
		<-answer
		_, _ = io.WriteString(w, grantJSON(60, "", "", "publish"))
	})
	n := startNode(t, node.Options{}, Options{
		Settings: nsq.Settings{MaxStrangers: 1},
		Auth:     auth.Options{HTTPAddresses: []string{slow.address()}},
	})
	c := n.dial(t)
	c.Send(authCommand("s"))
	<-asked
	n.dialRaw(t).Fatal("E_AUTH_FAILED AUTH failed: 1 other clients wait for the answer of an auth server, which is the " +
		"most that may; try again later")
	close(answer)
	c.Expect(nsqtest.FrameResponse, someone)
}

// O8. Who does not send AUTH in time is disconnected, also if it says other things, or wants no heartbeats. The time in
// which the node itself waits for an auth server does not count.
func TestStrangersHaveLittleTime(t *testing.T) {
	t.Parallel()
	const limit = time.Second // a busy client needs some of it
	n := startClosed(t, Options{Settings: nsq.Settings{StrangerTime: limit}})
	known := n.dial(t)
	login(known)
	start := time.Now()
	mute, idle, busy := n.dialRaw(t), n.dial(t), n.dial(t)
	idle.Identify(`{"heartbeat_interval":-1}`)
	for ended := false; !ended; {
		busy.Conn.SetReadDeadline(time.Now().Add(20 * time.Millisecond)) // sets the pace
		_, err := io.WriteString(busy.W, "NOP\n")
		_, readErr := busy.Conn.Read(make([]byte, 1))
		timeout, _ := readErr.(net.Error)
		ended = err != nil || timeout == nil || !timeout.Timeout()
		if time.Since(start) > nsqtest.Patience {
			t.Fatal("a client that sends no AUTH stays")
		}
	}
	mute.Closed()
	idle.Closed()
	if d := time.Since(start); d < limit {
		t.Errorf("closed after %v already", d)
	}
	known.Send(nsqtest.Pub("t", "x"))
	known.OK()
	if got := n.metric(t, `unauthenticated_refused_total{reason="time"}`); got != "3" {
		t.Errorf("/metrics counts %s refusals", got)
	}

	slow := newAuthServer(t)
	slow.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		time.Sleep(2 * limit)
		_, _ = io.WriteString(w, grantJSON(60, "", "", "publish"))
	})
	n = startNode(t, node.Options{}, Options{
		Settings: nsq.Settings{StrangerTime: limit},
		Auth:     auth.Options{HTTPAddresses: []string{slow.address()}},
	})
	c := n.dial(t)
	c.Send(authCommand("s") + nsqtest.Pub("t", "x"))
	c.Expect(nsqtest.FrameResponse, someone)
	c.OK()
}

// O8. A client that negotiates deflate costs no compressor before AUTH. Its stream goes on with one, and every decoder
// reads both parts.
func TestStrangersGetNoCompressor(t *testing.T) {
	// At levels below 7 the compressor does not look for repetitions between short frames.
	n := startClosed(t, Options{Settings: nsq.Settings{MaxDeflateLevel: 9}})
	heap := func() int64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	const count = 50
	var clients []*nsqtest.Client
	var came []*countingReader
	before := heap()
	for range count {
		c := n.dial(t)
		c.Negotiate(map[string]any{"deflate": true, "deflate_level": 9})
		counter := &countingReader{Reader: c.R}
		c.R = bufio.NewReader(stdflate.NewReader(counter))
		c.OK()
		clients, came = append(clients, c), append(came, counter)
	}
	if each := (heap() - before) / count; each > 200<<10 { // on both sides; a compressor alone takes 1 MiB
		t.Errorf("a client before AUTH costs %d bytes", each)
	}
	c := clients[0]
	w, err := stdflate.NewWriter(c.Conn, 6)
	if err != nil {
		t.Fatal(err)
	}
	c.W = nsqtest.Flushing{Writer: w, Flush: w.Flush}
	login(c)
	c.Sub("t", "c")
	body := make([]byte, 300) // of which a compressor can only know that it has seen them before
	_, _ = rand.NewChaCha8([32]byte{}).Read(body)
	earlier := came[0].count
	const deliveries = 30
	for range deliveries {
		c.Send(nsqtest.Pub("t", string(body)))
		c.OK()
		c.Send("RDY 1\n")
		m := c.Message()
		if m.Body != string(body) {
			t.Fatalf("%d bytes came", len(m.Body))
		}
		c.Send("RDY 0\nFIN " + m.ID + "\n")
	}
	if k := came[0].count - earlier; k > deliveries*len(body)*2/3 {
		t.Errorf("%d deliveries took %d bytes: nothing remembers what was sent before", deliveries, k)
	}
}

type countingReader struct {
	io.Reader
	count int
}

func (r *countingReader) Read(p []byte) (int, error) {
	n, err := r.Reader.Read(p)
	r.count += n
	return n, err
}

// O8. Commands above 64 KiB share a budget while they arrive. One that finds no room waits, and small ones do not; what
// never comes to an end gives its room back after MaxCommandTime.
func TestLargeCommandsWaitForRoom(t *testing.T) {
	t.Parallel()
	n := startNode(t, node.Options{}, Options{Settings: nsq.Settings{
		MaxLargeInputBytes: 8 << 20,
		MaxCommandTime:     time.Second,
	}})
	body := strings.Repeat("x", 1<<20-1000)
	large := "MPUB t\n" + nsqtest.Sized(nsqtest.BatchBody(body, body, body, body, body))
	first := n.dial(t)
	first.Send(large[:1<<20])
	reserved := func(want string) {
		t.Helper()
		nsqtest.Eventually(t, "the room that is taken", func() bool { return n.metric(t, "large_input_bytes") == want })
	}
	reserved("8.388608e+06")
	second, small := n.dial(t), n.dial(t)
	sent := make(chan error, 1)
	go func() { _, err := io.WriteString(second.Conn, nsqtest.Pub("t", body)); sent <- err }()
	nsqtest.Eventually(t, "the second one to wait", func() bool { return n.nsq.Meter().LargeInputWaits == 1 })
	small.Send(nsqtest.Pub("t", strings.Repeat("x", 60<<10)))
	small.OK()
	first.Send(large[1<<20:])
	first.OK()
	second.OK()
	if err := <-sent; err != nil {
		t.Fatal(err)
	}
	reserved("0")

	stuck := n.dial(t)
	stuck.Send(large[:100<<10])
	reserved("8.388608e+06")
	go io.WriteString(second.Conn, nsqtest.Pub("t", body))
	second.OK()
	stuck.Closed()
	reserved("0")

	if err := n.received.TryTake("another", 8<<20); err != nil {
		t.Fatal(err)
	}
	second.Send("PUB t\n" + nsqtest.U32(len(body)) + body[:largeBytes])
	second.Fatal("E_BAD_BODY body of 1047586 bytes has found no room for 2s, because too many large ones are being " +
		"received on this node, of 8388608 bytes at most (max-large-input-bytes); nothing of it was stored, try again later")
	n.dial(t).Send("PUB t\n" + nsqtest.U32(len(body)) + body[:largeBytes])
	nsqtest.Eventually(t, "another one to wait", func() bool { return n.nsq.Meter().LargeInputWaits == 4 })
	n.received.Give("another", 8<<20)
	// The node of this test is shut down while it waits, or has begun to read.
}

// Large commands that a tenant begins and does not end stop nobody else: it has a share, and waits for that alone.
func TestLargeCommandsOfATenant(t *testing.T) {
	t.Parallel()
	n := startNode(t, node.Options{}, Options{})
	for range 60 {
		n.dial(t).Send(nsqtest.BegunMpub(largeBytes))
	}
	nsqtest.Eventually(t, "its share is taken", func() bool {
		return n.received.Used() > 60<<20 && n.nsq.Meter().LargeInputWaits > 40
	})
	other := n.dialFrom(t, "127.0.0.2")
	other.Send(nsqtest.Magic + nsqtest.Pub("t", strings.Repeat("x", 1<<20-1000)))
	other.OK()
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 2)}}
	web := http.Client{Transport: &http.Transport{DialContext: d.DialContext}}
	defer web.CloseIdleConnections()
	reply, err := web.Post(n.base+"/pub?topic=t", "", strings.NewReader(strings.Repeat("x", 200<<10)))
	if err != nil {
		t.Fatal(err)
	}
	if reply.Body.Close(); reply.StatusCode != 200 {
		t.Errorf("another's body is answered %d", reply.StatusCode)
	}
	if used := n.received.Used(); used > 64<<20 {
		t.Errorf("one address holds %d bytes", used)
	}
}

// takeTurn takes the turn of strangers until release is called.
func (n *testNode) takeTurn(t *testing.T) (release func()) {
	begun, free := make(chan struct{}), make(chan struct{})
	routes := web.Table{"/held": web.On("GET", func(*http.Request, url.Values) (any, error) {
		close(begun)
		<-free
		return nil, nil
	}, web.Open).InTurn(n.api.TurnsOf)}
	go routes.Handler(n.api.Policy()).ServeHTTP(httptest.NewRecorder(), httptest.NewRequest("GET", "/held", nil))
	<-begun
	return func() { close(free) }
}

// Answers that cost much are made one after the other for all that have shown no token. Who has shown one does not wait
// for them, and a trace waits for none.
func TestStatsInTurn(t *testing.T) {
	t.Parallel()
	n := startClosed(t, Options{OpenPages: true})
	request(t, "POST", n.base+"/topic/create?topic=t", "", "Authorization", "Bearer s3cret")
	held := n.takeTurn(t)
	waits := make(chan int, 3)
	for _, path := range []string{"/stats", "/metrics", "/metrics/per-object?topic=*"} {
		go func() {
			reply, _ := request(t, "GET", n.base+path, "")
			waits <- reply.StatusCode
		}()
	}
	for _, path := range []string{
		"/stats", "/metrics", "/metrics/per-object?topic=*", "/topic/trace?topic=t&id=0000000000000000",
	} {
		reply, body := request(t, "GET", n.base+path, "", "Authorization", "Bearer s3cret")
		if reply.StatusCode != 200 && !strings.HasPrefix(path, "/topic/trace") || reply.StatusCode == 503 {
			t.Errorf("%s: %d %.100s", path, reply.StatusCode, body)
		}
	}
	if early := len(waits); early > 0 {
		t.Errorf("%d strangers did not wait", early)
	}
	held()
	for range 3 {
		if code := <-waits; code != 200 {
			t.Errorf("a stranger hears %d", code)
		}
	}
}

// A connection that waits for room ends with the server.
func TestShutdownEndsWaitForRoom(t *testing.T) {
	t.Parallel()
	n := startNode(t, node.Options{}, Options{Settings: nsq.Settings{MaxLargeInputBytes: 8 << 20}})
	if err := n.received.TryTake("another", 8<<20); err != nil {
		t.Fatal(err)
	}
	c := n.dial(t)
	c.Send(nsqtest.Pub("t", "stored") + "PUB t\n" + nsqtest.U32(1<<20) + strings.Repeat("x", largeBytes))
	c.OK()
	nsqtest.Eventually(t, "the connection to wait", func() bool { return n.nsq.Meter().LargeInputWaits == 1 })
	ctx, cancel := context.WithTimeout(context.Background(), nsqtest.Patience)
	defer cancel()
	if err := n.Shutdown(ctx); err != nil {
		t.Error(err)
	}
	c.Closed()
}

func TestAuthFirstIsCounted(t *testing.T) {
	n := startClosed(t, Options{})
	c := n.dial(t)
	c.Send("SUB t c\n")
	c.Fatal("E_AUTH_FIRST AUTH required before SUB")
	if got := n.metric(t, "auth_failures_total"); got != "1" {
		t.Errorf("/metrics counts %s failures", got)
	}
}
