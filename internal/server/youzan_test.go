package server

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"penstock/batch"
	"penstock/internal/node"
	"penstock/internal/server/listen"
	"penstock/internal/server/lookup"
	"penstock/segment"
)

// The commands and answers in these tests are, byte for byte, those that youzan's Go client writes and reads.

func u16(n int) string    { return string(binary.BigEndian.AppendUint16(nil, uint16(n))) }
func u64(n uint64) string { return string(binary.BigEndian.AppendUint64(nil, n)) }

func withExt(ext, body string) string { return u16(len(ext)) + ext + body }

// formed is a message as decoded by a client of youzan's.
type formed struct {
	full     string // the id as the client returns it in a FIN
	id       batch.ID
	trace    uint64
	attempts int
	version  byte
	ext      string
	place    uint64
	size     uint32
	body     string
}

func (c *client) formed(ext, detail bool) formed {
	c.t.Helper()
	k, d, err := c.frame(patience)
	if err != nil || k != frameMessage || len(d) < messageHeaderBytes {
		c.t.Fatalf("want a message, got %d %.200q, %v", k, d, err)
	}
	m := formed{
		attempts: int(binary.BigEndian.Uint16(d[8:])), full: string(d[10:26]),
		id: batch.ID(binary.BigEndian.Uint64(d[10:])), trace: binary.BigEndian.Uint64(d[18:]),
	}
	d = d[messageHeaderBytes:]
	if ext {
		m.version, d = d[0], d[1:]
		if m.version != 0 {
			n := int(binary.BigEndian.Uint16(d))
			m.ext, d = string(d[2:2+n]), d[2+n:]
		}
	}
	if detail {
		m.place, m.size, d = binary.BigEndian.Uint64(d), binary.BigEndian.Uint32(d[8:]), d[12:]
	}
	m.body = string(d)
	return m
}

// traced reads the answer to a command with a trace id.
func (c *client) traced() (id batch.ID, trace, place uint64, size uint32) {
	c.t.Helper()
	k, d, err := c.frame(patience)
	if err != nil || k != frameResponse || len(d) != 2+16+8+4 || string(d[:2]) != "OK" {
		c.t.Fatalf("want a traced OK, got %d %q, %v", k, d, err)
	}
	number := binary.BigEndian
	return batch.ID(number.Uint64(d[2:])), number.Uint64(d[10:]), number.Uint64(d[18:]), number.Uint32(d[26:])
}

// refusedAs expects an error frame with this code.
func (c *client) refusedAs(code string) {
	c.t.Helper()
	if k, d, err := c.frame(patience); err != nil || k != frameError || !strings.HasPrefix(string(d), code+" ") {
		c.t.Fatalf("want %s, got %d %q, %v", code, k, d, err)
	}
}

// leaderOfPartition returns the index of the node that leads the partition.
func leaderOfPartition(t *testing.T, nodes []*testNode, topic string, partition int) int {
	t.Helper()
	at := -1
	eventually(t, "a leader", func() bool {
		at = slices.IndexFunc(nodes, func(n *testNode) bool {
			top, ok := n.e.LookupTopic(topic)
			return ok && n.leads(top, partition)
		})
		return at >= 0
	})
	return at
}

