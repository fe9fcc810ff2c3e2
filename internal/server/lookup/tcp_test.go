package lookup

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"penstock/internal/node"
	"penstock/internal/node/names"
	"penstock/internal/server/listen"
)

// v1 is an nsqd that does only what a test tells it to.
type v1 struct {
	t  testing.TB
	nc net.Conn
	br *bufio.Reader
}

func dialV1(t testing.TB, s *service) *v1 {
	t.Helper()
	nc, err := net.Dial("tcp", s.TCPAddr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = nc.Close() })
	if err := nc.SetDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	return &v1{t, nc, bufio.NewReader(nc)}
}

// send writes; the server may have closed the connection already.
func (c *v1) send(s string) { _, _ = io.WriteString(c.nc, s) }

// answer returns the next answer, or "" and false at the end of the connection.
func (c *v1) answer() (string, bool) {
	a, err := readAnswer(c.br)
	return string(a), err == nil
}

func (c *v1) ask(s, want string) {
	c.t.Helper()
	c.send(s)
	if got, ok := c.answer(); got != want || !ok {
		c.t.Fatalf("%.60q is answered %q (%v), want %q", s, got, ok, want)
	}
}

func (c *v1) expectEnd() {
	c.t.Helper()
	if a, ok := c.answer(); ok {
		c.t.Fatalf("an answer %q instead of the end", a)
	}
}

func sizedBody(body string) string {
	return string(binary.BigEndian.AppendUint32(nil, uint32(len(body)))) + body
}

func introduce(host string, tcpPort, httpPort int) string {
	const format = `{"version":"1.3.0","tcp_port":%d,"http_port":%d,"hostname":"h","broadcast_address":%q}`
	return "IDENTIFY\n" + sizedBody(fmt.Sprintf(format, tcpPort, httpPort, host))
}

// register connects an nsqd with that name and makes these registrations.
func (s *service) register(t testing.TB, host string, what ...string) *v1 {
	t.Helper()
	c := dialV1(t, s)
	c.send("  V1" + introduce(host, 4150, 4151))
	if a, ok := c.answer(); !ok || !strings.HasPrefix(a, "{") {
		t.Fatalf("IDENTIFY is answered %q", a)
	}
	for _, w := range what {
		c.ask("REGISTER "+w+"\n", "OK")
	}
	return c
}

func startLookupd(t testing.TB, o Options) *service {
	o.TCPAddress = "127.0.0.1:0"
	return start(t, node.Options{}, o)
}

