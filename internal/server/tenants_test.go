package server

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"penstock/internal/node"
	"penstock/internal/node/names"
	"penstock/internal/server/api"
	"penstock/internal/server/auth"
	nativewire "penstock/internal/server/native/wire"
	"penstock/netproto"
	"penstock/tests/support/authtest"
	"penstock/tests/support/nsqtest"
)

// tenantTokens writes a token file of an administrator (root), and of tenants that may do everything with topics whose
// names begin with theirs. The secret of a token is its name. Another token may look, for node.metric.
func tenantTokens(t *testing.T, tenants ...string) auth.Options {
	t.Helper()
	text := authtest.Token("root", "root", `permissions = ["admin", "publish", "subscribe"]`+"\n"+`topics = ["*"]`)
	text += authtest.Token("ann", "s3cret", `permissions = ["view"]`+"\n"+`topics = ["*"]`)
	for _, name := range tenants {
		text += authtest.Token(name, name, `permissions = ["admin", "publish", "subscribe"]`+"\n"+
			fmt.Sprintf("topics = [%q]", name+".*"))
	}
	file := filepath.Join(t.TempDir(), "tokens.toml")
	authtest.Write(t, file, text)
	return auth.Options{File: file}
}

// as sends a POST with a token.
func (n *testNode) as(t testing.TB, token, path, body string) (int, string) {
	t.Helper()
	return n.postWith(t, path, body, "Authorization", "Bearer "+token)
}

// tenant is a client of NSQ's protocol that has shown its token.
func (n *testNode) tenant(t testing.TB, token string) *nsqtest.Client {
	t.Helper()
	c := n.dial(t)
	c.Send(authCommand(token))
	if kind, data, err := c.Next(); err != nil || kind != nsqtest.FrameResponse {
		t.Fatalf("AUTH: %d %q %v", kind, data, err)
	}
	return c
}

// answersOf returns the answer to a command.
func answersOf(c *nsqtest.Client, command string) string {
	c.T.Helper()
	c.Send(command)
	_, data, err := c.Next()
	if err != nil {
		c.T.Fatal(err)
	}
	return string(data)
}

// createNative asks for a topic over the native protocol.
func (n *testNode) createNative(t *testing.T, token, topic string) netproto.Status {
	t.Helper()
	c, frames, err := n.dialNative(t, nil)
	if err != nil {
		t.Fatal(err)
	}
	send := func(typ netproto.Type, payload []byte) netproto.Received {
		if err := c.TrySend(&netproto.Frame{Type: typ, Request: 1, Head: payload}); err != nil {
			t.Fatal(err)
		}
		return <-frames
	}
	f := send(nativewire.TypeAuth, nativewire.Append(nil, &nativewire.Auth{Token: token}))
	if f.Status != netproto.StatusOK {
		t.Fatalf("Auth: %v", f.Status)
	}
	ask := &nativewire.MetadataRequest{Topics: []string{topic}, Create: true}
	f = send(nativewire.TypeMetadata, nativewire.Append(nil, ask))
	var m nativewire.Metadata
	if err := nativewire.Decode(f.Payload, &m); err != nil || len(m.Topics) != 1 {
		t.Fatalf("Metadata: %v %v", m, err)
	}
	return m.Topics[0].Status
}