// A transcript of a producer and a consumer that use all of the extensions. B95 B96
func TestYouzanTranscript(t *testing.T) {
	onOneAndThree(t, func(t *testing.T, nodes []*testNode) {
		makeChannel(t, nodes, "t", "c", 2)
		lead := nodes[leaderOfPartition(t, nodes, "t", 1)]
		producer := nodes[len(nodes)-1].dial(t)
		producer.send("PUB_EXT t 1\n" + sized(withExt(`{"##trace_id":"77","n":3,"s":"\u00e4"}`, "with all")))
		id0, trace, place, size := producer.traced()
		if trace != 77 || place != 0 || size != 1 || id0 != batch.MakeID(1, 0) {
			t.Errorf("PUB_EXT: %v %d %d %d", id0, trace, place, size)
		}
		producer.send("PUB_TRACE t 1\n" + sized(u64(1<<40)+"traced"))
		id1, trace, place, size := producer.traced()
		if trace != 1<<40 || place != 1 || size != 1 || id1 != batch.MakeID(1, 1) {
			t.Errorf("PUB_TRACE: %v %d %d %d", id1, trace, place, size)
		}
		producer.send("PUB t 1\n" + sized("plain"))
		producer.ok()
		producer.send("PUB_EXT t 1\n" + sized(withExt(`{}`, "empty ext")))
		producer.ok()
		producer.send("MPUB_EXT t 1\n" + sized(batchBody(withExt(`{"a":"1"}`, "m1"), withExt(`{}`, "m2"))))
		producer.ok()
		producer.send("MPUB t 1\n" + sized(batchBody("m3")))
		producer.ok()
		producer.send("MPUB_TRACE t 1\n" + sized(batchBody(u64(5)+"m4", u64(6)+"m5")))
		id7, trace, place, size := producer.traced()
		if trace != 0 || place != 7 || size != 2 || id7 != batch.MakeID(1, 7) {
			t.Errorf("MPUB_TRACE: %v %d %d %d", id7, trace, place, size)
		}
		c := lead.dial(t)
		c.identify(`{"feature_negotiation":true,"extend_support":true,"desired_tag":""}`)
		c.send("SUB_ADVANCED t c 1\n")
		c.ok()
		c.send("RDY 1\n")
		for i, want := range []formed{
			{trace: 77, version: 4, ext: `{"##trace_id":"77","n":3,"s":"ä"}`, body: "with all"},
			{trace: 1 << 40, version: 4, ext: `{"##trace_id":"1099511627776"}`, body: "traced"},
			{body: "plain"},
			{version: 4, ext: `{}`, body: "empty ext"},
			{version: 4, ext: `{"a":"1"}`, body: "m1"},
			{version: 4, ext: `{}`, body: "m2"},
			{body: "m3"},
			{trace: 5, version: 4, ext: `{"##trace_id":"5"}`, body: "m4"},
			{trace: 6, version: 4, ext: `{"##trace_id":"6"}`, body: "m5"},
		} {
			got := c.formed(true, true)
			want.id, want.place, want.size, want.attempts = batch.MakeID(1, segment.MsgID(i)), uint64(i), 1, 1
			want.full = got.full
			if got != want {
				t.Errorf("message %d is %+v, want %+v", i, got, want)
			}
			c.send("TOUCH " + got.full + "\nFIN " + got.full + "\n")
		}
		// B96: the message can be read by its id.
		var list PeekList
		lead.ask(t, "GET", "/topic/peek?topic=t&count=1&from="+id1.String(), "", &list)
		if len(list.Messages) != 1 || *list.Messages[0].Body != "traced" || list.Messages[0].Headers[0].Name != extTraceID {
			t.Errorf("message %v is %+v", id1, list)
		}
	})
}

// A stock client on the same connectionless topic sees bodies and hex ids, whatever a producer sent.
func TestYouzanStaysInvisible(t *testing.T) {
	n := startNode(t, node.Options{}, Options{})
	p := n.dial(t)
	p.send("PUB_EXT t 0\n" + sized(withExt(`{"a":"b"}`, "body")))
	p.ok()
	c := n.dial(t)
	c.sub("t", "c")
	c.send("RDY 1\n")
	p.send("PUB_EXT t\n" + sized(withExt(`{"a":"b"}`, "second")))
	p.ok()
	for _, want := range []string{"body", "second"} {
		m := c.message()
		if _, err := batch.ParseID([]byte(m.id)); err != nil || m.body != want {
			t.Errorf("got %+v", m)
		}
		c.send("FIN " + m.id + "\n")
	}
	// nsqd ignores further parameters, and so do we for a stock client.
	p.send("PUB t something else\n" + sized("x") + "MPUB t -\n" + sized(batchBody("y")))
	p.ok()
	p.ok()
	d := n.dial(t)
	d.send("SUB t d what ever\n")
	d.ok()
}

