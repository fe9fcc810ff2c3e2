//go:build clients

package clients

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"penstock/tests/cluster/harness"
)

const patience = 3 * time.Minute

// apps is where the programs of nsqio/nsq are.
var apps string

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
	if apps, err = os.MkdirTemp("", "penstock-nsqio"); err != nil {
		return 1, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(apps)) }()
	build := exec.Command("go", "build", "-o", apps+"/", "tool")
	build.Dir = "nsqio"
	if out, err := build.CombinedOutput(); err != nil {
		return 1, fmt.Errorf("building nsqio/nsq: %w\n%s", err, out)
	}
	install := exec.Command("npm", "ci", "--no-audit", "--no-fund", "--ignore-scripts")
	install.Dir = "nsqjs"
	if out, err := install.CombinedOutput(); err != nil {
		return 1, fmt.Errorf("installing nsqjs: %w\n%s", err, out)
	}
	return m.Run(), nil
}

// everywhere runs a test against one node and against three.
func everywhere(t *testing.T, test func(t *testing.T, c *harness.Cluster)) {
	for _, x := range []struct {
		name  string
		start func(context.Context, harness.Options) (*harness.Cluster, error)
		nodes int
	}{{"node", harness.Single, 1}, {"cluster", harness.Dev, 3}} {
		t.Run(x.name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			c, err := x.start(ctx, harness.Options{Dir: t.TempDir(), Nodes: x.nodes})
			if err != nil {
				t.Fatal(err)
			}
			defer func() {
				if t.Failed() {
					c.PrintLogs(os.Stderr, 4<<10)
				}
				if err := c.Close(); err != nil {
					t.Error(err)
				}
			}()
			test(t, c)
		})
	}
}

// create makes a topic with channels, so that what is published next is for all of them.
func create(t *testing.T, c *harness.Cluster, topic string, channels ...string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if err := c.CreateTopic(ctx, topic); err != nil {
		t.Fatal(err)
	}
	for _, name := range channels {
		if err := c.CreateChannel(ctx, topic, name); err != nil {
			t.Fatal(err)
		}
	}
}

// program runs one of them to its end and returns what it printed.
func program(t *testing.T, input string, name string, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, filepath.Join(apps, name), args...)
	cmd.Stdin = strings.NewReader(input)
	var out, log bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &log
	if err := cmd.Run(); err != nil {
		t.Fatalf("%s: %v\n%s\n%s", name, err, &out, &log)
	}
	return out.String()
}

// background starts one of them; the test's end stops it.
func background(t *testing.T, name string, args ...string) {
	t.Helper()
	cmd := exec.Command(filepath.Join(apps, name), args...)
	var log bytes.Buffer
	cmd.Stdout, cmd.Stderr = &log, &log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Signal(os.Interrupt)
		_ = cmd.Wait()
		if t.Failed() {
			t.Logf("%s:\n%s", name, &log)
		}
	})
}

// lookups are the flags that name every lookup service.
func lookups(c *harness.Cluster) []string {
	var flags []string
	for _, a := range c.Lookups() {
		flags = append(flags, "-lookupd-http-address="+a)
	}
	return flags
}

func lines(prefix string, count int) []string {
	var out []string
	for i := range count {
		out = append(out, fmt.Sprintf("%s%05d", prefix, i))
	}
	return out
}

// until repeats what until it returns true.
func until(t *testing.T, why string, holds func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !holds(); time.Sleep(50 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal(why)
		}
	}
}

// Lines go in through to_nsq at one node and come out, all of them, through nsq_tail, nsq_to_file and, from a copy of
// the topic, nsq_to_nsq, which find the topic by lookups.
func TestUtilities(t *testing.T) {
	everywhere(t, func(t *testing.T, c *harness.Cluster) {
		const count = 2000
		in := lines("line", count)
		first, last := c.Nodes[0], c.Nodes[len(c.Nodes)-1]
		dir := t.TempDir()
		create(t, c, "lines", "file", "copy", "tail")
		create(t, c, "copied", "file") // a consumer that does not find its topic asks again after a minute
		program(t, strings.Join(in, "\n")+"\n", "to_nsq", "-topic=lines", "-nsqd-tcp-address="+first.NSQ)

		out := program(t, "", "nsq_tail", append(lookups(c), "-topic=lines", "-channel=tail", fmt.Sprintf("-n=%d", count))...)
		got := strings.Fields(out)
		slices.Sort(got)
		if got = slices.Compact(got); !slices.Equal(got, in) {
			t.Errorf("nsq_tail printed %d of %d lines", len(got), count)
		}

		background(t, "nsq_to_nsq", append(lookups(c), "-topic=lines", "-channel=copy", "-destination-topic=copied",
			"-destination-nsqd-tcp-address="+last.NSQ)...)
		background(t, "nsq_to_file", append(lookups(c), "-topic=lines", "-channel=file", "-output-dir="+dir,
			"-sync-interval=200ms")...)
		background(t, "nsq_to_file", append(lookups(c), "-topic=copied", "-channel=file", "-output-dir="+dir,
			"-sync-interval=200ms")...)
		for _, topic := range []string{"lines", "copied"} {
			until(t, "nsq_to_file did not write all of "+topic, func() bool {
				files, _ := filepath.Glob(filepath.Join(dir, topic+".*"))
				var all []string
				for _, f := range files {
					data, err := os.ReadFile(f)
					if err != nil {
						t.Fatal(err)
					}
					all = append(all, strings.Fields(string(data))...)
				}
				slices.Sort(all)
				return slices.Equal(slices.Compact(all), in)
			})
		}
	})
}