// Each conversation is as with nsqlookupd 1.3.0, up to the first error, which ends it, except where a comment says
// otherwise.
func TestLookupdConversations(t *testing.T) {
	s := startLookupd(t, Options{})
	me := fmt.Sprintf(
		`{"broadcast_address":"here.example","hostname":"testhost","http_port":%d,"tcp_port":%d,`+
			`"version":"1.3.0+engine.test"}`,
		listen.Port(s.HTTPAddr()),
		listen.Port(s.TCPAddr()),
	)
	id := introduce("a.example", 1, 2)
	long := strings.Repeat("x", 65)
	for _, x := range []struct {
		name, say string
		want      []string
		stays     bool // the connection stays open after the last answer
	}{
		{"ping first", "  V1PING\n", []string{"OK"}, true},
		{"spaces and CR", "  V1 \t PING \r\n", []string{"OK"}, true},
		{
			"everything at once",
			"  V1" + id + "REGISTER t c\nREGISTER t\nPING\nUNREGISTER t c\nUNREGISTER t\nUNREGISTER never\n",
			[]string{me, "OK", "OK", "OK", "OK", "OK", "OK"},
			true,
		},
		{"other magic", "  V2", []string{"E_BAD_PROTOCOL"}, false},
		{"HTTP", "GET / HTTP/1.1\r\n\r\n", []string{"E_BAD_PROTOCOL"}, false},
		{"unknown", "  V1NONSENSE a b\n", []string{"E_INVALID invalid command NONSENSE"}, false},
		{"lower case", "  V1ping\n", []string{"E_INVALID invalid command ping"}, false},
		{"empty line", "  V1\n", []string{"E_INVALID invalid command "}, false},
		{"register first", "  V1REGISTER t\n", []string{"E_INVALID client must IDENTIFY"}, false},
		{"unregister first", "  V1UNREGISTER\n", []string{"E_INVALID client must IDENTIFY"}, false},
		{"no topic", "  V1" + id + "REGISTER\n", []string{me, "E_INVALID REGISTER insufficient number of params"}, false},
		{
			"no topic to unregister", "  V1" + id + "UNREGISTER\n",
			[]string{me, "E_INVALID UNREGISTER insufficient number of params"},
			false,
		},
		{
			"bad topic", "  V1" + id + "REGISTER a:b\n",
			[]string{me, "E_BAD_TOPIC REGISTER topic name 'a:b' is not valid"},
			false,
		},
		{
			"long topic", "  V1" + id + "UNREGISTER " + long + " c\n",
			[]string{me, "E_BAD_TOPIC UNREGISTER topic name '" + long + "' is not valid"},
			false,
		},
		{"two spaces", "  V1" + id + "REGISTER  t\n", []string{me, "E_BAD_TOPIC REGISTER topic name '' is not valid"}, false},
		{
			"bad channel", "  V1" + id + "REGISTER t a/b\n",
			[]string{me, "E_BAD_CHANNEL REGISTER channel name 'a/b' is not valid"},
			false,
		},
		{"identify twice", "  V1" + id + id, []string{me, "E_INVALID cannot IDENTIFY again"}, false},
		{"no JSON", "  V1IDENTIFY\n" + sizedBody("{"), []string{"E_BAD_BODY IDENTIFY failed to decode JSON body"}, false},
		{"no body", "  V1IDENTIFY\n" + sizedBody(""), []string{"E_BAD_BODY IDENTIFY failed to decode JSON body"}, false},
		{"no port", "  V1" + introduce("a", 0, 2), []string{"E_BAD_BODY IDENTIFY missing fields"}, false},
		{"no HTTP port", "  V1" + introduce("a", 1, 0), []string{"E_BAD_BODY IDENTIFY missing fields"}, false},
		{"no host", "  V1" + introduce("", 1, 2), []string{"E_BAD_BODY IDENTIFY missing fields"}, false},
		{
			"ports that are none (nsqlookupd takes them)", "  V1" + introduce("a", 65536, 2),
			[]string{"E_BAD_BODY IDENTIFY invalid port 65536"},
			false,
		},
		{
			"a host that is none (likewise)", "  V1" + introduce(strings.Repeat("h", 256), 1, 2),
			[]string{"E_BAD_BODY IDENTIFY text too long 256 > 255"},
			false,
		},
		{
			"negative size (ends nsqlookupd)", "  V1IDENTIFY\n\xff\xff\xff\xff",
			[]string{"E_BAD_BODY IDENTIFY invalid body size -1"},
			false,
		},
		{
			"huge size (nsqlookupd makes room for it)", "  V1IDENTIFY\n\x7f\xff\xff\xff",
			[]string{"E_BAD_BODY IDENTIFY body too big 2147483647 > 16384"},
			false,
		},
		{"huge line (nsqlookupd keeps all of it)", "  V1PING\n" + strings.Repeat("x", 1<<20), []string{"OK"}, false},
		{"zeros", "  V1" + strings.Repeat("\x00", maxLineBytes), nil, false},
	} {
		t.Run(x.name, func(t *testing.T) {
			c := dialV1(t, s)
			c.send(x.say)
			for _, want := range x.want {
				if got, ok := c.answer(); got != want || !ok {
					t.Fatalf("answered %q (%v), want %q", got, ok, want)
				}
			}
			if x.stays {
				c.ask("PING\n", "OK")
			} else {
				c.expectEnd()
			}
		})
	}
	eventually(t, "all to be gone", func() bool { return len(s.api.registry.nodes(time.Now())) == 0 })
}

func (s *service) expectLookup(t testing.TB, path, want string) {
	t.Helper()
	if _, body := s.do(t, "GET", path); body != want {
		t.Errorf("%s: %s, want %s", path, body, want)
	}
}