// Binary ids may contain any bytes, including LF and space. B95
func TestYouzanBinaryIDs(t *testing.T) {
	n := startNode(t, node.Options{DefaultPartitions: 1}, Options{})
	p := n.dial(t)
	trace := binary.BigEndian.Uint64([]byte("\n \r\n \n\n "))
	for range 40 { // includes ids whose last byte is LF or space
		p.send("PUB_TRACE t\n" + sized(u64(trace)+"x"))
		p.traced()
	}
	c := n.dial(t)
	c.send("SUB t c 0\n")
	c.ok()
	c.send("RDY 1\n")
	for i := range 40 {
		m := c.formed(false, false)
		if m.id != batch.MakeID(0, segment.MsgID(i)) || m.trace != trace || m.body != "x" {
			t.Fatalf("message %d is %+v", i, m)
		}
		if i%2 == 0 {
			c.send("REQ " + m.full + " 0\n")
			if m = c.formed(false, false); m.attempts != 2 {
				t.Fatalf("requeued %d: %+v", i, m)
			}
		}
		c.send("FIN " + m.full + "\n")
	}
	c.send("FIN " + strings.Repeat("\xff", 16) + "\n")
	c.refusedAs("E_FIN_FAILED")
}

// B57 B58: SUB_ORDERED makes a new channel ordered. Other consumers must then declare that they keep the order.
func TestYouzanOrdered(t *testing.T) {
	onOneAndThree(t, func(t *testing.T, nodes []*testNode) {
		q := makeChannel(t, nodes, "t", "c", 2)
		lead := nodes[leaderOfPartition(t, nodes, "t", 0)]
		c := lead.dial(t)
		c.send("SUB_ORDERED t c 0\n")
		c.ok()
		var s node.ChannelSettings
		nodes[0].ask(t, "GET", "/channel/settings"+q, "", &s)
		if s.Order != node.OrderDeclared || s.Version != 1 {
			t.Errorf("settings after SUB_ORDERED: %+v", s)
		}
		for _, cmd := range []string{"SUB t c", "SUB t c 0", "SUB_ADVANCED t c 0", "SUB_ADVANCED t c"} {
			d := lead.dial(t)
			d.send(cmd + "\n")
			d.refusedAs(codeOrderNeeded)
			d.closed()
		}
		again := lead.dial(t)
		again.send("SUB_ORDERED t c 0\n")
		again.ok()
		p := nodes[len(nodes)-1].dial(t)
		for i := range 20 {
			p.send("PUB t 0\n" + sized(strconv.Itoa(i)))
			p.ok()
		}
		c.send("RDY 10\n")
		for i := range 20 {
			m := c.formed(false, true)
			if m.body != strconv.Itoa(i) || m.place != uint64(i) {
				t.Fatalf("message %d is %+v", i, m)
			}
			if i%5 == 0 {
				c.send("REQ " + m.full + " 1\n")
				if m = c.formed(false, true); m.body != strconv.Itoa(i) || m.attempts != 2 {
					t.Fatalf("after REQ of %d came %+v", i, m)
				}
			}
			if i%7 == 0 {
				c.silent(30 * time.Millisecond)
			}
			c.send("FIN " + m.full + "\n")
		}
		// A subscription does not change a channel that was configured otherwise.
		other := makeChannel(t, nodes, "t", "other", 2)
		nodes[0].ask(t, "POST", "/channel/settings"+other, `{"version":0,"max_in_flight":3}`, &s)
		d := lead.dial(t)
		d.send("SUB_ORDERED t other 0\n")
		d.refusedAs("E_INVALID")
		d.closed()
		e := lead.dial(t)
		e.identify(`{"sample_rate":50}`)
		e.send("SUB_ORDERED t fresh 0\n")
		e.refusedAs("E_INVALID")
		e.closed()
	})
}

