//go:build console

package console

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/nsqio/go-nsq"

	"penstock/tests/cluster/harness"
)

const (
	// patience bounds a start, and a whole scenario. Some wait for the page to ask again by itself, which takes it
	// ten seconds, several times.
	patience   = 5 * time.Minute
	manyTopics = 20_000
)

// shots is where the screenshots go: a folder that git ignores.
var shots string

func TestMain(m *testing.M) {
	code, err := run(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

func run(m *testing.M) (code int, err error) {
	defer func() { err = errors.Join(err, harness.Cleanup()) }()
	if shots, err = filepath.Abs("screenshots"); err != nil {
		return 1, err
	}
	if err := errors.Join(os.RemoveAll(shots), os.MkdirAll(shots, 0o755)); err != nil {
		return 1, err
	}
	install := exec.Command("npm", "ci", "--no-audit", "--no-fund", "--ignore-scripts")
	install.Dir = "browser"
	if out, err := install.CombinedOutput(); err != nil {
		return 1, fmt.Errorf("installing playwright-core: %w\n%s", err, out)
	}
	defer func() { err = errors.Join(err, open.close()) }()
	return m.Run(), nil
}

// chromium returns the path of the browser.
func chromium(t *testing.T) string {
	t.Helper()
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome"} {
		if path, err := exec.LookPath(name); err == nil {
			return path
		}
	}
	t.Fatal("there is no chromium: apt-get install chromium")
	return ""
}

// browser is a chromium, and the program of browser/run.mjs, which runs scenarios in it: one for all tests, as each
// start takes seconds. One that did not end a scenario in time is ended, and the next test starts another one.
type browser struct {
	cmd        *exec.Cmd
	in         io.WriteCloser
	lines      chan string // what it says; closed at its end
	complaints bytes.Buffer
}

// open is the browser that is running; nil: none is.
var open *browser

func startBrowser(t *testing.T) *browser {
	t.Helper()
	arg, err := json.Marshal(map[string]any{"shots": shots, "chromium": chromium(t)})
	if err != nil {
		t.Fatal(err)
	}
	b := &browser{cmd: exec.Command("node", "run.mjs", string(arg)), lines: make(chan string)}
	b.cmd.Dir, b.cmd.Stderr = "browser", &b.complaints
	if b.in, err = b.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	out, err := b.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := b.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(b.lines)
		s := bufio.NewScanner(out)
		for s.Buffer(nil, 1<<20); s.Scan(); {
			b.lines <- s.Text()
		}
	}()
	return b
}

// close ends the browser that is running.
func (b *browser) close() error {
	if b == nil {
		return nil
	}
	err := b.in.Close()
	for range b.lines {
	}
	if err := errors.Join(err, b.cmd.Wait()); err != nil {
		return fmt.Errorf("the browser: %w\n%s", err, &b.complaints)
	}
	return nil
}

// next is the next line of a scenario; it fails where none comes for long.
func (b *browser) next(t *testing.T, scenario string, until <-chan time.Time) string {
	t.Helper()
	select {
	case line, ok := <-b.lines:
		if ok {
			return line
		}
		t.Errorf("%s: the browser ended: %v", scenario, b.cmd.Wait())
	case <-until:
		t.Errorf("%s does not end", scenario)
		_ = b.cmd.Process.Kill()
		for range b.lines {
		}
		_ = b.cmd.Wait()
	}
	open = nil
	t.Fatalf("see %s\n%s", shots, &b.complaints)
	return ""
}

// browse runs a scenario of browser/scenarios.mjs. do does what the scenario asks for.
func browse(t *testing.T, scenario string, c *harness.Cluster, do func(what string) error) {
	t.Helper()
	var urls []string
	for _, name := range []string{"n1", "n2", "n3"} {
		if n := c.Node(name); n != nil {
			urls = append(urls, "http://"+n.HTTP)
		}
	}
	if open == nil {
		open = startBrowser(t)
	}
	b := open
	tell := func(line string) {
		if _, err := io.WriteString(b.in, line+"\n"); err != nil {
			t.Error(err)
		}
	}
	arg, err := json.Marshal(map[string]any{"scenario": scenario, "urls": urls})
	if err != nil {
		t.Fatal(err)
	}
	tell(string(arg))
	for until := time.After(patience); ; {
		line := b.next(t, scenario, until)
		what, rest, _ := strings.Cut(line, " ")
		switch {
		case line == "end":
			return
		case what == "fault":
			var text string
			if err := json.Unmarshal([]byte(rest), &text); err != nil {
				text = rest
			}
			t.Errorf("%s: %s; see %s", scenario, text, shots)
		case what != "do":
			t.Log(line)
		case do == nil:
			t.Errorf("the scenario wants %q", rest)
			tell("done")
		default:
			if err := do(rest); err != nil {
				t.Errorf("%s: %v", rest, err)
			}
			tell("done")
		}
	}
}

