package server

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"penstock/internal/node"
	"penstock/internal/server/api"
	"penstock/internal/server/audit"
	"penstock/internal/server/auth"
	"penstock/internal/server/nsq"
	"penstock/tests/support/authtest"
	"penstock/tests/support/nsqtest"
)

// O5. Every change and every refusal, through HTTP and the NSQ protocol, is an entry that says who asked for what, and
// a line in the log; publishing is none. No entry has a secret.
func TestAudit(t *testing.T) {
	t.Parallel()
	tokens := t.TempDir() + "/tokens.toml"
	authtest.Write(t, tokens,
		authtest.Token("ann", "s3cret-ann", `permissions = ["admin", "publish"]`+"\n"+`topics = ["*"]`)+
			authtest.Token("bob", "s3cret-bob", `permissions = ["publish", "subscribe"]`+"\n"+`topics = ["t"]`))
	var log syncBuffer
	n := startNode(t, node.Options{}, Options{
		Auth: auth.Options{File: tokens}, Logger: slog.New(slog.NewTextHandler(&log, nil)),
	})
	for _, x := range []struct{ method, path, token string }{
		{"POST", "/topic/create?topic=t", "s3cret-ann"},
		{"POST", "/pub?topic=t", "s3cret-bob"},
		{"POST", "/topic/delete?topic=t", "s3cret-bob"},
		{"POST", "/topic/pause?topic=none", "s3cret-ann"},
		{"GET", "/config/log_level", "s3cret-eve"},
		{"GET", "/stats", ""},
		{"POST", "/mpub?topic=fresh", "s3cret-ann"},
		{"POST", "/channel/create?topic=t&channel=c&from=oldest", "s3cret-ann"},
		{"POST", "/channel/fork?topic=t&channel=c&new=d&at=newest", "s3cret-ann"},
		{"POST", "/channel/seek?topic=t&channel=c&to=count&value=1", "s3cret-ann"},
		{"POST", "/backup?dir=nowhere", "s3cret-ann"},
	} {
		ask(t, x.method, n.base+x.path, x.token)
	}
	c := n.dial(t)
	c.Send(authCommand("s3cret-bob") + "SUB t new\n")
	c.Frame(nsqtest.Patience)
	c.OK()
	c = n.dial(t)
	c.Send(authCommand("s3cret-eve"))
	c.Fatal("E_AUTH_FAILED AUTH failed")
	_, body := ask(t, "GET", n.base+"/audit", "s3cret-ann")
	var list audit.List
	if err := json.Unmarshal([]byte(body), &list); err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, e := range list.Entries {
		if e.From == "" || e.Time.IsZero() || e.Result == "" {
			t.Errorf("%+v", e)
		}
		got = append(got, strings.Join([]string{string(e.Kind), e.Who, e.What, e.Names, e.Result}, "|"))
	}
	want := []string{
		"done|ann|POST /topic/create|topic=t|OK",
		"refused|bob|POST /topic/delete|topic=t|UNAUTHORIZED",
		"failed|ann|POST /topic/pause|topic=none|TOPIC_NOT_FOUND",
		"refused|anyone|GET /config/log_level||AUTH_FAILED",
		"refused|anyone|GET /stats||AUTH_FIRST",
		"done|ann|create by /mpub|topic=fresh|OK",
		"done|ann|POST /channel/create|topic=t channel=c from=oldest|OK",
		"done|ann|POST /channel/fork|topic=t channel=c new=d at=newest|OK",
		"done|ann|POST /channel/seek|topic=t channel=c to=count value=1|OK",
		"failed|ann|POST /backup|dir=nowhere|engine: no backup can be made there; nothing was written: \"nowhere\" is no " +
			"absolute path on the node's machine",
		"done|bob|create|topic=t channel=new|OK",
		"refused|anyone|AUTH||the secret is unknown",
	}
	if !slices.Equal(got, want) {
		t.Errorf("the audit has\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	if text := log.String(); strings.Contains(text+body, "s3cret") || strings.Count(text, "audit: ") != len(want) {
		t.Errorf("the log has\n%s", text)
	}
}

// In a cluster a channel that a SUB creates is one entry, at the node of the client, also if that node leads nothing of
// the topic. A SUB to a channel that exists is none, also if the node has not heard of the channel.
func TestAuditOfChannelsInACluster(t *testing.T) {
	nodes := startCluster(t, 3, Options{Settings: nsq.Settings{AskForChannel: nsqtest.Patience}})
	leader, other := bystander(t, nodes, "t")
	entries := func(n *testNode) (all []string) {
		for _, e := range n.audit.List().Entries {
			if e.What == "create" {
				all = append(all, e.Names)
			}
		}
		return all
	}
	for _, n := range append([]*testNode{other}, nodes...) {
		n.dial(t).Sub("t", "first")
	}
	leader.dial(t).Sub("t", "second")
	for _, n := range nodes {
		n.dial(t).Sub("t", "second")
	}
	for _, n := range nodes {
		var want []string
		switch n {
		case other:
			want = []string{"topic=t channel=first"}
		case leader:
			want = []string{"topic=t channel=second"}
		}
		if got := entries(n); !slices.Equal(got, want) {
			t.Errorf("the audit has %q, want %q", got, want)
		}
	}
}

// /audit?all merges what all nodes have. It says of each since when it knows all, and of all together the latest time.
func TestAuditOfAllNodes(t *testing.T) {
	nodes := startCluster(t, 3, Options{})
	for i, n := range nodes {
		n.audit.Changed(audit.Entry{What: fmt.Sprint("change ", i)})
	}
	last := nodes[0].audit.List().Since
	for _, n := range nodes {
		if since := n.audit.List().Since; since.After(last) {
			last = since
		}
	}
	var all api.ClusterAudit
	var body string
	for end := time.Now().Add(nsqtest.Patience); len(all.Known) < 3 &&
		time.Now().Before(end); { // until they are connected
		_, body = ask(t, "GET", nodes[1].base+"/audit?all&count=200", "")
		all = api.ClusterAudit{}
		if err := json.Unmarshal([]byte(body), &all); err != nil {
			t.Fatal(err)
		}
	}
	found := 0
	for _, e := range all.Entries {
		if strings.HasPrefix(e.What, "change ") {
			found++
		}
	}
	if found != 3 || len(all.Known) != 3 || all.Since.Before(last) || all.Since.After(time.Now()) {
		t.Errorf("since %v, want %v or a little later: %s", all.Since, last, body)
	}
}