// The place in a SUB_ADVANCED moves the channel within its partition, if no other consumer reads that.
func TestYouzanPlaces(t *testing.T) {
	onOneAndThree(t, func(t *testing.T, nodes []*testNode) {
		makeChannel(t, nodes, "t", "c", 2)
		p := nodes[len(nodes)-1].dial(t)
		for i := range 10 {
			for part := range 2 {
				p.send(fmt.Sprintf("PUB t %d\n", part) + sized(fmt.Sprintf("%d-%d", part, i)))
				p.ok()
			}
		}
		leads := [2]*testNode{nodes[leaderOfPartition(t, nodes, "t", 0)], nodes[leaderOfPartition(t, nodes, "t", 1)]}
		waits := func() (count [2]int) {
			var list PeekList
			nodes[0].ask(t, "GET", "/channel/peek?topic=t&channel=c&count=1000", "", &list)
			for _, m := range list.Messages {
				count[m.Partition]++
			}
			return count
		}
		for _, x := range []struct {
			part  int
			place string
			want  [2]int
		}{
			{1, "special:-1", [2]int{10, 0}},
			{1, "virtual_queue:7", [2]int{10, 3}},
			{0, "msgcount:4", [2]int{6, 3}},
			{1, "timestamp:1", [2]int{6, 10}},
			{0, "virtual_queue:9999999", [2]int{0, 10}},
			{0, "timestamp:" + strconv.FormatInt(time.Now().Add(time.Hour).Unix(), 10), [2]int{0, 10}},
		} {
			n := leads[x.part]
			c := n.dial(t)
			c.send(fmt.Sprintf("SUB_ADVANCED t c %d %s\n", x.part, x.place))
			c.ok()
			if got := waits(); got != x.want {
				t.Errorf("%s leaves %v, want %v", x.place, got, x.want)
			}
			d := n.dial(t)
			d.send(fmt.Sprintf("SUB_ADVANCED t c %d virtual_queue:0\n", x.part)) // not the first: the place stays
			d.ok()
			if got := waits(); got != x.want {
				t.Errorf("a second consumer moves it to %v", got)
			}
			c.nc.Close()
			d.nc.Close()
			eventually(t, "both to leave", func() bool { return len(n.topicNow(t, "t").Channels[0].Consumers) == 0 })
		}
		for _, place := range []string{"special:1", "virtual_queue:-1", "virtual_queue", "nothing:1", "timestamp:x"} {
			c := leads[0].dial(t)
			c.send("SUB_ADVANCED t c 0 " + place + "\n")
			c.refusedAs("E_INVALID")
			c.closed()
		}
	})
}

// B61: every topic can carry headers, so only invalid headers are refused.
func TestYouzanBadPublishes(t *testing.T) {
	n := startNode(t, node.Options{DefaultPartitions: 2}, Options{})
	n.post(t, "/topic/create?topic=t&partitions=2", "")
	for _, x := range []struct{ cmd, code string }{
		{"PUB t 2\n" + sized("x"), codeTopicMissing},
		{"MPUB t 2\n" + sized(batchBody("x")), codeTopicMissing},
		{"PUB_EXT t x\n" + sized(withExt("{}", "x")), "E_BAD_PARTITION"},
		{"PUB_EXT t 0\n" + sized("x"), "E_BAD_BODY"},
		{"PUB_EXT t 0\n" + sized(withExt("{}", "")), "E_BAD_BODY"},
		{"PUB_EXT t 0\n" + sized(u16(500)+"{}x"), "E_BAD_BODY"},
		{"PUB_EXT t 0\n" + sized(withExt("[]", "x")), codeBadExt},
		{"PUB_EXT t 0\n" + sized(withExt(`{"a":1`, "x")), codeBadExt},
		{"PUB_EXT t 0\n" + sized(withExt(`{} {}`, "x")), codeBadExt},
		{"PUB_EXT t 0\n" + sized(withExt(`{"##trace_id":7}`, "x")), codeBadExt},
		{"PUB_EXT t 0\n" + sized(withExt(`{"penstock-origin-id":"0"}`, "x")), codeBadExt},
		{"PUB_EXT t 0\n" + sized(withExt(`{"":"0"}`, "x")), codeBadExt},
		{"PUB_TRACE t 0\n" + sized(u64(1)), "E_BAD_BODY"},
		{"MPUB_TRACE t 0\n" + sized(batchBody(u64(1))), "E_BAD_BODY"},
		{"MPUB_EXT t 0\n" + sized(batchBody(withExt("{}", "ok"), "x")), "E_BAD_BODY"},
	} {
		c := n.dial(t)
		c.send(x.cmd)
		c.refusedAs(x.code)
		c.closed()
	}
	if s := n.topicNow(t, "t"); s.MessageCount != 0 {
		t.Errorf("%d messages of refused commands are stored", s.MessageCount)
	}
	for _, cmd := range []string{"SUB t c 2\n", "SUB_ADVANCED t c 2\n", "SUB_ORDERED t c 2\n"} {
		c := n.dial(t)
		c.send(cmd)
		c.refusedAs(codeTopicMissing)
		c.closed()
	}
	off := startNode(t, node.Options{DisableAutoCreate: true}, Options{})
	for _, cmd := range []string{"SUB t c 0\n", "PUB t 0\n" + sized("x"), "PUB_TRACE t 0\n" + sized(u64(1)+"x")} {
		c := off.dial(t)
		c.send(cmd)
		c.refusedAs(codeTopicMissing)
		c.closed()
	}
}