// B100: registrations of nsqds are in every answer, beside our own topics. They disappear with the connection, a
// tombstone or a deletion.
func TestLookupdRegistrations(t *testing.T) {
	s := startLookupd(t, Options{})
	s.post(t, "/topic/create?topic=both")
	s.post(t, "/channel/create?topic=both&channel=ours")
	a := s.register(t, "a.example", "both theirs", "both x#ephemeral", "only c")
	b := s.register(t, "b.example", "both")
	line := func(c *v1, host string) string {
		return fmt.Sprintf(
			`{"remote_address":%q,"hostname":"h","broadcast_address":%q,"tcp_port":4150,"http_port":4151,"version":"1.3.0"}`,
			c.nc.LocalAddr(), host,
		)
	}
	const own = `{"remote_address":"here.example:4150","hostname":"testhost","broadcast_address":"here.example",` +
		`"tcp_port":4150,"http_port":4151,"version":"1.3.0+engine.test"}`
	lineA, lineB := line(a, "a.example"), line(b, "b.example")
	// A node of ours that registers at its own lookup service is named once.
	itself := dialV1(t, s)
	itself.send("  V1" + introduce("here.example", 4150, 4151))
	itself.answer()
	itself.ask("REGISTER both\n", "OK")

	s.expectLookup(t, "/topics", `{"topics":["both","only"]}`)
	s.expectLookup(t, "/channels?topic=both", `{"channels":["ours","theirs","x#ephemeral"]}`)
	s.expectLookup(t, "/channels?topic=only", `{"channels":["c"]}`)
	s.expectLookup(
		t, "/lookup?topic=both", `{"channels":["ours","theirs","x#ephemeral"],"producers":[`+own+","+lineA+","+lineB+`]}`,
	)
	s.expectLookup(t, "/lookup?topic=only", `{"channels":["c"],"producers":[`+lineA+`]}`)
	node := func(line, rest string) string { return strings.TrimSuffix(line, "}") + "," + rest + "}" }
	s.expectLookup(t, "/nodes", `{"producers":[`+node(own, `"tombstones":[false],"topics":["both"]`)+","+
		node(lineA, `"tombstones":[false,false],"topics":["both","only"]`)+","+
		node(lineB, `"tombstones":[false],"topics":["both"]`)+`]}`)
	_, debug := s.do(t, "GET", "/debug")
	if !strings.Contains(debug, `"channel:only:c":[{"id":"`+a.nc.LocalAddr().String()) {
		t.Errorf("/debug: %s", debug)
	}

	s.do(t, "POST", "/topic/tombstone?topic=both&node=a.example:4151")
	s.expectLookup(t, "/lookup?topic=both", `{"channels":["ours","theirs","x#ephemeral"],"producers":[`+own+","+lineB+`]}`)
	s.expectLookup(t, "/lookup?topic=only", `{"channels":["c"],"producers":[`+lineA+`]}`)
	_, nodes := s.do(t, "GET", "/nodes")
	if !strings.Contains(nodes, `"tombstones":[true,false],"topics":["both","only"]`) {
		t.Errorf("/nodes: %s", nodes)
	}
	a.ask("REGISTER both theirs\n", "OK") // repeated: the tombstone stays
	s.expectLookup(t, "/lookup?topic=both", `{"channels":["ours","theirs","x#ephemeral"],"producers":[`+own+","+lineB+`]}`)
	a.ask("UNREGISTER both\n", "OK")
	a.ask("REGISTER both theirs\n", "OK") // a new registration has no tombstone
	s.expectLookup(t, "/lookup?topic=both", `{"channels":["ours","theirs"],"producers":[`+own+","+lineA+","+lineB+`]}`)

	// A channel without producers stays known until it is deleted; then a further deletion fails.
	a.ask("UNREGISTER only c\n", "OK")
	s.expectLookup(t, "/channels?topic=only", `{"channels":["c"]}`)
	for _, want := range []int{200, 404} {
		if reply, body := s.do(t, "POST", "/channel/delete?topic=only&channel=c"); reply.StatusCode != want {
			t.Errorf("delete: %d %s", reply.StatusCode, body)
		}
	}
	_ = a.nc.Close()
	eventually(t, "the closed nsqd to leave", func() bool { return len(s.api.registry.lookup("both", time.Now())) == 2 })
	s.expectLookup(t, "/lookup?topic=only", `{"channels":[],"producers":[]}`)
	s.do(t, "POST", "/topic/delete?topic=only")
	s.do(t, "POST", "/topic/delete?topic=both")
	s.expectLookup(t, "/topics", `{"topics":[]}`)
	if reply, _ := s.do(t, "GET", "/lookup?topic=both"); reply.StatusCode != 404 {
		t.Errorf("a deleted topic: %d", reply.StatusCode)
	}
	b.ask("PING\n", "OK") // the nsqd may register again
	b.ask("REGISTER both\n", "OK")
	s.expectLookup(t, "/lookup?topic=both", `{"channels":[],"producers":[`+lineB+`]}`)
}

