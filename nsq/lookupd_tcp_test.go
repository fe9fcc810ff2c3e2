package nsq

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"penstock/engine"
	"penstock/nsq/internal/listen"
)

// v1 is an nsqd that does only what a test says.
type v1 struct {
	t  testing.TB
	nc net.Conn
	br *bufio.Reader
}

func dialV1(t testing.TB, n *node) *v1 {
	t.Helper()
	nc, err := net.Dial("tcp", n.LookupTCPAddr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = nc.Close() })
	if err := nc.SetDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	return &v1{t, nc, bufio.NewReader(nc)}
}

// send writes; the other side may have closed already.
func (c *v1) send(s string) { _, _ = io.WriteString(c.nc, s) }

// answer is the next one, or "" and false at the end of the connection.
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
	return "IDENTIFY\n" + sizedBody(fmt.Sprintf(`{"version":"1.3.0","tcp_port":%d,"http_port":%d,"hostname":"h","broadcast_address":%q}`, tcpPort, httpPort, host))
}

// register is an nsqd of that name with these registrations.
func (n *node) register(t testing.TB, host string, what ...string) *v1 {
	t.Helper()
	c := dialV1(t, n)
	c.send("  V1" + introduce(host, 4150, 4151))
	if a, ok := c.answer(); !ok || !strings.HasPrefix(a, "{") {
		t.Fatalf("IDENTIFY is answered %q", a)
	}
	for _, w := range what {
		c.ask("REGISTER "+w+"\n", "OK")
	}
	return c
}

func startLookupd(t testing.TB, o Options) *node {
	o.LookupTCPAddress = "127.0.0.1:0"
	orDefault(&o.BroadcastAddress, "here.example")
	orDefault(&o.Version, "1.3.0+engine.test")
	return startNode(t, engine.Options{}, o)
}