// youzanLookup is the part of the answer to /lookup that youzan's clients read.
type youzanLookup struct {
	Partitions map[string]lookup.Producer `json:"partitions"`
	Meta       json.RawMessage            `json:"meta"`
	Producers  []lookup.Producer          `json:"producers"`
}

// In a cluster a partition is read at its leader and published to through any node. Lookups say which node leads it.
func TestYouzanCluster(t *testing.T) {
	nodes := startCluster(t, 3, Options{BroadcastAddress: "127.0.0.1"})
	makeChannel(t, nodes, "t", "c", 3)
	for part := range 3 {
		lead := leaderOfPartition(t, nodes, "t", part)
		for i, n := range nodes {
			p := n.dial(t)
			p.send(fmt.Sprintf("PUB_TRACE t %d\n", part) + sized(u64(9)+"x"))
			if id, _, place, _ := p.traced(); id.Partition() != uint32(part) || place != uint64(i) {
				t.Errorf("message %d of partition %d has id %v, place %d", i, part, id, place)
			}
			c := n.dial(t)
			c.send(fmt.Sprintf("SUB t part%d %d\n", part, part))
			if i == lead {
				c.ok()
			} else {
				c.refusedAs(codeNotLeader)
				c.closed()
			}
			for _, access := range []string{"r", "w"} {
				var got youzanLookup
				reply, body := n.lookupDo(t, "GET", "/lookup?topic=t&metainfo=true&access="+access)
				if err := json.Unmarshal([]byte(body), &got); reply.StatusCode != 200 || err != nil {
					t.Fatal(reply.StatusCode, body, err)
				}
				if p := got.Partitions[strconv.Itoa(part)]; p.TCPPort != listen.Port(nodes[lead].TCPAddr()) ||
					len(got.Partitions) != 3 {
					t.Errorf("partition %d is led by %d, and told as %+v", part, listen.Port(nodes[lead].TCPAddr()), got.Partitions)
				}
				want := `{"partition_num":3,"replica":3,"extend_support":true,"ordered":false,"multi_part":true}`
				if string(got.Meta) != want {
					t.Errorf("meta is %s", got.Meta)
				}
			}
			_, body := n.lookupDo(t, "GET", fmt.Sprintf("/lookup?topic=t&access=r&partition=%d", part))
			var got youzanLookup
			if err := json.Unmarshal([]byte(body), &got); err != nil || len(got.Partitions) != 1 || len(got.Producers) != 1 ||
				got.Meta != nil {
				t.Errorf("one partition is %s %v", body, err)
			}
		}
	}
	_, body := nodes[0].lookupDo(t, "GET", "/lookup?topic=t")
	if strings.Contains(body, "partitions") || strings.Contains(body, "meta") {
		t.Errorf("a stock client is told %s", body)
	}
	if reply, body := nodes[0].lookupDo(t, "GET", "/lookup?topic=t&access=x"); reply.StatusCode != 400 ||
		!strings.Contains(body, "INVALID_ACCESS_MODE") {
		t.Errorf("%d %s", reply.StatusCode, body)
	}
	if reply, body := nodes[0].lookupDo(t, "GET", "/lookup?topic=t&partition=x"); reply.StatusCode != 400 {
		t.Errorf("%d %s", reply.StatusCode, body)
	}
}