// nsq_stat and nsqadmin end themselves when an answer lacks what they expect.
func TestNsqStatAndNsqadmin(t *testing.T) {
	everywhere(t, func(t *testing.T, c *harness.Cluster) {
		create(t, c, "seen", "c")
		program(t, "one\ntwo\n", "to_nsq", "-topic=seen", "-nsqd-tcp-address="+c.Nodes[0].NSQ)
		out := program(t, "", "nsq_stat", append(lookups(c), "-topic=seen", "-channel=c", "-count=2", "-interval=200ms")...)
		if !strings.Contains(out, "2") {
			t.Errorf("nsq_stat printed:\n%s", out)
		}

		ln, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		address := ln.Addr().String()
		if err := ln.Close(); err != nil {
			t.Fatal(err)
		}
		background(t, "nsqadmin", append(lookups(c), "-http-address="+address)...)
		until(t, "nsqadmin does not answer", func() bool {
			resp, err := http.Get("http://" + address + "/ping")
			if err == nil {
				resp.Body.Close()
			}
			return err == nil && resp.StatusCode == 200
		})
		var topics struct{ Topics []string }
		ask(t, address, "GET", "/api/topics", "", &topics)
		if !slices.Contains(topics.Topics, "seen") {
			t.Errorf("nsqadmin sees the topics %q", topics.Topics)
		}
		var topic struct{ Depth, MessageCount int }
		var raw map[string]any
		ask(t, address, "GET", "/api/topics/seen", "", &raw)
		if topic.MessageCount = int(raw["message_count"].(float64)); topic.MessageCount != 2 {
			t.Errorf("nsqadmin counts %d messages", topic.MessageCount)
		}
		if m := raw["message"]; m != "" {
			t.Errorf("nsqadmin warns: %v", m)
		}
		var nodes struct {
			Nodes []struct {
				OutOfDate bool `json:"out_of_date"`
			}
		}
		ask(t, address, "GET", "/api/nodes", "", &nodes)
		if len(nodes.Nodes) != len(c.Nodes) {
			t.Errorf("nsqadmin sees %d nodes", len(nodes.Nodes))
		}
		ask(t, address, "GET", "/api/counter", "", &raw)
		ask(t, address, "POST", "/api/topics/seen/c", `{"action":"pause"}`, nil)
		ask(t, address, "POST", "/api/topics/seen/c", `{"action":"unpause"}`, nil)
		ask(t, address, "POST", "/api/topics/seen/c", `{"action":"empty"}`, nil)
		ask(t, address, "POST", "/api/topics", `{"topic":"made","channel":"here"}`, nil)
		ask(t, address, "GET", "/api/topics/made", "", &raw)
	})
}

// ask speaks with nsqadmin.
func ask(t *testing.T, address, method, path, body string, into any) {
	t.Helper()
	req, err := http.NewRequest(method, "http://"+address+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != 200 {
		t.Fatalf("nsqadmin %s %s: %s %s %v", method, path, resp.Status, data, err)
	}
	if into == nil {
		return
	}
	if err := json.Unmarshal(data, into); err != nil {
		t.Fatalf("nsqadmin %s: %v in %s", path, err, data)
	}
}

// nsqjs publishes to one node and finds the topic by lookups; B98 for the client's own TLS and compression is held by
// packages server and nsq.
func TestNSQJS(t *testing.T) {
	everywhere(t, func(t *testing.T, c *harness.Cluster) {
		for i, wire := range []string{"", "snappy", "deflate"} {
			t.Run("wire="+wire, func(t *testing.T) {
				const count = 1000
				ctx, cancel := context.WithTimeout(t.Context(), patience)
				defer cancel()
				cmd := exec.CommandContext(ctx, "node", "roundtrip.js", c.Nodes[i%len(c.Nodes)].NSQ, strings.Join(c.Lookups(), ","),
					"js"+wire, fmt.Sprint(count), wire)
				cmd.Dir = "nsqjs"
				var log bytes.Buffer
				cmd.Stderr = &log
				out, err := cmd.Output()
				var r struct {
					Messages, Redelivered, DeferredAfterMs int
					Errors                                 []string
				}
				if err != nil || json.Unmarshal(out, &r) != nil {
					t.Fatalf("%v\n%s%s", err, out, &log)
				}
				if r.Messages != count+1 || r.Redelivered != 1 || r.DeferredAfterMs < 300 {
					t.Errorf("nsqjs saw %+v", r)
				}
			})
		}
	})
}