// Each conversation as nsqlookupd 1.3.0 has it, up to the first error, which ends it; but where a comment says otherwise.
func TestLookupdConversations(t *testing.T) {
	n := startLookupd(t, Options{})
	me := fmt.Sprintf(`{"broadcast_address":"here.example","hostname":"testhost","http_port":%d,"tcp_port":%d,"version":"1.3.0+engine.test"}`, listen.Port(n.LookupAddr()), listen.Port(n.LookupTCPAddr()))
	id := introduce("a.example", 1, 2)
	long := strings.Repeat("x", 65)
	for _, x := range []struct {
		name, say string
		want      []string
		stays     bool // open after the last answer
	}{
		{"ping first", "  V1PING\n", []string{"OK"}, true},
		{"spaces and CR", "  V1 \t PING \r\n", []string{"OK"}, true},
		{"everything at once", "  V1" + id + "REGISTER t c\nREGISTER t\nPING\nUNREGISTER t c\nUNREGISTER t\nUNREGISTER never\n", []string{me, "OK", "OK", "OK", "OK", "OK", "OK"}, true},
		{"other magic", "  V2", []string{"E_BAD_PROTOCOL"}, false},
		{"HTTP", "GET / HTTP/1.1\r\n\r\n", []string{"E_BAD_PROTOCOL"}, false},
		{"unknown", "  V1NONSENSE a b\n", []string{"E_INVALID invalid command NONSENSE"}, false},
		{"lower case", "  V1ping\n", []string{"E_INVALID invalid command ping"}, false},
		{"empty line", "  V1\n", []string{"E_INVALID invalid command "}, false},
		{"register first", "  V1REGISTER t\n", []string{"E_INVALID client must IDENTIFY"}, false},
		{"unregister first", "  V1UNREGISTER\n", []string{"E_INVALID client must IDENTIFY"}, false},
		{"no topic", "  V1" + id + "REGISTER\n", []string{me, "E_INVALID REGISTER insufficient number of params"}, false},
		{"no topic to unregister", "  V1" + id + "UNREGISTER\n", []string{me, "E_INVALID UNREGISTER insufficient number of params"}, false},
		{"bad topic", "  V1" + id + "REGISTER a:b\n", []string{me, "E_BAD_TOPIC REGISTER topic name 'a:b' is not valid"}, false},
		{"long topic", "  V1" + id + "UNREGISTER " + long + " c\n", []string{me, "E_BAD_TOPIC UNREGISTER topic name '" + long + "' is not valid"}, false},
		{"two spaces", "  V1" + id + "REGISTER  t\n", []string{me, "E_BAD_TOPIC REGISTER topic name '' is not valid"}, false},
		{"bad channel", "  V1" + id + "REGISTER t a/b\n", []string{me, "E_BAD_CHANNEL REGISTER channel name 'a/b' is not valid"}, false},
		{"identify twice", "  V1" + id + id, []string{me, "E_INVALID cannot IDENTIFY again"}, false},
		{"no JSON", "  V1IDENTIFY\n" + sizedBody("{"), []string{"E_BAD_BODY IDENTIFY failed to decode JSON body"}, false},
		{"no body", "  V1IDENTIFY\n" + sizedBody(""), []string{"E_BAD_BODY IDENTIFY failed to decode JSON body"}, false},
		{"no port", "  V1" + introduce("a", 0, 2), []string{"E_BAD_BODY IDENTIFY missing fields"}, false},
		{"no HTTP port", "  V1" + introduce("a", 1, 0), []string{"E_BAD_BODY IDENTIFY missing fields"}, false},
		{"no host", "  V1" + introduce("", 1, 2), []string{"E_BAD_BODY IDENTIFY missing fields"}, false},
		{"ports that are none (nsqlookupd takes them)", "  V1" + introduce("a", 65536, 2), []string{"E_BAD_BODY IDENTIFY invalid port 65536"}, false},
		{"a host that is none (likewise)", "  V1" + introduce(strings.Repeat("h", 256), 1, 2), []string{"E_BAD_BODY IDENTIFY text too long 256 > 255"}, false},
		{"negative size (ends nsqlookupd)", "  V1IDENTIFY\n\xff\xff\xff\xff", []string{"E_BAD_BODY IDENTIFY invalid body size -1"}, false},
		{"huge size (nsqlookupd makes room for it)", "  V1IDENTIFY\n\x7f\xff\xff\xff", []string{"E_BAD_BODY IDENTIFY body too big 2147483647 > 16384"}, false},
		{"huge line (nsqlookupd keeps all of it)", "  V1PING\n" + strings.Repeat("x", 1<<20), []string{"OK"}, false},
		{"zeros", "  V1" + strings.Repeat("\x00", maxLookupdLineBytes), nil, false},
	} {
		t.Run(x.name, func(t *testing.T) {
			c := dialV1(t, n)
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
	eventually(t, "all to be gone", func() bool { return len(n.lookup.registry.nodes(time.Now())) == 0 })
}

func (n *node) expectLookup(t testing.TB, path, want string) {
	t.Helper()
	if _, body := n.lookupDo(t, "GET", path); body != want {
		t.Errorf("%s: %s, want %s", path, body, want)
	}
}

// B100: what nsqds register is in every answer beside what is here; it goes with the connection, tombstones and deletions.
func TestLookupdRegistrations(t *testing.T) {
	n := startLookupd(t, Options{})
	n.post(t, "/topic/create?topic=both", "")
	n.post(t, "/channel/create?topic=both&channel=ours", "")
	a := n.register(t, "a.example", "both theirs", "both x#ephemeral", "only c")
	b := n.register(t, "b.example", "both")
	line := func(c *v1, host string) string {
		return fmt.Sprintf(`{"remote_address":%q,"hostname":"h","broadcast_address":%q,"tcp_port":4150,"http_port":4151,"version":"1.3.0"}`, c.nc.LocalAddr(), host)
	}
	own := fmt.Sprintf(`{"remote_address":"here.example:%[1]d","hostname":"testhost","broadcast_address":"here.example","tcp_port":%[1]d,"http_port":%[2]d,"version":"1.3.0+engine.test"}`, listen.Port(n.TCPAddr()), listen.Port(n.HTTPAddr()))
	lineA, lineB := line(a, "a.example"), line(b, "b.example")
	// Our own node as its own nsqlookupd's nsqd is mentioned once.
	itself := dialV1(t, n)
	itself.send("  V1" + introduce("here.example", listen.Port(n.TCPAddr()), listen.Port(n.HTTPAddr())))
	itself.answer()
	itself.ask("REGISTER both\n", "OK")

	n.expectLookup(t, "/topics", `{"topics":["both","only"]}`)
	n.expectLookup(t, "/channels?topic=both", `{"channels":["ours","theirs","x#ephemeral"]}`)
	n.expectLookup(t, "/channels?topic=only", `{"channels":["c"]}`)
	n.expectLookup(t, "/lookup?topic=both", `{"channels":["ours","theirs","x#ephemeral"],"producers":[`+own+","+lineA+","+lineB+`]}`)
	n.expectLookup(t, "/lookup?topic=only", `{"channels":["c"],"producers":[`+lineA+`]}`)
	node := func(line, rest string) string { return strings.TrimSuffix(line, "}") + "," + rest + "}" }
	n.expectLookup(t, "/nodes", `{"producers":[`+node(own, `"tombstones":[false],"topics":["both"]`)+","+
		node(lineA, `"tombstones":[false,false],"topics":["both","only"]`)+","+node(lineB, `"tombstones":[false],"topics":["both"]`)+`]}`)
	if _, debug := n.lookupDo(t, "GET", "/debug"); !strings.Contains(debug, `"channel:only:c":[{"id":"`+a.nc.LocalAddr().String()) {
		t.Errorf("/debug: %s", debug)
	}

	n.lookupDo(t, "POST", "/topic/tombstone?topic=both&node=a.example:4151")
	n.expectLookup(t, "/lookup?topic=both", `{"channels":["ours","theirs","x#ephemeral"],"producers":[`+own+","+lineB+`]}`)
	n.expectLookup(t, "/lookup?topic=only", `{"channels":["c"],"producers":[`+lineA+`]}`)
	if _, nodes := n.lookupDo(t, "GET", "/nodes"); !strings.Contains(nodes, `"tombstones":[true,false],"topics":["both","only"]`) {
		t.Errorf("/nodes: %s", nodes)
	}
	a.ask("REGISTER both theirs\n", "OK") // again: it stays hidden
	n.expectLookup(t, "/lookup?topic=both", `{"channels":["ours","theirs","x#ephemeral"],"producers":[`+own+","+lineB+`]}`)
	a.ask("UNREGISTER both\n", "OK")
	a.ask("REGISTER both theirs\n", "OK") // anew: it is not
	n.expectLookup(t, "/lookup?topic=both", `{"channels":["ours","theirs"],"producers":[`+own+","+lineA+","+lineB+`]}`)

	// A channel whose producers are gone stays known until somebody deletes it, then there is none to delete.
	a.ask("UNREGISTER only c\n", "OK")
	n.expectLookup(t, "/channels?topic=only", `{"channels":["c"]}`)
	for _, want := range []int{200, 404} {
		if reply, body := n.lookupDo(t, "POST", "/channel/delete?topic=only&channel=c"); reply.StatusCode != want {
			t.Errorf("delete: %d %s", reply.StatusCode, body)
		}
	}
	_ = a.nc.Close()
	eventually(t, "the closed nsqd to leave", func() bool { return len(n.lookup.registry.lookup("both", time.Now())) == 2 })
	n.expectLookup(t, "/lookup?topic=only", `{"channels":[],"producers":[]}`)
	n.lookupDo(t, "POST", "/topic/delete?topic=only")
	n.lookupDo(t, "POST", "/topic/delete?topic=both")
	n.expectLookup(t, "/topics", `{"topics":[]}`)
	if reply, _ := n.lookupDo(t, "GET", "/lookup?topic=both"); reply.StatusCode != 404 {
		t.Errorf("a deleted topic: %d", reply.StatusCode)
	}
	b.ask("PING\n", "OK") // it may register again
	b.ask("REGISTER both\n", "OK")
	n.expectLookup(t, "/lookup?topic=both", `{"channels":[],"producers":[`+lineB+`]}`)
}

// A topic that is made here begins with the channels that nsqds registered: nsqd does so with its nsqlookupds'.
func TestLookupdChannelsOfNewTopics(t *testing.T) {
	n := startLookupd(t, Options{})
	n.register(t, "a.example", "orders billing", "orders audit", "orders tail#ephemeral")
	n.post(t, "/pub?topic=orders", "first")
	s := n.topicNow(t, "orders")
	if len(s.Channels) != 2 || s.Channels[0].Name != "audit" || s.Channels[1].Name != "billing" {
		t.Fatalf("channels: %+v", s.Channels)
	}
	eventually(t, "the first message in both", func() bool {
		s := n.topicNow(t, "orders")
		return s.Channels[0].Depth == 1 && s.Channels[1].Depth == 1
	})
}

// B99, B100: who is silent is hidden, and later closed; who drips or never says anything is closed.
func TestLookupdSilence(t *testing.T) {
	const soon = 200 * time.Millisecond
	n := startLookupd(t, Options{InactiveProducerTimeout: 1500 * time.Millisecond, MaxCommandTime: soon}) // closed 1.5 s after it is hidden
	count := func() int { return len(n.lookup.registry.lookup("t", time.Now())) }
	c := n.register(t, "a.example", "t")
	eventually(t, "the silent nsqd to be hidden", func() bool { return count() == 0 })
	c.ask("PING\n", "OK")
	if count() != 1 {
		t.Error("it is hidden after a PING")
	}
	c.expectEnd()
	dialV1(t, n).expectEnd()                // never says anything
	drip := n.register(t, "a.example", "t") // says everything, slowly
	start := time.Now()
	for time.Since(start) < patience {
		if _, err := io.WriteString(drip.nc, "P"); err != nil {
			break
		}
		time.Sleep(soon / 10) // the drip itself
	}
	if took := time.Since(start); took > patience/2 {
		t.Errorf("the drip was served for %v", took)
	}
	eventually(t, "it to be forgotten", func() bool { return len(n.lookup.registry.nodes(time.Now())) == 0 })
}

// One producer cannot take all the room, and is told so without an end of the connection.
func TestLookupdLimits(t *testing.T) {
	r := newRegistry(time.Minute)
	var out bytes.Buffer
	fill := func(name string, topics int) *lookupdSession {
		s := &lookupdSession{registry: r, remote: name, self: func() []byte { return nil }}
		converse(s, &out, introduce(name, 1, 2))
		for i := range topics {
			_ = r.add(s.producer, fmt.Sprintf("%s.%d", name, i), "")
		}
		return s
	}
	first := fill("p0", maxProducerEntries+10)
	if first.producer.entries != maxProducerEntries || r.entries != 2*maxProducerEntries {
		t.Fatalf("%d entries of one, %d of all", first.producer.entries, r.entries)
	}
	out.Reset()
	converse(first, &out, "REGISTER more\nREGISTER p0.0\nPING\n")
	if got := out.String(); strings.Count(got, "E_REGISTER_FAILED") != 1 || strings.Count(got, "OK") != 2 {
		t.Errorf("answers %q", got)
	}
	second := fill("p1", maxProducerEntries)
	if r.entries > maxRegistryEntries || first.producer.entries+second.producer.entries < maxProducerEntries {
		t.Errorf("%d entries", r.entries)
	}
	r.swept = time.Time{}
	third := fill("p2", 1)
	if third.producer.entries != 0 {
		t.Error("a full registry took another topic")
	}
	first.end() // its topics stay known until their room is needed
	r.swept = time.Time{}
	if fourth := fill("p3", maxProducerEntries); fourth.producer.entries < maxProducerEntries-2 || r.topics["p0.0"] != nil {
		t.Errorf("%d entries, and the room of those who left is not used", fourth.producer.entries)
	}
	checkRegistry(t, r)
}

// converse plays a client's input to its end.
func converse(s *lookupdSession, w io.Writer, input string) {
	br := bufio.NewReaderSize(strings.NewReader(input), maxLookupdLineBytes)
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

// checkRegistry counts anew what the registry counts as it goes.
func checkRegistry(t *testing.T, r *registry) {
	t.Helper()
	entries, per := 0, map[*producer]int{}
	for name, topic := range r.topics {
		entries += 1 + len(topic.producers)
		for p := range topic.producers {
			per[p]++
			if _, has := p.topics[name]; !has {
				t.Errorf("%s does not know its topic %s", p.endpoint(), name)
			}
		}
		for channel, having := range topic.channels {
			entries += 1 + len(having)
			for p := range having {
				per[p]++
				if _, has := topic.producers[p]; !has {
					t.Errorf("%s has channel %s and not its topic %s", p.endpoint(), channel, name)
				}
			}
		}
	}
	if entries != r.entries {
		t.Errorf("%d entries are counted as %d", entries, r.entries)
	}
	for p := range r.producers {
		if per[p] != p.entries {
			t.Errorf("%d entries of %s are counted as %d", per[p], p.endpoint(), p.entries)
		}
		delete(per, p)
	}
	if len(per) > 0 {
		t.Errorf("%d producers are registered that left", len(per))
	}
}

// FuzzLookupd plays any input as two nsqds' conversations: every answer has a size, and the registry's counts are right.
func FuzzLookupd(f *testing.F) {
	id := introduce("a", 1, 2)
	f.Add("PING\n", "REGISTER t\n")
	f.Add(id+"REGISTER t c\nUNREGISTER t c\nREGISTER t e#ephemeral\nUNREGISTER t e#ephemeral\n", id+"REGISTER t#ephemeral c\nUNREGISTER t#ephemeral\nREGISTER u\n")
	f.Add("IDENTIFY\n\x00\x00\x00\x02{}", "IDENTIFY\n\xff\xff\xff\xff")
	f.Fuzz(func(t *testing.T, one, two string) {
		r := newRegistry(time.Minute)
		var out bytes.Buffer
		var sessions []*lookupdSession
		for _, input := range []string{one, two} {
			s := &lookupdSession{registry: r, remote: "r", self: func() []byte { return []byte("{}") }}
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
			if isEphemeral(name) || len(topic.producers) > 0 {
				t.Errorf("topic %s is left with %d producers", name, len(topic.producers))
			}
			r.deleteTopic(name)
		}
		if r.entries != 0 {
			t.Errorf("%d entries are left of nothing", r.entries)
		}
	})
}