// send sends a request that must succeed.
func send(t *testing.T, n *harness.Node, token, path string, query url.Values, body string) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), "POST", "http://"+n.HTTP+path+"?"+query.Encode(),
		strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	if token != "" {
		r.Header.Set("Authorization", "Bearer "+token)
	}
	reply, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	text, _ := io.ReadAll(reply.Body)
	_ = reply.Body.Close()
	if reply.StatusCode != 200 {
		t.Fatalf("%s %v: %d %s", path, query, reply.StatusCode, text)
	}
}

// fill makes the topic orders with messages of all kinds, a channel with a consumer that holds some, and one without.
func fill(t *testing.T, c *harness.Cluster, token string) {
	t.Helper()
	n := c.Nodes[0]
	send(t, n, token, "/topic/create", url.Values{"topic": {"orders"}, "partitions": {"3"}}, "")
	for _, name := range []string{"billing", "mail", "search-index#ephemeral"} {
		send(t, n, token, "/channel/create", url.Values{"topic": {"orders"}, "channel": {name}}, "")
	}
	for i := range 60 {
		q := url.Values{"topic": {"orders"}, "key": {fmt.Sprintf("customer-%d", i%7)}}
		body := fmt.Sprintf(`{"order": %d, "items": [{"sku": "A-%03d", "count": 2}], "note": "Grüße"}`, 1000+i, i)
		switch i % 20 {
		case 7:
			body = "\x00\x01\xfe\xff binary"
		case 9:
			q.Set("defer", "600000")
		}
		send(t, n, token, "/pub", q, body)
	}
	for _, name := range []string{"payments", "returns", "mail.outgoing"} {
		send(t, n, token, "/topic/create", url.Values{"topic": {name}}, "")
		send(t, n, token, "/pub", url.Values{"topic": {name}}, "x")
	}
}