// A tenant that takes all the topics that it can leaves others their share: another tenant's first message to a new
// topic is stored, whatever way it comes, and an administrator makes topics and channels. The tenant's own topics go
// on.
func TestTenantTakesAllTopics(t *testing.T) {
	o := Options{BroadcastAddress: "127.0.0.1", NativeAddress: "127.0.0.1:0", Auth: tenantTokens(t, "a", "b")}
	eo := node.Options{MaxTopics: 12}
	nodes := map[string]func(*testing.T) []*testNode{
		"one":   func(t *testing.T) []*testNode { return []*testNode{startNode(t, eo, o)} },
		"three": func(t *testing.T) []*testNode { return startClusterOf(t, 3, eo, o) },
	}
	for name, start := range nodes {
		t.Run(name, func(t *testing.T) {
			all := start(t)
			n, other := all[0], all[len(all)-1]
			made, refused := 0, ""
			for made < eo.MaxTopics && refused == "" {
				if answer := answersOf(n.tenant(t, "a"), nsqtest.Pub(fmt.Sprint("a.", made), "x")); answer == "OK" {
					made++
				} else {
					refused = answer
				}
			}
			if made != 6 || !strings.Contains(refused, "E_PUB_FAILED") ||
				!strings.Contains(refused, `token "a" is 7, and at most 6 is allowed: see the node's setting token-share`) {
				t.Fatalf("the tenant made %d topics, and was then told %q", made, refused)
			}
			for _, n := range all {
				nsqtest.Eventually(t, "all nodes to hear of the topics", func() bool { return len(n.e.Catalog().Topics()) == made })
			}
			if answer := answersOf(other.tenant(t, "a"), "SUB a.more c\n"); !strings.Contains(answer, "token-share") {
				t.Errorf("SUB: %s", answer)
			}
			for _, path := range []string{"/pub?topic=a.more", "/mpub?topic=a.more", "/topic/create?topic=a.more"} {
				if status, text := other.as(t, "a", path, "x"); status != 507 || !strings.Contains(text, "token-share") {
					t.Errorf("%s: %d %s", path, status, text)
				}
			}
			for _, path := range []string{"/topic/create?topic=a.more", "/channel/create?topic=a.more&channel=c"} {
				reply, text := request(t, "POST", "http://"+other.LookupAddr().String()+path, "", "Authorization", "Bearer a")
				if reply.StatusCode != 507 || !strings.Contains(text, "token-share") {
					t.Errorf("%s at the lookup's port: %d %s", path, reply.StatusCode, text)
				}
			}
			if s := other.createNative(t, "a", "a.more"); s != netproto.StatusFull {
				t.Errorf("over the native protocol: %v", s)
			}
			if answer := answersOf(other.tenant(t, "a"), nsqtest.Pub("a.0", "x")); answer != "OK" {
				t.Errorf("to a topic of the tenant: %s", answer)
			}
			if answer := answersOf(other.tenant(t, "b"), nsqtest.Pub("b.0", "first")); answer != "OK" {
				t.Errorf("another tenant's first message: %s", answer)
			}
			if s := n.createNative(t, "b", "b.1"); s != netproto.StatusOK {
				t.Errorf("another tenant over the native protocol: %v", s)
			}
			for _, path := range []string{"/topic/create?topic=r", "/channel/create?topic=r&channel=c", "/pub?topic=r2"} {
				if status, text := n.as(t, "root", path, "x"); status != 200 {
					t.Errorf("%s of the administrator: %d %s", path, status, text)
				}
			}
			if status, text := n.as(t, "a", "/topic/delete?topic=a.0", ""); status != 200 {
				t.Fatalf("%d %s", status, text)
			}
			if answer := answersOf(n.tenant(t, "a"), nsqtest.Pub("a.more", "x")); answer != "OK" {
				t.Errorf("after one of the tenant's topics is gone: %s", answer)
			}
		})
	}
}

// A tenant that fills the room for delayed messages leaves others theirs: they delay messages, and make channels. What
// the tenant has goes on, and what it finishes or empties it may use again.
func TestTenantDelaysAllItCan(t *testing.T) {
	o := Options{Auth: tenantTokens(t, "a", "b")}
	n := startNode(t, node.Options{MaxStateBytes: 600_000}, o)
	for _, path := range []string{"/channel/create?topic=a.t&channel=c", "/channel/create?topic=b.t&channel=c"} {
		tenant := path[len("/channel/create?topic="):][:1]
		if status, text := n.as(t, tenant, "/pub?topic="+tenant+".t", "first"); status != 200 {
			t.Fatalf("%d %s", status, text)
		}
		if status, text := n.as(t, tenant, path, ""); status != 200 {
			t.Fatalf("%d %s", status, text)
		}
	}
	delayed := func(tenant string) string {
		return answersOf(n.tenant(t, tenant), "DPUB "+tenant+".t 60000\n"+nsqtest.Sized("later"))
	}
	c, refused := n.tenant(t, "a"), ""
	for i := 0; i < 10_000 && refused == ""; i++ {
		if answer := answersOf(c, "DPUB a.t 60000\n"+nsqtest.Sized("later")); answer != "OK" {
			refused = answer
		}
	}
	if !strings.Contains(refused, "E_DPUB_FAILED") || !strings.Contains(refused, `token "a"`) ||
		!strings.Contains(refused, "at most 300000 is allowed: see the node's setting token-share") {
		t.Fatalf("the tenant was told %q", refused)
	}
	if status, text := n.as(t, "a", "/pub?topic=a.t&defer=60000", "later"); status != 507 ||
		!strings.Contains(text, "token-share") {
		t.Errorf("over HTTP: %d %s", status, text)
	}
	if status, text := n.as(t, "a", "/channel/create?topic=a.t&channel=d", ""); status != 507 ||
		!strings.Contains(text, "token-share") {
		t.Errorf("a channel of the tenant's topic: %d %s", status, text)
	}
	if answer := answersOf(n.tenant(t, "a"), nsqtest.Pub("a.t", "now")); answer != "OK" {
		t.Errorf("a message without a delay: %s", answer)
	}
	for range 10 {
		if answer := delayed("b"); answer != "OK" {
			t.Fatalf("another tenant's delayed message: %s", answer)
		}
	}
	for _, path := range []string{
		"/topic/create?topic=r", "/channel/create?topic=r&channel=c", "/channel/create?topic=b.t&channel=root",
		"/pub?topic=r&defer=60000",
	} {
		if status, text := n.as(t, "root", path, "x"); status != 200 {
			t.Errorf("%s of the administrator: %d %s", path, status, text)
		}
	}
	if status, text := n.as(t, "a", "/channel/empty?topic=a.t&channel=c", ""); status != 200 {
		t.Fatalf("%d %s", status, text)
	}
	if answer := delayed("a"); answer != "OK" {
		t.Errorf("after the tenant has emptied its channel: %s", answer)
	}
}

