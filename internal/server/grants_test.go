package server

import (
	"context"
	"flag"
	"fmt"
	"maps"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"penstock/internal/cluster"
	"penstock/internal/cluster/admin"
	"penstock/internal/cluster/kv/memory"
	"penstock/internal/node"
	"penstock/internal/server/auth"
	"penstock/internal/server/nsq/command"
	"penstock/internal/server/web"
	"penstock/tests/support/authtest"
	"penstock/tests/support/nsqtest"
	"penstock/tests/support/underrace"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// grantRoles are clients with different rights. The secret of a token is its name.
var grantRoles = []struct{ name, grant string }{
	{"nobody", ""},
	{"unknown", ""},
	{"publish-a", `permissions = ["publish"]` + "\n" + `topics = ["a"]`},
	{"subscribe-a-x", `permissions = ["subscribe"]` + "\n" + `topics = ["a"]` + "\n" + `channels = ["x"]`},
	{"subscribe-a", `permissions = ["subscribe"]` + "\n" + `topics = ["a"]`},
	{"view-a-x", `permissions = ["view"]` + "\n" + `topics = ["a"]` + "\n" + `channels = ["x"]`},
	{"view-a", `permissions = ["view"]` + "\n" + `topics = ["a"]`},
	{"admin-a-x", `permissions = ["admin"]` + "\n" + `topics = ["a"]` + "\n" + `channels = ["x"]`},
	{"admin-a", `permissions = ["admin"]` + "\n" + `topics = ["a"]`},
	{"admin-ab", `permissions = ["admin"]` + "\n" + `topics = ["a", "b"]`},
	{"publish-all", `permissions = ["publish"]` + "\n" + `topics = ["*"]`},
	{"view-all", `permissions = ["view"]` + "\n" + `topics = ["*"]`},
	{"node-admin", `permissions = ["admin"]` + "\n" + `topics = ["*"]`},
}

// grantNode is a node whose clients need the rights of grantRoles, with every HTTP listener and the routes of a
// cluster.
func grantNode(t *testing.T) *testNode {
	t.Helper()
	tokens := filepath.Join(t.TempDir(), "tokens.toml")
	text := ""
	for _, role := range grantRoles {
		if role.grant != "" {
			text += authtest.Token(role.name, role.name, role.grant)
		}
	}
	authtest.Write(t, tokens, text)
	kv := memory.New(memory.Options{})
	t.Cleanup(kv.Close)
	store := cluster.New(kv.Store(), cluster.Options{LeaseTTL: time.Minute, ControllerTick: time.Second})
	return startNode(t, node.Options{}, Options{
		Auth: auth.Options{File: tokens}, NativeAddress: "127.0.0.1:0",
		ClusterHandler: admin.Handler(store, admin.Self{Name: "n1"}),
	})
}

// reset makes the topics and channels that requests are about, as far as they are gone.
func (n *testNode) reset(t *testing.T) {
	t.Helper()
	for _, name := range []string{"a", "b"} {
		topic, ok := n.e.Catalog().LookupTopic(name)
		if ok {
			_, ok = topic.LookupChannel("c")
		}
		if ok {
			continue
		}
		topic, err := n.e.CreateTopic(context.Background(), name, 1)
		if err == nil {
			_, err = topic.CreateChannel(context.Background(), "c")
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// setDeadLetter makes a topic the target of the dead letters of channel c of topic a.
func (n *testNode) setDeadLetter(t *testing.T, name string) {
	t.Helper()
	topic, ok := n.e.Catalog().LookupTopic("a")
	if !ok {
		t.Fatal("there is no topic a")
	}
	c, err := topic.CreateChannel(context.Background(), "c")
	if err != nil {
		t.Fatal(err)
	}
	set, err := c.ReadSettings(context.Background())
	if err == nil {
		set.DeadLetter, set.MaxAttempts = name, 5
		_, err = c.Configure(context.Background(), set)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// verdict returns what a request is told about its client's rights: the status of a refusal, or "yes".
func (n *testNode) verdict(t *testing.T, method, url, role, body string) string {
	t.Helper()
	var headers []string
	if role != "nobody" {
		headers = []string{"Authorization", "Bearer " + role}
	}
	reply, _ := request(t, method, url, body, headers...)
	if code := reply.StatusCode; code == 401 || code == 403 {
		return fmt.Sprint(code)
	}
	return "yes"
}

// clusterPaths are the paths below /cluster/; admin.Handler refuses nobody itself.
var clusterPaths = append(admin.Paths(), "/cluster/none")

// matrix collects the lines of the golden file.
type matrix struct {
	strings.Builder
}

func (m *matrix) row(what string, verdict func(role string) string) {
	fmt.Fprintf(m, "%-64s", what)
	for _, role := range grantRoles {
		fmt.Fprintf(m, " %*s", len(role.name), verdict(role.name))
	}
	m.WriteString("\n")
}

func (m *matrix) head(what string) {
	fmt.Fprintf(m, "\n%-64s", what)
	for _, role := range grantRoles {
		fmt.Fprintf(m, " %s", role.name)
	}
	m.WriteString("\n")
}

// O7. Every route with every method, for every role, with the names of two topics or none: the golden file is the whole
// of what the rights mean. A route that is new changes it, and has to be looked at.
func TestGrantsMatrix(t *testing.T) {
	if underrace.Enabled && testing.Short() {
		t.Skip("it asks for one thing after the other: the race detector learns nothing from it")
	}
	t.Parallel()
	n := grantNode(t)
	n.reset(t)
	var m matrix
	m.WriteString("# Who may do what: yes, or the status or error of the refusal. " +
		"go test ./internal/server -run GrantsMatrix -update\n")
	for _, l := range []struct {
		name, base string
		routes     web.Table
	}{
		{"nsqd's API", n.base, n.api.Table()}, {"nsqlookupd's API", "http://" + n.LookupAddr().String(), n.lookups.Routes()},
	} {
		m.head("HTTP, " + l.name)
		paths := slices.Sorted(maps.Keys(l.routes))
		if l.base == n.base {
			paths = append(paths, clusterPaths...)
			slices.Sort(paths)
			paths = slices.Compact(paths)
		}
		for _, path := range paths {
			rt, own := l.routes[path]
			for _, method := range []string{"GET", "POST", "PUT", "DELETE"} {
				if own && rt.Methods != web.AnyMethod && !strings.Contains(","+rt.Methods+",", ","+method+",") {
					continue
				}
				queries := []string{"topic=a&channel=c", "topic=b&channel=c", ""}
				if strings.HasPrefix(path, "/debug/") {
					queries = []string{""} // a profile takes a second
				}
				for _, query := range queries {
					url := l.base + strings.ReplaceAll(path, "{option}", "log_level") + "?" + query
					m.row(method+" "+path+" "+query, func(role string) string {
						n.reset(t)
						return n.verdict(t, method, url+"&seconds=1", role, "")
					})
				}
			}
		}
	}
	m.bodies(t, n)
	m.commands(t, n)
	m.frames(t, n)
	golden := filepath.Join("testdata", "grants.txt")
	if *update {
		if err := os.WriteFile(golden, []byte(m.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	wanted := strings.Split(string(want), "\n")
	for i, line := range strings.Split(m.String(), "\n") {
		if i >= len(wanted) || wanted[i] != line {
			t.Fatalf("line %d of the matrix is now\n%s\nlook at it, and run with -update if it is meant", i+1, line)
		}
	}
	if len(wanted) != strings.Count(m.String(), "\n")+1 {
		t.Errorf("the matrix has lost lines")
	}
}

// bodies adds requests whose body, or a setting, names a topic.
func (m *matrix) bodies(t *testing.T, n *testNode) {
	m.head("names in bodies and settings")
	for _, dead := range []string{"", "a.DLQ", "b", "new"} {
		m.row(fmt.Sprintf("POST /channel/settings topic=a&channel=c dead_letter=%q", dead), func(role string) string {
			n.reset(t)
			body := fmt.Sprintf(`{"version":99,"max_attempts":1,"dead_letter":%q}`, dead)
			return n.verdict(t, "POST", n.base+"/channel/settings?topic=a&channel=c", role, body)
		})
		n.setDeadLetter(t, dead)
		m.row(fmt.Sprintf("POST /channel/redrive topic=a&channel=c of dead_letter=%q", dead), func(role string) string {
			return n.verdict(t, "POST", n.base+"/channel/redrive?topic=a&channel=c", role, "")
		})
	}
	for _, path := range clusterPaths {
		m.row("POST "+path+` {"topic":"a"}`, func(role string) string {
			return n.verdict(t, "POST", n.base+path, role, `{"topic":"a","partition":0,"partitions":2}`)
		})
	}
	if _, ok := n.e.Catalog().LookupTopic("new"); ok {
		t.Error("the dead-letter topic exists")
	}
}

// namelessVerbs are the commands that name no topic.
var namelessVerbs = []string{"IDENTIFY", "AUTH", "RDY", "FIN", "REQ", "TOUCH", "CLS", "NOP"}

// commands adds the commands of the NSQ protocol.
func (m *matrix) commands(t *testing.T, n *testNode) {
	m.head("NSQ protocol")
	bodies := map[string]string{
		"PUB": nsqtest.Sized("x"), "MPUB": nsqtest.Sized(nsqtest.BatchBody("x")), "DPUB": nsqtest.Sized("x"),
		"PUB_EXT":   nsqtest.Sized(nsqtest.WithExt("{}", "x")),
		"PUB_TRACE": nsqtest.Sized(nsqtest.U64(1) + "x"), "MPUB_EXT": nsqtest.Sized(nsqtest.BatchBody(nsqtest.WithExt("{}",
			"x"))),
		"MPUB_TRACE": nsqtest.Sized(nsqtest.BatchBody(nsqtest.U64(1) + "x")),
		"SUB":        "", "SUB_ADVANCED": "", "SUB_ORDERED": "",
	}
	for verb := command.VerbNone + 1; verb <= command.VerbSubOrdered; verb++ {
		v := verb.String()
		body, named := bodies[v]
		if named == slices.Contains(namelessVerbs, v) {
			t.Errorf("say whether %s names a topic", v)
		}
		if !named {
			continue
		}
		for _, topic := range []string{"a", "b"} {
			line := v + " " + topic
			switch {
			case strings.HasPrefix(v, "SUB"):
				line += " c"
			case v == "DPUB":
				line += " 0"
			}
			if v == "SUB_ORDERED" {
				line += " 0"
			}
			m.row(line, func(role string) string {
				n.reset(t)
				return n.commandVerdict(t, line+"\n"+body, role)
			})
		}
	}
}

// commandVerdict returns the code of the error that a command of this role gets because of its rights, or "yes".
func (n *testNode) commandVerdict(t *testing.T, command, role string) string {
	t.Helper()
	c := n.dial(t)
	defer c.Conn.Close()
	if role != "nobody" {
		c.Send(authCommand(role))
		if kind, text, err := c.Frame(nsqtest.Patience); err != nil || kind == nsqtest.FrameError {
			return strings.TrimPrefix(strings.Fields(string(text))[0], "E_")[:4]
		}
	}
	c.Send(command)
	_, text, err := c.Frame(nsqtest.Patience)
	if err != nil {
		t.Fatal(err)
	}
	switch code, _, _ := strings.Cut(string(text), " "); code {
	case "E_AUTH_FIRST", "E_UNAUTHORIZED":
		return "no"
	}
	return "yes"
}

// Who has rights on some channels of a topic has none on the topic as a whole, also if the request names one of these
// channels besides; and none on the other channels.
func TestGrantOnSomeChannels(t *testing.T) {
	t.Parallel()
	n := startNode(t, node.Options{}, Options{Auth: auth.Options{File: grantTokens(t)}})
	for _, path := range []string{
		"/topic/create?topic=shop-a", "/channel/create?topic=shop-a&channel=mail",
		"/channel/create?topic=shop-a&channel=bills", "/topic/pause?topic=shop-a", "/pub?topic=shop-a",
	} {
		if code, text := ask(t, "POST", n.base+path, "root"); code != 200 {
			t.Fatalf("%s: %d %s", path, code, text)
		}
	}
	lookups := "http://" + n.LookupAddr().String()
	var attacks [][2]string
	for path, rt := range n.api.Table() {
		for method := range strings.SplitSeq(rt.Methods, ",") {
			if strings.HasPrefix(path, "/topic/") || path == "/producer/remove" {
				attacks = append(attacks, [2]string{method, n.base + path})
			}
		}
	}
	if len(attacks) != 12 {
		t.Errorf("these are all routes of topics: %v", attacks)
	}
	for _, path := range []string{
		"/topic/create", "/topic/delete", "/topic/tombstone", "/tombstone_topic_producer",
	} {
		attacks = append(attacks, [2]string{"POST", lookups + path})
	}
	for _, a := range attacks {
		for _, query := range []string{"?topic=shop-a", "?topic=shop-a&channel=mail", "?topic=shop-b&node=x:1"} {
			if code, text := ask(t, a[0], a[1]+query, "mailer"); code != 403 {
				t.Errorf("%s %s%s: %d %s", a[0], a[1], query, code, text)
			}
		}
	}
	topic, ok := n.e.Catalog().LookupTopic("shop-a")
	if !ok {
		t.Fatal("the topic is gone")
	}
	if all, err := topic.Peek(t.Context(), 0, 0, 10); err != nil || len(all) != 1 {
		t.Errorf("the message is gone: %v %v", all, err)
	}
	for channel, want := range map[string]int{"mail": 200, "bills": 403} {
		if code, text := ask(t, "GET", n.base+"/channel/peek?topic=shop-a&channel="+channel, "mailer"); code != want {
			t.Errorf("peek of %s: %d %s", channel, code, text)
		}
	}
}

// A level of access that allows does not know gives nobody a right, and every level is used.
func TestAccessIsDeniedByDefault(t *testing.T) {
	n := grantNode(t)
	r, err := http.NewRequest("GET", n.base, nil)
	if err != nil {
		t.Fatal(err)
	}
	r.RemoteAddr = net.JoinHostPort("127.0.0.1", "1")
	r.Header.Set("Authorization", "Bearer node-admin")
	for need := web.Open; need <= web.Node+5; need++ {
		_, err := n.api.Policy().Permit(need, r, map[string][]string{"topic": {"a"}, "channel": {"c"}})
		if allowed := need <= web.Node && need != web.Publish; (err == nil) != allowed {
			t.Errorf("level %d: %v", need, err)
		}
	}
}