// hold consumes a channel, and finishes only some of the messages.
func hold(t *testing.T, c *harness.Cluster) {
	t.Helper()
	cfg := nsq.NewConfig()
	cfg.ClientID, cfg.UserAgent, cfg.MaxInFlight, cfg.MsgTimeout = "holder", "console-test/1", 6, time.Minute
	consumer, err := nsq.NewConsumer("orders", "billing", cfg)
	if err != nil {
		t.Fatal(err)
	}
	consumer.SetLoggerLevel(nsq.LogLevelMax)
	var mu sync.Mutex
	finished := 0
	consumer.AddHandler(nsq.HandlerFunc(func(m *nsq.Message) error {
		mu.Lock()
		defer mu.Unlock()
		if m.DisableAutoResponse(); finished < 6 {
			finished++
			m.Finish()
		}
		return nil
	}))
	if err := consumer.ConnectToNSQDs(c.NSQ()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(consumer.Stop) // it would wait long for the messages that are held
}

// twoCopies makes the topic parcels, of which one of the three nodes has no copy.
func twoCopies(t *testing.T, c *harness.Cluster) {
	t.Helper()
	n := c.Nodes[0]
	send(t, n, "", "/topic/create", url.Values{"topic": {"parcels"}, "replicas": {"2"}}, "")
	for range 10 {
		send(t, n, "", "/pub", url.Values{"topic": {"parcels"}}, "a parcel")
	}
}

// wide makes the topic wide, with many partitions and one message of almost 1 MiB.
func wide(t *testing.T, c *harness.Cluster) {
	t.Helper()
	n, topic := c.Nodes[0], url.Values{"topic": {"wide"}}
	send(t, n, "", "/topic/create", url.Values{"topic": {"wide"}, "partitions": {"200"}}, "")
	send(t, n, "", "/pub", topic, `{"large":"`+strings.Repeat("x", 1_000_000)+`"}`)
}

// crowd makes the topic crowd, with one channel and one deferred message more than a page shows.
func crowd(t *testing.T, c *harness.Cluster) {
	t.Helper()
	const many = 101
	n, topic := c.Nodes[0], url.Values{"topic": {"crowd"}}
	send(t, n, "", "/topic/create", topic, "")
	for i := range many {
		send(t, n, "", "/channel/create", url.Values{"topic": {"crowd"}, "channel": {fmt.Sprintf("channel-%03d", i)}}, "")
	}
	for range many {
		send(t, n, "", "/pub", url.Values{"topic": {"crowd"}, "defer": {"600000"}}, "later")
	}
}

// deadLetter makes the topic letters with the channel worker, whose only message a consumer has given back once too
// often.
func deadLetter(t *testing.T, c *harness.Cluster) {
	t.Helper()
	n, of := c.Nodes[0], url.Values{"topic": {"letters"}, "channel": {"worker"}}
	send(t, n, "", "/topic/create", url.Values{"topic": {"letters"}}, "")
	send(t, n, "", "/channel/create", of, "")
	send(t, n, "", "/channel/settings", of, `{"max_attempts": 1}`)
	send(t, n, "", "/pub", url.Values{"topic": {"letters"}}, "a letter that nobody could read")
	cfg := nsq.NewConfig()
	cfg.MaxAttempts, cfg.DefaultRequeueDelay, cfg.MaxBackoffDuration = 0, 0, 0
	consumer, err := nsq.NewConsumer("letters", "worker", cfg)
	if err != nil {
		t.Fatal(err)
	}
	consumer.SetLoggerLevel(nsq.LogLevelMax)
	tried := make(chan struct{}, 1)
	consumer.AddHandler(nsq.HandlerFunc(func(*nsq.Message) error {
		tried <- struct{}{}
		return errors.New("unreadable")
	}))
	if err := consumer.ConnectToNSQDs(c.NSQ()); err != nil {
		t.Fatal(err)
	}
	<-tried
	// A consumer that stops may forget to give a message back. Then it waits, and is no dead letter yet.
	for until := time.Now().Add(patience); deadLetters(t, n, of) != 1; time.Sleep(20 * time.Millisecond) {
		if time.Now().After(until) {
			t.Fatal("the message does not become a dead letter")
		}
	}
	consumer.Stop()
	<-consumer.StopChan
}

// deadLetters asks a node how many dead letters a channel has had.
func deadLetters(t *testing.T, n *harness.Node, of url.Values) (count int) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), "GET", "http://"+n.HTTP+"/channels?"+of.Encode(), nil)
	if err != nil {
		t.Fatal(err)
	}
	reply, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer reply.Body.Close()
	var list struct {
		Channels []struct {
			Count int `json:"dead_lettered_count"`
		}
	}
	if err := json.NewDecoder(reply.Body).Decode(&list); err != nil {
		t.Fatal(err)
	}
	for _, c := range list.Channels {
		count += c.Count
	}
	return count
}

func cluster(t *testing.T) *harness.Cluster {
	t.Helper()
	return started(t, harness.Dev, harness.Options{Dir: t.TempDir(), Nodes: 3})
}

func started(
	t *testing.T, start func(context.Context, harness.Options) (*harness.Cluster, error), o harness.Options,
) *harness.Cluster {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	c, err := start(ctx, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			c.PrintLogs(os.Stderr, 4<<10)
		}
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	return c
}

// Every page in every look, then what changes things, then dead nodes.
func TestConsole(t *testing.T) {
	c := cluster(t)
	fill(t, c, "")
	hold(t, c)
	twoCopies(t, c)
	crowd(t, c)
	deadLetter(t, c)
	// redrive comes before leaders change: the count of dead letters begins anew with a leader. search comes before texts,
	// which publishes to the topic that is searched.
	scenarios := []string{
		"pages", "reads", "still", "slow", "search", "texts", "settings", "node", "attends", "redrive",
		"move", "actions",
	}
	for _, scenario := range scenarios {
		t.Run(scenario, func(t *testing.T) { browse(t, scenario, c, nil) })
	}
	t.Run("large", func(t *testing.T) {
		wide(t, c)
		browse(t, "large", c, nil)
		send(t, c.Nodes[0], "", "/topic/delete", url.Values{"topic": {"wide"}}, "")
	})
	t.Run("dead", func(t *testing.T) {
		browse(t, "dead", c, func(what string) error {
			verb, names, _ := strings.Cut(what, " ")
			do := map[string]func(*harness.Node) error{
				"kill": (*harness.Node).Kill, "start": (*harness.Node).Start,
				"pause": (*harness.Node).Pause, "resume": (*harness.Node).Resume,
			}[verb]
			for _, name := range strings.Fields(names) {
				if err := do(c.Node(name)); err != nil {
					return err
				}
			}
			return nil
		})
	})
}