// youzan's error codes are for its own clients. Without a named partition or one of their verbs, errors are nsqd's.
func TestYouzanCodes(t *testing.T) {
	named, stock := &pending{verb: verbPub, partitionArgs: partitionArgs{addressed: true}}, &pending{verb: verbPub}
	ext := &pending{verb: verbMpubExt}
	for _, x := range []struct {
		p        *pending
		err      error
		want     string
		survives bool
	}{
		{named, node.ErrNoLeader, "E_FAILED_ON_NOT_LEADER PUB failed ", true},
		{named, fmt.Errorf("here: %w", node.ErrMoved), "E_FAILED_ON_NOT_LEADER PUB failed ", true},
		{named, node.ErrNoQuorum, "E_FAILED_ON_NOT_WRITABLE PUB failed ", true},
		{ext, node.ErrNoSpace, "E_FAILED_ON_NOT_WRITABLE MPUB_EXT failed ", true},
		{named, node.ErrNoPartition, "E_TOPIC_NOT_EXIST PUB failed ", false},
		{ext, node.ErrHeaders, "E_INVALID_JSON_HEADER MPUB_EXT failed ", false},
		{ext, node.ErrUnknown, "E_MPUB_FAILED MPUB failed ", false},
		{named, node.ErrClosed, "E_PUB_FAILED PUB failed exiting", false},
		{stock, node.ErrNoLeader, "E_PUB_FAILED PUB failed ", false},
		{stock, node.ErrNoQuorum, "E_PUB_FAILED PUB failed ", false},
		{stock, node.ErrNoTopic, "E_PUB_FAILED PUB failed ", false},
	} {
		if got := publishRefused(x.p, x.err); !strings.HasPrefix(got, x.want) || x.p.survives(x.err) != x.survives {
			t.Errorf("%v becomes %q, and the connection survives: %v", x.err, got, x.p.survives(x.err))
		}
	}
}

// FuzzExt: any JSON object comes back with the same meaning, and nothing else is accepted.
func FuzzExt(f *testing.F) {
	for _, s := range []string{
		`{}`, `{"a":"b"}`, `{"a":1,"b":[true,null],"c":{"d":"e"}}`, `{"##client_dispatch_tag":"x","tag":"y"}`,
		`{"##trace_id":"1"}`,
		`{"a":"1","a":2}`, `{"##json":"x","a":1}`, `[]`, `{"a":"\u0000\"\\"}`, `{"tag":"x"}`,
		`{"header-000" : "000000000001", "##client_dispatch_tag":"x", "long":"ä and more than eight bytes"}`,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, ext []byte) {
		headers, trace, traced, err := extHeaders(ext)
		if err != nil {
			return
		}
		if len(ext) > 0 { // both parsers agree
			slow, slowTrace, slowTraced, err := decodeExt(ext)
			same := slices.EqualFunc(headers, slow, func(a, b node.Header) bool {
				return bytes.Equal(a.Key, b.Key) && bytes.Equal(a.Value, b.Value)
			})
			if err != nil || !same || slowTrace != trace || slowTraced != traced {
				t.Fatalf("%q is %q (%d, %v), decoded whole %q (%d, %v): %v",
					ext, headers, trace, traced, slow, slowTrace, slowTraced, err)
			}
		}
		if got := traceOf(headers); got != trace {
			t.Errorf("trace id %d is read as %d", trace, got)
		}
		if len(ext) == 0 {
			return
		}
		var want, got map[string]any
		if json.Unmarshal(ext, &want) != nil {
			t.Fatalf("%q is taken", ext)
		}
		back := appendExt(nil, headers)
		if err := json.Unmarshal(back, &got); err != nil {
			t.Fatalf("%q comes back as %q: %v", ext, back, err)
		}
		delete(want, extRawNames)
		w, _ := json.Marshal(want)
		g, _ := json.Marshal(got)
		if string(w) != string(g) {
			t.Errorf("%q comes back as %q (%s)", ext, back, hex.EncodeToString(back))
		}
	})
}