// An administrator's topics count for nobody, unless it makes one for a tenant; a tenant makes none for another one.
// Lists, statistics and metrics say for whom a topic counts, and what tokens take.
func TestTopicsCountForTheirMakers(t *testing.T) {
	n := startNode(t, node.Options{}, Options{Auth: tenantTokens(t, "a", "b")})
	for _, tc := range []struct {
		token, path string
		status      int
	}{
		{"root", "/topic/create?topic=r", 200},
		{"root", "/topic/create?topic=a.given&made_by=a", 200},
		{"a", "/topic/create?topic=a.own&partitions=2", 200},
		{"a", "/topic/create?topic=a.named&made_by=a", 200},
		{"a", "/topic/create?topic=a.theft&made_by=b", 403},
		{"a", "/topic/create?topic=a.nobodys&made_by=", 403},
		{"b", "/pub?topic=b.used", 200},
	} {
		if status, text := n.as(t, tc.token, tc.path, "x"); status != tc.status {
			t.Errorf("%s of %s: %d %s", tc.path, tc.token, status, text)
		}
	}
	want := map[string]string{"r": "", "a.given": "a", "a.own": "a", "a.named": "a", "b.used": "b"}
	var page api.TopicPage
	_, text := request(t, "GET", n.base+"/topics", "", "Authorization", "Bearer root")
	if err := json.Unmarshal([]byte(text), &page); err != nil || len(page.Topics) != len(want) {
		t.Fatalf("%v: %s", err, text)
	}
	for _, listed := range page.Topics {
		if listed.MadeBy != want[listed.Name] {
			t.Errorf("/topics says that %q made %s", listed.MadeBy, listed.Name)
		}
	}
	_, text = request(t, "GET", n.base+"/stats?format=json&topic=a.own", "", "Authorization", "Bearer root")
	if !strings.Contains(text, `"made_by":"a"`) {
		t.Errorf("/stats: %s", text)
	}
	for series, value := range map[string]string{
		`token_topics{token="a"}`: "3", `token_partitions{token="a"}`: "4", `token_topics{token="b"}`: "1",
		`token_limit_ratio{token="a"}`: "0.00016",
	} {
		if got := n.metric(t, series); got != value {
			t.Errorf("%s is %s, want %s", series, got, value)
		}
	}
	n.metric(t, `token_state_bytes{token="a"}`)
	n.metric(t, `token_stored_bytes{token="a"}`)
}

// A tenant that may administer a topic that counts for nobody cannot take all partitions with it. One of its own grows
// within the tenant's share, and an administrator goes beyond it.
func TestTenantTakesAllPartitions(t *testing.T) {
	n := startNode(t, node.Options{MaxPartitions: 20}, Options{Auth: tenantTokens(t, "a")})
	for _, tc := range []struct {
		token, path, body string
		status            int
		says              string
	}{
		{"root", "/topic/create?topic=a.nobodys", "", 200, ""},
		{"a", "/topic/settings?topic=a.nobodys", `{"partitions":19}`, 400, "a.nobodys counts for no token"},
		{"a", "/topic/settings?topic=a.nobodys", `{"quota_count":5}`, 200, ""},
		{"a", "/topic/create?topic=a.t&partitions=11", "", 507, `of token \"a\" is 11, and at most 10 is allowed`},
		{"a", "/topic/create?topic=a.t&partitions=9", "", 200, ""},
		{"a", "/topic/settings?topic=a.t", `{"partitions":11}`, 507, `of token \"a\" is 11, and at most 10 is allowed`},
		{"a", "/topic/settings?topic=a.t", `{"partitions":10}`, 200, ""},
		{"root", "/topic/settings?topic=a.t", `{"partitions":12,"version":1}`, 200, ""},
		{"root", "/topic/settings?topic=a.nobodys", `{"partitions":2,"version":1}`, 200, ""},
	} {
		if status, text := n.as(t, tc.token, tc.path, tc.body); status != tc.status || !strings.Contains(text, tc.says) {
			t.Errorf("%s %s of %s: %d %s", tc.path, tc.body, tc.token, status, text)
		}
	}
}

// A topic remembers every name of a token that there is.
func TestMakersAreRemembered(t *testing.T) {
	if auth.MaxMaker != names.MaxTokenBytes {
		t.Errorf("a token has a name of %d bytes, and a topic remembers %d", auth.MaxMaker, names.MaxTokenBytes)
	}
}

// Publishes that are refused because of a token's share are counted as that.
func TestRefusedForTheShareIsCounted(t *testing.T) {
	n := startNode(t, node.Options{MaxTopics: 2}, Options{Auth: tenantTokens(t, "a")})
	for i := range 3 {
		n.as(t, "a", fmt.Sprint("/pub?topic=a.", i), "x")
	}
	answersOf(n.tenant(t, "a"), nsqtest.Pub("a.more", "x"))
	if got := n.metric(t, `publishes_refused_total{reason="token_share"}`); got != "3" {
		t.Errorf("%s refusals are counted, want 3", got)
	}
}