// writeTokens writes a node's file of tokens, from the lines of each token's grant by its name, which is its secret.
func writeTokens(file string, grants map[string]string) error {
	text := ""
	for name, grant := range grants {
		text += fmt.Sprintf("[[token]]\nname = %q\nsha256 = \"%x\"\n[[token.grant]]\n%s\n",
			name, sha256.Sum256([]byte(name)), grant)
	}
	return os.WriteFile(file, []byte(text), 0o600)
}

const (
	everything = "permissions = [\"admin\", \"publish\"]\ntopics = [\"*\"]"
	looking    = "permissions = [\"view\"]\ntopics = [\"*\"]"
	owning     = "permissions = [\"admin\", \"publish\"]\ntopics = [\"orders*\"]"
)

// A node that asks for tokens: one that may only look, one for a single topic, and one that may do everything.
func TestTokens(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "tokens.toml")
	grants := map[string]string{
		"looker": looking,
		"one":    "permissions = [\"view\"]\ntopics = [\"orders\"]",
		"root":   everything,
	}
	if err := writeTokens(file, grants); err != nil {
		t.Fatal(err)
	}
	c := started(t, harness.Single, harness.Options{Dir: dir, Serve: []string{"--auth-file", file}})
	fill(t, c, "root")
	browse(t, "tokens", c, func(string) error { // forget root
		delete(grants, "root")
		return errors.Join(writeTokens(file, grants), syscall.Kill(c.Nodes[0].PID(), syscall.SIGHUP))
	})
}

// A node of a cluster that asks for tokens: its pages offer what each of them may do, and ask for nothing else.
func TestRights(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "tokens.toml")
	grants := map[string]string{
		"looker": looking,
		"owner":  owning,
		"filler": "permissions = [\"publish\"]\ntopics = [\"orders\"]",
		"mailer": "permissions = [\"admin\"]\ntopics = [\"orders\"]\nchannels = [\"mail*\"]",
		"root":   everything,
	}
	if err := writeTokens(file, grants); err != nil {
		t.Fatal(err)
	}
	c := started(t, harness.Dev, harness.Options{Dir: dir, Nodes: 1})
	n := c.Nodes[0]
	n.Args = append(n.Args, "--auth-file", file) // only now: the harness, which waits for health, has no token
	if err := errors.Join(n.Kill(), n.Restart(t.Context())); err != nil {
		t.Fatal(err)
	}
	fill(t, c, "root")
	browse(t, "rights", c, func(what string) error {
		owns := what == "let the owner own"
		grants["owner"] = looking
		if owns {
			grants["owner"] = owning
		}
		err := errors.Join(writeTokens(file, grants), syscall.Kill(n.PID(), syscall.SIGHUP))
		for err == nil {
			var admin bool
			if admin, err = administers(t, n, "owner", "orders"); admin == owns {
				break
			}
		}
		return err
	})
}

// administers reports whether the node says that the token may administer the topic.
func administers(t *testing.T, n *harness.Node, token, topic string) (bool, error) {
	r, err := http.NewRequestWithContext(t.Context(), "GET", "http://"+n.HTTP+"/session?topic="+topic, nil)
	if err != nil {
		return false, err
	}
	r.Header.Set("Authorization", "Bearer "+token)
	reply, err := http.DefaultClient.Do(r)
	if err != nil {
		return false, err
	}
	var s struct {
		May struct {
			Admin bool `json:"admin"`
		} `json:"may"`
	}
	return s.May.Admin, errors.Join(json.NewDecoder(reply.Body).Decode(&s), reply.Body.Close())
}

// As many topics as a node has by default. Their files are in memory, where a node syncs nothing: this is about the
// console.
func TestManyTopics(t *testing.T) {
	dir, err := os.MkdirTemp("/dev/shm", "penstock-console")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	c := started(t, harness.Single, harness.Options{Dir: t.TempDir(), Volumes: map[int]string{0: dir}})
	fill(t, c, "")
	begin := time.Now()
	jobs := make(chan int)
	var wg sync.WaitGroup
	for range 32 {
		wg.Go(func() {
			for i := range jobs {
				send(t, c.Nodes[0], "", "/topic/create", url.Values{"topic": {fmt.Sprintf("many-%05d", i)}}, "")
			}
		})
	}
	for i := range manyTopics - 4 { // fill made the others
		jobs <- i
	}
	close(jobs)
	wg.Wait()
	t.Logf("%d topics were made in %v", manyTopics, time.Since(begin))
	browse(t, "many", c, nil)
}