// Where clients have tokens, a stranger who registers leads nobody away: lookups of our topics name only our nodes. The
// nsqds of other topics are named as ever.
func TestRegistrationAddsNoProducerToOurTopics(t *testing.T) {
	s := startLookupd(t, Options{Guarded: true})
	s.post(t, "/topic/create?topic=ours")
	before, _ := s.api.serveLookup(httptest.NewRequest("GET", "/", nil), url.Values{"topic": {"ours"}})
	own := before.(lookupReply).Producers
	s.register(t, "evil.example", "ours c", "theirs c")
	for topic, want := range map[string]int{"ours": 0, "theirs": 1} {
		got, err := s.api.serveLookup(httptest.NewRequest("GET", "/", nil), url.Values{"topic": {topic}})
		if err != nil {
			t.Fatal(err)
		}
		strangers := slices.DeleteFunc(got.(lookupReply).Producers, func(p Producer) bool { return slices.Contains(own, p) })
		if len(own) != 1 || len(strangers) != want {
			t.Errorf("strangers in the lookup of %s: %v", topic, strangers)
		}
	}
}

// A topic that is created here starts with the channels that nsqds registered, as nsqd does with those of its
// nsqlookupds.
func TestLookupdChannelsOfNewTopics(t *testing.T) {
	s := startLookupd(t, Options{})
	s.register(t, "a.example", "orders billing", "orders audit", "orders tail#ephemeral")
	topic, _, err := s.Topic(t.Context(), "orders", func() (string, error) { return "", nil })
	if err != nil {
		t.Fatal(err)
	}
	names, err := topic.ReadChannelNames(t.Context())
	if want := []string{"audit", "billing"}; err != nil || !slices.Equal(names, want) {
		t.Fatalf("channels: %v %v, want %v", names, err, want)
	}
	if err := topic.Submit(&node.Put{Messages: [][]byte{[]byte("first")}, Done: func(*node.Put) {}}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the first message in both", func() bool {
		all := s.e.Stats("orders", "")
		return all[0].Channels[0].Depth == 1 && all[0].Channels[1].Depth == 1
	})
}

// B99, B100: an nsqd that is silent is hidden and later disconnected. A client that sends its bytes too slowly, or
// nothing at all, is disconnected.
func TestLookupdSilence(t *testing.T) {
	const soon = time.Second // a busy client needs some of it
	// An nsqd is disconnected 1.5 s after it is hidden.
	s := startLookupd(t, Options{InactiveProducerTimeout: 1500 * time.Millisecond, MaxCommandTime: soon})
	count := func() int { return len(s.api.registry.lookup("t", time.Now())) }
	c := s.register(t, "a.example", "t")
	eventually(t, "the silent nsqd to be hidden", func() bool { return count() == 0 })
	c.ask("PING\n", "OK")
	if count() != 1 {
		t.Error("it is hidden after a PING")
	}
	c.expectEnd()
	dialV1(t, s).expectEnd()                // never sends anything
	drip := s.register(t, "a.example", "t") // sends everything, but slowly
	start := time.Now()
	for time.Since(start) < patience {
		if _, err := io.WriteString(drip.nc, "P"); err != nil {
			break
		}
		time.Sleep(soon / 10) // the pace of the trickle
	}
	if took := time.Since(start); took > patience/2 {
		t.Errorf("the drip was served for %v", took)
	}
	eventually(t, "it to be forgotten", func() bool { return len(s.api.registry.nodes(time.Now())) == 0 })
}

// A new time for silent nsqds holds for those that are registered, from their next command on.
func TestLookupdTimesChange(t *testing.T) {
	o := Options{InactiveProducerTimeout: time.Hour, MaxCommandTime: time.Hour, WriteTimeout: time.Hour}
	s := startLookupd(t, o)
	c := s.register(t, "a.example", "t")
	o.InactiveProducerTimeout, o.MaxConnections = time.Second/2, 10
	s.Change(&o)
	c.ask("PING\n", "OK")
	eventually(t, "the silent nsqd to be hidden", func() bool { return len(s.api.registry.lookup("t", time.Now())) == 0 })
	c.expectEnd()
}

