package server

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"penstock/batch"
	"penstock/internal/node"
	"penstock/internal/node/fold"
	"penstock/internal/server/api"
	"penstock/internal/server/listen"
	"penstock/internal/server/lookup"
	"penstock/internal/server/publish"
	"penstock/segment"
	"penstock/tests/support/nsqtest"
)

// The commands and answers in these tests are, byte for byte, those that youzan's Go client writes and reads.

// readFormed is a message as decoded by a client of youzan's.
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

func readFormed(c *nsqtest.Client, ext, detail bool) formed {
	c.T.Helper()
	k, d, err := c.Frame(nsqtest.Patience)
	if err != nil || k != nsqtest.FrameMessage || len(d) < nsqtest.MessageHeaderBytes {
		c.T.Fatalf("want a message, got %d %.200q, %v", k, d, err)
	}
	m := formed{
		attempts: int(binary.BigEndian.Uint16(d[8:])), full: string(d[10:26]),
		id: batch.ID(binary.BigEndian.Uint64(d[10:])), trace: binary.BigEndian.Uint64(d[18:]),
	}
	d = d[nsqtest.MessageHeaderBytes:]
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

// readTraced reads the answer to a command with a trace id.
func readTraced(c *nsqtest.Client) (id batch.ID, trace, place uint64, size uint32) {
	c.T.Helper()
	k, d, err := c.Frame(nsqtest.Patience)
	if err != nil || k != nsqtest.FrameResponse || len(d) != 2+16+8+4 || string(d[:2]) != "OK" {
		c.T.Fatalf("want a traced OK, got %d %q, %v", k, d, err)
	}
	number := binary.BigEndian
	return batch.ID(number.Uint64(d[2:])), number.Uint64(d[10:]), number.Uint64(d[18:]), number.Uint32(d[26:])
}

// refusedAs expects an error frame with this code.
func refusedAs(c *nsqtest.Client, code string) {
	c.T.Helper()
	if k, d, err := c.Frame(nsqtest.Patience); err != nil || k != nsqtest.FrameError ||
		!strings.HasPrefix(string(d), code+" ") {
		c.T.Fatalf("want %s, got %d %q, %v", code, k, d, err)
	}
}

// leaderOfPartition returns the index of the node that leads the partition.
func leaderOfPartition(t *testing.T, nodes []*testNode, topic string, partition int) int {
	t.Helper()
	at := -1
	nsqtest.Eventually(t, "a leader", func() bool {
		at = slices.IndexFunc(nodes, func(n *testNode) bool {
			_, ok := n.e.Catalog().LookupTopic(topic)
			return ok && n.leads(topic, partition)
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
		producer.Send("PUB_EXT t 1\n" + nsqtest.Sized(nsqtest.WithExt(`{"##trace_id":"77","n":3,"s":"\u00e4"}`, "with all")))
		id0, trace, place, size := readTraced(producer)
		if trace != 77 || place != 0 || size != 1 || id0 != batch.MakeID(1, 0) {
			t.Errorf("PUB_EXT: %v %d %d %d", id0, trace, place, size)
		}
		producer.Send("PUB_TRACE t 1\n" + nsqtest.Sized(nsqtest.U64(1<<40)+"traced"))
		id1, trace, place, size := readTraced(producer)
		if trace != 1<<40 || place != 1 || size != 1 || id1 != batch.MakeID(1, 1) {
			t.Errorf("PUB_TRACE: %v %d %d %d", id1, trace, place, size)
		}
		producer.Send("PUB t 1\n" + nsqtest.Sized("plain"))
		producer.OK()
		producer.Send("PUB_EXT t 1\n" + nsqtest.Sized(nsqtest.WithExt(`{}`, "empty ext")))
		producer.OK()
		producer.Send("MPUB_EXT t 1\n" + nsqtest.Sized(nsqtest.BatchBody(nsqtest.WithExt(`{"a":"1"}`, "m1"),
			nsqtest.WithExt(`{}`, "m2"))))
		producer.OK()
		producer.Send("MPUB t 1\n" + nsqtest.Sized(nsqtest.BatchBody("m3")))
		producer.OK()
		producer.Send("MPUB_TRACE t 1\n" + nsqtest.Sized(nsqtest.BatchBody(nsqtest.U64(5)+"m4", nsqtest.U64(6)+"m5")))
		id7, trace, place, size := readTraced(producer)
		if trace != 0 || place != 7 || size != 2 || id7 != batch.MakeID(1, 7) {
			t.Errorf("MPUB_TRACE: %v %d %d %d", id7, trace, place, size)
		}
		c := lead.dial(t)
		c.Identify(`{"feature_negotiation":true,"extend_support":true,"desired_tag":""}`)
		c.Send("SUB_ADVANCED t c 1\n")
		c.OK()
		c.Send("RDY 1\n")
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
			got := readFormed(c, true, true)
			want.id, want.place, want.size, want.attempts = batch.MakeID(1, segment.MsgID(i)), uint64(i), 1, 1
			want.full = got.full
			if got != want {
				t.Errorf("message %d is %+v, want %+v", i, got, want)
			}
			c.Send("TOUCH " + got.full + "\nFIN " + got.full + "\n")
		}
		// B96: the message can be read by its id.
		var list api.PeekList
		lead.ask(t, "GET", "/topic/peek?topic=t&count=1&from="+id1.String(), "", &list)
		if len(list.Messages) != 1 || *list.Messages[0].Body != "traced" ||
			list.Messages[0].Headers[0].Name != publish.ExtTraceID {
			t.Errorf("message %v is %+v", id1, list)
		}
	})
}

// A stock client on the same connectionless topic sees bodies and hex ids, whatever a producer sent.
func TestYouzanStaysInvisible(t *testing.T) {
	n := startNode(t, node.Options{}, Options{})
	p := n.dial(t)
	p.Send("PUB_EXT t 0\n" + nsqtest.Sized(nsqtest.WithExt(`{"a":"b"}`, "body")))
	p.OK()
	c := n.dial(t)
	c.Sub("t", "c")
	c.Send("RDY 1\n")
	p.Send("PUB_EXT t\n" + nsqtest.Sized(nsqtest.WithExt(`{"a":"b"}`, "second")))
	p.OK()
	for _, want := range []string{"body", "second"} {
		m := c.Message()
		if _, err := batch.ParseID([]byte(m.ID)); err != nil || m.Body != want {
			t.Errorf("got %+v", m)
		}
		c.Send("FIN " + m.ID + "\n")
	}
	// nsqd ignores further parameters, and so do we for a stock client.
	p.Send("PUB t something else\n" + nsqtest.Sized("x") + "MPUB t -\n" + nsqtest.Sized(nsqtest.BatchBody("y")))
	p.OK()
	p.OK()
	d := n.dial(t)
	d.Send("SUB t d what ever\n")
	d.OK()
}

// Binary ids may contain any bytes, including LF and space. B95
func TestYouzanBinaryIDs(t *testing.T) {
	n := startNode(t, node.Options{DefaultPartitions: 1}, Options{})
	p := n.dial(t)
	trace := binary.BigEndian.Uint64([]byte("\n \r\n \n\n "))
	for range 40 { // includes ids whose last byte is LF or space
		p.Send("PUB_TRACE t\n" + nsqtest.Sized(nsqtest.U64(trace)+"x"))
		readTraced(p)
	}
	c := n.dial(t)
	c.Send("SUB t c 0\n")
	c.OK()
	c.Send("RDY 1\n")
	for i := range 40 {
		m := readFormed(c, false, false)
		if m.id != batch.MakeID(0, segment.MsgID(i)) || m.trace != trace || m.body != "x" {
			t.Fatalf("message %d is %+v", i, m)
		}
		if i%2 == 0 {
			c.Send("REQ " + m.full + " 0\n")
			if m = readFormed(c, false, false); m.attempts != 2 {
				t.Fatalf("requeued %d: %+v", i, m)
			}
		}
		c.Send("FIN " + m.full + "\n")
	}
	c.Send("FIN " + strings.Repeat("\xff", 16) + "\n")
	refusedAs(c, "E_FIN_FAILED")
}

// B57 B58: SUB_ORDERED makes a new channel ordered. Other consumers must then declare that they keep the order.
func TestYouzanOrdered(t *testing.T) {
	onOneAndThree(t, func(t *testing.T, nodes []*testNode) {
		q := makeChannel(t, nodes, "t", "c", 2)
		lead := nodes[leaderOfPartition(t, nodes, "t", 0)]
		c := lead.dial(t)
		c.Send("SUB_ORDERED t c 0\n")
		c.OK()
		var s fold.ChannelSettings
		nodes[0].ask(t, "GET", "/channel/settings"+q, "", &s)
		if s.Order != fold.OrderDeclared || s.Version != 1 {
			t.Errorf("settings after SUB_ORDERED: %+v", s)
		}
		for _, cmd := range []string{"SUB t c", "SUB t c 0", "SUB_ADVANCED t c 0", "SUB_ADVANCED t c"} {
			d := lead.dial(t)
			d.Send(cmd + "\n")
			refusedAs(d, publish.CodeOrderNeeded)
			d.Closed()
		}
		again := lead.dial(t)
		again.Send("SUB_ORDERED t c 0\n")
		again.OK()
		p := nodes[len(nodes)-1].dial(t)
		for i := range 20 {
			p.Send("PUB t 0\n" + nsqtest.Sized(strconv.Itoa(i)))
			p.OK()
		}
		c.Send("RDY 10\n")
		for i := range 20 {
			m := readFormed(c, false, true)
			if m.body != strconv.Itoa(i) || m.place != uint64(i) {
				t.Fatalf("message %d is %+v", i, m)
			}
			if i%5 == 0 {
				c.Send("REQ " + m.full + " 1\n")
				if m = readFormed(c, false, true); m.body != strconv.Itoa(i) || m.attempts != 2 {
					t.Fatalf("after REQ of %d came %+v", i, m)
				}
			}
			if i%7 == 0 {
				c.Silent(30 * time.Millisecond)
			}
			c.Send("FIN " + m.full + "\n")
		}
		// A subscription does not change a channel that was configured otherwise.
		other := makeChannel(t, nodes, "t", "other", 2)
		nodes[0].ask(t, "POST", "/channel/settings"+other, `{"version":0,"max_in_flight":3}`, &s)
		d := lead.dial(t)
		d.Send("SUB_ORDERED t other 0\n")
		refusedAs(d, "E_INVALID")
		d.Closed()
		e := lead.dial(t)
		e.Identify(`{"sample_rate":50}`)
		e.Send("SUB_ORDERED t fresh 0\n")
		refusedAs(e, "E_INVALID")
		e.Closed()
	})
}

// The place in a SUB_ADVANCED moves the channel within its partition, if no other consumer reads that.
func TestYouzanPlaces(t *testing.T) {
	onOneAndThree(t, func(t *testing.T, nodes []*testNode) {
		makeChannel(t, nodes, "t", "c", 2)
		p := nodes[len(nodes)-1].dial(t)
		for i := range 10 {
			for part := range 2 {
				p.Send(fmt.Sprintf("PUB t %d\n", part) + nsqtest.Sized(fmt.Sprintf("%d-%d", part, i)))
				p.OK()
			}
		}
		leads := [2]*testNode{nodes[leaderOfPartition(t, nodes, "t", 0)], nodes[leaderOfPartition(t, nodes, "t", 1)]}
		waits := func() (count [2]int) {
			var list api.PeekList
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
			c.Send(fmt.Sprintf("SUB_ADVANCED t c %d %s\n", x.part, x.place))
			c.OK()
			if got := waits(); got != x.want {
				t.Errorf("%s leaves %v, want %v", x.place, got, x.want)
			}
			d := n.dial(t)
			d.Send(fmt.Sprintf("SUB_ADVANCED t c %d virtual_queue:0\n", x.part)) // not the first: the place stays
			d.OK()
			if got := waits(); got != x.want {
				t.Errorf("a second consumer moves it to %v", got)
			}
			c.Conn.Close()
			d.Conn.Close()
			nsqtest.Eventually(t, "both to leave", func() bool { return len(n.topicNow(t, "t").Channels[0].Consumers) == 0 })
		}
		for _, place := range []string{"special:1", "virtual_queue:-1", "virtual_queue", "nothing:1", "timestamp:x"} {
			c := leads[0].dial(t)
			c.Send("SUB_ADVANCED t c 0 " + place + "\n")
			refusedAs(c, "E_INVALID")
			c.Closed()
		}
	})
}

// B61: every topic can carry headers, so only invalid headers are refused.
func TestYouzanBadPublishes(t *testing.T) {
	n := startNode(t, node.Options{DefaultPartitions: 2}, Options{})
	n.post(t, "/topic/create?topic=t&partitions=2", "")
	for _, x := range []struct{ cmd, code string }{
		{"PUB t 2\n" + nsqtest.Sized("x"), publish.CodeTopicMissing},
		{"MPUB t 2\n" + nsqtest.Sized(nsqtest.BatchBody("x")), publish.CodeTopicMissing},
		{"PUB_EXT t x\n" + nsqtest.Sized(nsqtest.WithExt("{}", "x")), "E_BAD_PARTITION"},
		{"PUB_EXT t 0\n" + nsqtest.Sized("x"), "E_BAD_BODY"},
		{"PUB_EXT t 0\n" + nsqtest.Sized(nsqtest.WithExt("{}", "")), "E_BAD_BODY"},
		{"PUB_EXT t 0\n" + nsqtest.Sized(nsqtest.U16(500)+"{}x"), "E_BAD_BODY"},
		{"PUB_EXT t 0\n" + nsqtest.Sized(nsqtest.WithExt("[]", "x")), publish.CodeBadExt},
		{"PUB_EXT t 0\n" + nsqtest.Sized(nsqtest.WithExt(`{"a":1`, "x")), publish.CodeBadExt},
		{"PUB_EXT t 0\n" + nsqtest.Sized(nsqtest.WithExt(`{} {}`, "x")), publish.CodeBadExt},
		{"PUB_EXT t 0\n" + nsqtest.Sized(nsqtest.WithExt(`{"##trace_id":7}`, "x")), publish.CodeBadExt},
		{"PUB_EXT t 0\n" + nsqtest.Sized(nsqtest.WithExt(`{"penstock-origin-id":"0"}`, "x")), publish.CodeBadExt},
		{"PUB_EXT t 0\n" + nsqtest.Sized(nsqtest.WithExt(`{"":"0"}`, "x")), publish.CodeBadExt},
		{"PUB_TRACE t 0\n" + nsqtest.Sized(nsqtest.U64(1)), "E_BAD_BODY"},
		{"MPUB_TRACE t 0\n" + nsqtest.Sized(nsqtest.BatchBody(nsqtest.U64(1))), "E_BAD_BODY"},
		{"MPUB_EXT t 0\n" + nsqtest.Sized(nsqtest.BatchBody(nsqtest.WithExt("{}", "ok"), "x")), "E_BAD_BODY"},
	} {
		c := n.dial(t)
		c.Send(x.cmd)
		refusedAs(c, x.code)
		c.Closed()
	}
	if s := n.topicNow(t, "t"); s.MessageCount != 0 {
		t.Errorf("%d messages of refused commands are stored", s.MessageCount)
	}
	for _, cmd := range []string{"SUB t c 2\n", "SUB_ADVANCED t c 2\n", "SUB_ORDERED t c 2\n"} {
		c := n.dial(t)
		c.Send(cmd)
		refusedAs(c, publish.CodeTopicMissing)
		c.Closed()
	}
	off := startNode(t, node.Options{DisableAutoCreate: true}, Options{})
	for _, cmd := range []string{"SUB t c 0\n", "PUB t 0\n" + nsqtest.Sized("x"), "PUB_TRACE t 0\n" +
		nsqtest.Sized(nsqtest.U64(1)+"x")} {
		c := off.dial(t)
		c.Send(cmd)
		refusedAs(c, publish.CodeTopicMissing)
		c.Closed()
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
			p.Send(fmt.Sprintf("PUB_TRACE t %d\n", part) + nsqtest.Sized(nsqtest.U64(9)+"x"))
			if id, _, place, _ := readTraced(p); id.Partition() != uint32(part) || place != uint64(i) {
				t.Errorf("message %d of partition %d has id %v, place %d", i, part, id, place)
			}
			c := n.dial(t)
			c.Send(fmt.Sprintf("SUB t part%d %d\n", part, part))
			if i == lead {
				c.OK()
			} else {
				refusedAs(c, publish.CodeNotLeader)
				c.Closed()
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
