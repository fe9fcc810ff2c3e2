package server

import (
	"fmt"
	"maps"
	"net/url"
	"strings"
	"testing"

	"penstock/internal/server/publish"
	"penstock/tests/support/nsqtest"
)

// PUB_EXTs that arrive together are stored together, and each is answered. One with a trace id, and one that is
// refused, is handled separately.
func TestExtRuns(t *testing.T) {
	onOneAndThree(t, func(t *testing.T, nodes []*testNode) {
		makeChannel(t, nodes, "t", "c", 1)
		c := nodes[len(nodes)-1].dial(t)
		pubExt := func(ext, body string) string { return "PUB_EXT t 0\n" + nsqtest.Sized(nsqtest.WithExt(ext, body)) }
		c.Send(pubExt(`{"a":"1"}`, "m0") + pubExt(``, "m1") +
			pubExt(`{"##trace_id":"9"}`, "m2") + pubExt(`{"a":"\n"}`, "m3") +
			pubExt(`{}`, "m4") + pubExt(`{"a":"5","b":"6"}`, "m5") +
			"PUB t 0\n" + nsqtest.Sized("m6") + pubExt(`{"penstock-x":"1"}`, "m7"))
		c.OK()
		c.OK()
		if id, trace, place, _ := readTraced(c); trace != 9 || place != 2 {
			t.Errorf("the traced one: %v, trace id %d, place %d", id, trace, place)
		}
		for range 4 {
			c.OK()
		}
		refusedAs(c, publish.CodeBadExt) // the name is reserved by the engine; the messages before it are stored

		lead := nodes[leaderOfPartition(t, nodes, "t", 0)]
		r := lead.dial(t)
		r.Identify(`{"extend_support":true}`)
		r.Send("SUB t c\n")
		r.OK()
		r.Send("RDY 100\n")
		for i, want := range []string{`{"a":"1"}`, ``, `{"##trace_id":"9"}`, `{"a":"\n"}`, `{}`, `{"a":"5","b":"6"}`, ``} {
			m := readFormed(r, true, false)
			if m.ext != want || m.body != fmt.Sprint("m", i) {
				t.Errorf("message %d is %q with %q, want %q", i, m.body, m.ext, want)
			}
			r.Send("FIN " + m.full + "\n")
		}
	})
}

// A message whose ext has a key goes to the partition of the key, like one that is published in another way with that
// key: together and alone, in a batch, over HTTP, and with escapes. A partition that is named comes first.
func TestExtKeyChoosesThePartition(t *testing.T) {
	onOneAndThree(t, func(t *testing.T, nodes []*testNode) {
		makeChannel(t, nodes, "t", "c", 8)
		n := nodes[len(nodes)-1]
		topic, _ := n.e.Catalog().LookupTopic("t")
		key, other := "customer-7", "b"
		at := topic.PartitionFor([]byte(key))
		for i := 0; topic.PartitionFor([]byte(other)) == at; i++ {
			other = fmt.Sprint("b", i)
		}
		ext, another := `{"key":"customer-7"}`, `{"key":"`+other+`"}`
		c := n.dial(t)
		for range 4 {
			c.Send("PUB_EXT t\n" + nsqtest.Sized(nsqtest.WithExt(ext, "together")) + "PUB_EXT t\n" +
				nsqtest.Sized(nsqtest.WithExt(another, "other")) +
				"PUB_EXT t\n" + nsqtest.Sized(nsqtest.WithExt(`{"a":"1"}`, "none")) + "PUB_EXT t\n" +
				nsqtest.Sized(nsqtest.WithExt(ext, "together")))
			for range 4 {
				c.OK()
			}
			c.Send("PUB_EXT t\n" + nsqtest.Sized(nsqtest.WithExt(`{"key":"customer\u002d7"}`, "alone")))
			c.OK()
			c.Send("MPUB_EXT t\n" + nsqtest.Sized(nsqtest.BatchBody(nsqtest.WithExt(ext, "batch"),
				nsqtest.WithExt(`{}`, "batch"))))
			c.OK()
			c.Send("MPUB_EXT t\n" + nsqtest.Sized(nsqtest.BatchBody(nsqtest.WithExt(ext, "mixed"),
				nsqtest.WithExt(another, "mixed"))))
			c.OK()
			if status, text := n.do(t, "POST", "/pub_ext?topic=t&ext="+url.QueryEscape(ext), "http"); status != 200 {
				t.Fatal(status, text)
			}
		}
		c.Send(fmt.Sprintf("PUB_EXT t %d\n%s", (at+1)%8, nsqtest.Sized(nsqtest.WithExt(ext, "named"))))
		c.OK()
		count := map[string]int{}
		for p := range 8 {
			for _, text := range storedIn(t, n, p) {
				body, _, _ := strings.Cut(text, " ")
				count[body]++
				switch body {
				case "none", "mixed":
				case "named":
					if p != (at+1)%8 {
						t.Errorf("partition %d has %q", p, text)
					}
				case "other":
					if p != topic.PartitionFor([]byte(other)) {
						t.Errorf("partition %d has %q", p, text)
					}
				default:
					if p != at {
						t.Errorf("partition %d has %q, whose key belongs to %d", p, text, at)
					}
				}
			}
		}
		want := map[string]int{
			"together": 8, "other": 4, "none": 4, "alone": 4, "batch": 8, "mixed": 8, "http": 4, "named": 1,
		}
		if !maps.Equal(count, want) {
			t.Errorf("stored are %v, want %v", count, want)
		}
	})
}