// One producer cannot take all of the room. It is told so, and its connection stays open.
func TestLookupdLimits(t *testing.T) {
	r := newRegistry(time.Minute)
	var out bytes.Buffer
	fill := func(name string, topics int) *session {
		s := &session{registry: r, remote: name, self: nil}
		converse(s, &out, introduce(name, 1, 2))
		for i := range topics {
			_ = r.add(s.registrant, fmt.Sprintf("%s.%d", name, i), "")
		}
		return s
	}
	first := fill("p0", maxProducerEntries+10)
	if first.registrant.entries != maxProducerEntries || r.entries != 2*maxProducerEntries {
		t.Fatalf("%d entries of one, %d of all", first.registrant.entries, r.entries)
	}
	out.Reset()
	converse(first, &out, "REGISTER more\nREGISTER p0.0\nPING\n")
	if got := out.String(); strings.Count(got, "E_REGISTER_FAILED") != 1 || strings.Count(got, "OK") != 2 {
		t.Errorf("answers %q", got)
	}
	second := fill("p1", maxProducerEntries)
	if r.entries > maxRegistryEntries || first.registrant.entries+second.registrant.entries < maxProducerEntries {
		t.Errorf("%d entries", r.entries)
	}
	r.swept = time.Time{}
	third := fill("p2", 1)
	if third.registrant.entries != 0 {
		t.Error("a full registry took another topic")
	}
	first.end() // its topics stay known until their room is needed
	r.swept = time.Time{}
	if fourth := fill("p3", maxProducerEntries); fourth.registrant.entries < maxProducerEntries-2 ||
		r.topics["p0.0"] != nil {
		t.Errorf("%d entries, and the room of those who left is not used", fourth.registrant.entries)
	}
	checkRegistry(t, r)
}

// converse feeds a client's input to the session, up to the first fault or the end of the input.
func converse(s *session, w io.Writer, input string) {
	br := bufio.NewReaderSize(strings.NewReader(input), maxLineBytes)
	for {
		answer, f, err := s.step(br)
		if err != nil {
			return
		}
		if f != nil {
			_ = writeAnswer(w, []byte(f.text))
			return
		}
		_ = writeAnswer(w, answer)
	}
}

// checkRegistry recounts everything that the registry counts incrementally.
func checkRegistry(t *testing.T, r *registry) {
	t.Helper()
	entries, per := 0, map[*registrant]int{}
	for name, topic := range r.topics {
		entries += 1 + len(topic.registrants)
		for p := range topic.registrants {
			per[p]++
			if _, has := p.topics[name]; !has {
				t.Errorf("%s does not know its topic %s", p.endpoint(), name)
			}
		}
		for channel, holders := range topic.channels {
			entries += 1 + len(holders)
			for p := range holders {
				per[p]++
				if _, has := topic.registrants[p]; !has {
					t.Errorf("%s has channel %s and not its topic %s", p.endpoint(), channel, name)
				}
			}
		}
	}
	if entries != r.entries {
		t.Errorf("%d entries are counted as %d", entries, r.entries)
	}
	for p := range r.registrants {
		if per[p] != p.entries {
			t.Errorf("%d entries of %s are counted as %d", per[p], p.endpoint(), p.entries)
		}
		delete(per, p)
	}
	if len(per) > 0 {
		t.Errorf("%d producers are registered that left", len(per))
	}
}

// FuzzLookupd uses any input as the conversations of two nsqds. Every answer is well-formed, and the registry's counts
// are right.
func FuzzLookupd(f *testing.F) {
	id := introduce("a", 1, 2)
	f.Add("PING\n", "REGISTER t\n")
	f.Add(
		id+"REGISTER t c\nUNREGISTER t c\nREGISTER t e#ephemeral\nUNREGISTER t e#ephemeral\n",
		id+"REGISTER t#ephemeral c\nUNREGISTER t#ephemeral\nREGISTER u\n",
	)
	f.Add("IDENTIFY\n\x00\x00\x00\x02{}", "IDENTIFY\n\xff\xff\xff\xff")
	f.Fuzz(func(t *testing.T, one, two string) {
		r := newRegistry(time.Minute)
		var out bytes.Buffer
		var sessions []*session
		for _, input := range []string{one, two} {
			s := &session{registry: r, remote: "r", self: []byte("{}")}
			converse(s, &out, input)
			sessions = append(sessions, s)
		}
		for out.Len() > 0 {
			if _, err := readAnswer(&out); err != nil {
				t.Fatal(err)
			}
		}
		checkRegistry(t, r)
		for _, name := range r.topicNames() {
			if r.lookup(name, time.Now()) == nil && r.nodes(time.Now()) == nil {
				t.Errorf("topic %s without an nsqd", name)
			}
			r.channelNames(name)
		}
		for _, s := range sessions {
			s.end()
		}
		checkRegistry(t, r)
		for name, topic := range r.topics {
			if names.Ephemeral(name) || len(topic.registrants) > 0 {
				t.Errorf("topic %s is left with %d producers", name, len(topic.registrants))
			}
			r.deleteTopic(name)
		}
		if r.entries != 0 {
			t.Errorf("%d entries are left of nothing", r.entries)
		}
	})
}
