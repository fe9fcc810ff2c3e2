package server

import (
	"encoding/json"
	"net/url"
	"slices"
	"strings"
	"testing"

	"penstock/internal/node"
	"penstock/internal/server/api"
	"penstock/internal/server/publish"
)

// postExt sends a POST with headers X-NSQEXT-*, given as names and values.
func (n *testNode) postExt(t *testing.T, path, body string, headers ...string) (int, string) {
	t.Helper()
	headers = slices.Clone(headers)
	for i := 0; i < len(headers); i += 2 {
		headers[i] = "X-NSQEXT-" + headers[i]
	}
	return n.postWith(t, path, body, headers...)
}

// The ext of a /pub_ext reaches consumers like that of a PUB_EXT. The request's headers take precedence over its
// parameter ext. A message with a trace id, and one from /pubtrace, is answered with its place. Any node accepts
// messages for any partition.
func TestYouzanHTTPPublish(t *testing.T) {
	onOneAndThree(t, func(t *testing.T, nodes []*testNode) {
		makeChannel(t, nodes, "t", "c", 2)
		at := nodes[leaderOfPartition(t, nodes, "t", 1)]
		c := at.dial(t)
		c.Identify(`{"extend_support":true}`)
		c.Send("SUB_ADVANCED t c 1\nRDY 1\n")
		c.OK()
		next := func(body, ext string, trace uint64) formed {
			t.Helper()
			m := readFormed(c, true, true)
			if m.body != body || m.ext != ext || m.trace != trace {
				t.Errorf("got %+v, want %s %s %d", m, body, ext, trace)
			}
			c.Send("FIN " + m.full + "\n")
			return m
		}
		for i, x := range []struct {
			path, ext string
			headers   []string
			want      string
			trace     uint64
		}{
			{"/pub_ext", `{"z":"+ %41","a":1}`, nil, `{"z":"+ %41","a":1}`, 0},
			{"/pub_ext", url.QueryEscape(`{"a":"b c"}`), nil, `{"a":"b c"}`, 0},
			{
				"/pub_ext", ` {"a":"b","key-test":"old"} `,
				[]string{"Key-Test", `new "value"`},
				`{"a":"b","key-test":"new \"value\""}`, 0,
			},
			{"/pub_ext", `{}`, nil, `{}`, 0},
			{"/pub_ext", `{"##trace_id":"7"}`, nil, `{"##trace_id":"7"}`, 7},
			{"/pub_ext", `{"##trace_id":"7"}`, []string{"##trace_id", "8"}, `{"##trace_id":"8"}`, 8},
			{"/pubtrace", "9", nil, `{"##trace_id":"9"}`, 9},
		} {
			q := "?topic=t&partition=1&ext="
			if x.path == "/pubtrace" {
				q = "?topic=t&partition=1&trace_id="
			}
			code, body := nodes[i%len(nodes)].postExt(t, x.path+q+url.QueryEscape(x.ext), "m", x.headers...)
			m := next("m", x.want, x.trace)
			if x.trace == 0 {
				if code != 200 || body != "OK" {
					t.Errorf("%s: %d %s", x.ext, code, body)
				}
				continue
			}
			var got api.TracedReply
			want := api.TracedReply{
				Status: "OK", ID: uint64(m.id), TraceID: x.want[len(`{"##trace_id":"`) : len(x.want)-2], Place: m.place,
				Size: m.size,
			}
			if err := json.Unmarshal([]byte(body), &got); code != 200 || err != nil || got != want {
				t.Errorf("%s: %d %s, want %+v", x.ext, code, body, want)
			}
		}
	})
}

// A request that is refused stores nothing and creates no topic.
func TestYouzanHTTPRefused(t *testing.T) {
	n := startNode(t, node.Options{}, Options{})
	n.post(t, "/topic/create?topic=there", "")
	object := "&ext=" + url.QueryEscape(`{"a":"b"}`)
	for _, x := range []struct {
		path, body string
		status     int
		code       string
	}{
		{"/pub_ext?topic=t", "x", 400, publish.CodeBadExt},
		{"/pub_ext?topic=t&ext=", "x", 400, publish.CodeBadExt},
		{"/pub_ext?topic=t&ext=null", "x", 400, publish.CodeBadExt},
		{"/pub_ext?topic=t&ext=" + url.QueryEscape(`{this is invalid`), "x", 400, publish.CodeBadExt},
		{"/pub_ext?topic=t&ext=" + url.QueryEscape(`["a"]`), "x", 400, publish.CodeBadExt},
		{
			"/pub_ext?topic=there&ext=" + url.QueryEscape(`{"a":"`+strings.Repeat("x", 40<<10)+`"}`), "x", 400,
			publish.CodeBadExt,
		},
		{"/pub_ext?topic=t&ext=" + url.QueryEscape(`{"##trace_id":7}`), "x", 400, "INVALID_TRACE_ID"},
		{"/pub_ext?topic=t&ext=" + url.QueryEscape(`{"##trace_id":"x"}`), "x", 400, "INVALID_TRACE_ID"},
		{"/pub_ext?topic=t" + object, "", 406, "MSG_EMPTY"},
		{"/pub_ext?topic=t" + object, strings.Repeat("x", 1<<20+1), 413, "MSG_TOO_BIG"},
		{"/pub_ext?topic=a:b" + object, "x", 400, "INVALID_ARG_TOPIC"},
		{"/pub_ext?x=y" + object, "x", 400, "MISSING_ARG_TOPIC"},
		{"/pub_ext?topic=t&partition=x" + object, "x", 400, "INVALID_ARG_TOPIC_PARTITION"},
		{"/pub_ext?topic=there&partition=1" + object, "x", 404, publish.CodeTopicMissing},
		{"/pubtrace?topic=t", "x", 400, "INVALID_TRACE_ID"},
	} {
		code, body := n.do(t, "POST", x.path, x.body)
		var got map[string]string
		if err := json.Unmarshal([]byte(body), &got); code != x.status || err != nil || got["message"] != x.code {
			t.Errorf("%.80s: %d %s, want %d %s", x.path, code, body, x.status, x.code)
		}
	}
	if s := n.e.Stats("t", ""); len(s) != 0 {
		t.Errorf("a refused request made the topic: %+v", s)
	}
	if s := n.e.Stats("there", ""); len(s) != 1 || s[0].MessageCount != 0 {
		t.Errorf("a refused request stored something: %+v", s)
	}
}
