//go:build cluster

package cluster

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	gonsq "github.com/nsqio/go-nsq"

	"penstock/tests/cluster/harness"
	"penstock/tests/cluster/workload"
)

const (
	clockDirVariable = "TEST_CLOCK_DIR" // internal/node/clock_offset.go
	clockSaid        = "the wall clock of this node was set"
	clockWait        = 4 * time.Second // a delay; steps come meanwhile
	delayTopic       = "delays"
)

// clocks is a cluster whose nodes have wall clocks that the test sets.
type clocks struct {
	*scenario
	dir     string
	set     map[string]int // steps, by node
	delayed int
	came    sync.Map // body of a message with a delay to the channel that is told its time
}

// F5: the wall clocks of nodes step by hours, both ways, under load, with retention by age. Nothing that was not read
// goes, a delay ends by the time that has passed, and consumers get everything. A channel without consumers keeps what
// retention must not take. A leader whose clock is ahead by more than the age of producers forgets none of them.
func TestClockSteps(t *testing.T) {
	needNet(t)
	c := beginClocks(t)
	// one long fault: what comes again is not what this test is about
	heal := c.fault("clocks are set", "all", func() error { return nil })
	steps := []time.Duration{2 * time.Hour, -2 * time.Hour, 30 * time.Hour, 0}
	writers := c.startWriters()
	for round := range rounds(t, 1) {
		for i, d := range steps {
			due := c.delay()
			if (round+i)%2 == 0 { // all of them, or one
				for _, n := range c.c.Nodes {
					c.step(n, d)
				}
			} else {
				c.step(c.c.Nodes[round%len(c.c.Nodes)], d)
			}
			c.acks(500)
			due()
		}
		for _, n := range c.c.Nodes { // the next round begins with right clocks
			c.step(n, 0)
		}
	}
	heal(func() error { return nil })
	for _, n := range c.c.Nodes { // a node that begins with a wrong clock removes nothing either
		c.try(c.write(n, 30*time.Hour))
		c.crash("kill, and a wrong clock at the start", n, func() { c.acks(200) })
		c.healthy()
		c.acks(200)
	}
	c.run.Consume(workload.Consumer{Name: "late", Channel: "slow"})
	if r := c.judge(); !r.OK() || r.Acked == 0 {
		c.t.Errorf("the engine broke a promise: %v (%d acknowledged)", r.Counts, r.Acked)
	}
	for round := range rounds(t, 1) {
		writers.leap(round)
	}
	writers.end()
}

// A node that is started with a clock that is 5 s ahead says so, of which nodes, and leads nothing. What is published
// with a delay through it comes after the delay, within half a second, as the clock of a leader that is right says.
func TestClockDiffersFromOthers(t *testing.T) {
	const ahead, wait, most = 5 * time.Second, 2 * time.Second, 500 * time.Millisecond
	needNet(t)
	c := startClocks(t)
	wrong := c.c.Nodes[2]
	c.try(c.write(wrong, ahead))
	c.try(wrong.Kill())
	c.try(wrong.Restart(c.within(startTimeout)))
	began := time.Now()
	c.healthSays(wrong, "this node's clock is 5.0s ahead of those of nodes")
	c.try(c.c.Led(c.within(startTimeout), wrong.Name))
	c.t.Logf("%s leads nothing after %v", wrong.Name, time.Since(began))
	late := []time.Duration{}
	for range 5 { // a busy machine delivers late, but not each time
		took := c.publishDelayed(wrong, wait)()
		if took < wait {
			c.t.Fatalf("a message with a delay of %v came after %v", wait, took)
		}
		if took <= wait+most {
			break
		}
		late = append(late, took)
	}
	if len(late) == 5 {
		c.t.Errorf("messages with a delay of %v came after %v", wait, late)
	}
	c.try(c.c.Healthy(c.within(startTimeout)))
	c.try(c.c.Led(c.within(startTimeout), wrong.Name)) // it is in sync, and does not lead all the same
}

// healthSays waits until the health of a node has these words.
func (c *clocks) healthSays(n *harness.Node, words string) {
	c.t.Helper()
	ctx := c.within(startTimeout)
	for said := ""; ; c.pass(50 * time.Millisecond) {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+n.HTTP+"/health", nil)
		c.try(err)
		if resp, err := http.DefaultClient.Do(req); err == nil {
			body, err := io.ReadAll(resp.Body)
			c.try(errors.Join(err, resp.Body.Close()))
			if said = string(body); strings.Contains(said, words) {
				return
			}
		}
		if ctx.Err() != nil {
			c.t.Fatalf("the health of %s does not say %q:\n%s", n.Name, words, said)
		}
	}
}

func beginClocks(t *testing.T) *clocks {
	t.Helper()
	c := startClocks(t)
	c.load()
	c.run.Produce(workload.Producer{Name: "large", Addresses: c.run.Nodes, Window: 16, PerSecond: 60, BodyBytes: 30_000})
	c.acks(500)
	return c
}

// startClocks starts the nodes and consumes what comes after delays.
func startClocks(t *testing.T) *clocks {
	t.Helper()
	binary := filepath.Join(t.TempDir(), "engine")
	if out, err := exec.Command("go", "build", "-tags", "clock", "-o", binary,
		"penstock/cmd/engine").CombinedOutput(); err != nil {
		t.Fatalf("building the engine: %v\n%s", err, out)
	}
	c := &clocks{dir: t.TempDir(), set: map[string]int{}}
	t.Setenv(harness.BinaryVariable, binary)
	t.Setenv(clockDirVariable, c.dir)
	c.scenario = prepare(t, spread, harness.Options{
		Serve: slices.Concat(small, []string{"--retention-age", "1h", "--retention-interval", "100ms"}),
	})
	ctx := c.within(startTimeout)
	c.try(c.run.CreateChannel("slow", false, func() error { return c.c.CreateChannel(ctx, topic, "slow") }))
	c.try(c.c.CreateTopic(ctx, delayTopic))
	c.try(c.c.CreateChannel(ctx, delayTopic, "d"))
	c.takeDelayed()
	return c
}

func (c *clocks) write(n *harness.Node, d time.Duration) error {
	tmp := filepath.Join(c.dir, "tmp")
	if err := os.WriteFile(tmp, []byte(d.String()), 0o600); err != nil {
		return err
	}
	return os.Rename(tmp, filepath.Join(c.dir, n.Name))
}

// step sets a node's clock and waits until retention has looked since then. The node says the first step of a minute.
func (c *clocks) step(n *harness.Node, d time.Duration) {
	c.t.Helper()
	c.try(c.write(n, d))
	c.pass(time.Second)
	if c.set[n.Name]++; c.set[n.Name] > 1 {
		return
	}
	for end := time.Now().Add(startTimeout); !strings.Contains(n.LogTail(1<<20),
		clockSaid); c.pass(50 * time.Millisecond) {
		if time.Now().After(end) {
			c.t.Fatalf("%s does not say that its clock was set", n.Name)
		}
	}
}

// takeDelayed consumes what comes after its delay. Its connections end when leaderships move, as they do on a machine
// that is busy.
func (c *clocks) takeDelayed() {
	c.t.Helper()
	cfg := gonsq.NewConfig()
	cfg.LookupdPollInterval = 100 * time.Millisecond // also after how long it connects again
	// with fewer than nodes it leaves some at RDY 0 for a minute and longer
	cfg.MaxInFlight = 2 * len(c.c.Nodes)
	consumer, err := gonsq.NewConsumer(delayTopic, "d", cfg)
	c.try(err)
	consumer.SetLogger(log.New(io.Discard, "", 0), gonsq.LogLevelError)
	consumer.AddHandler(gonsq.HandlerFunc(func(m *gonsq.Message) error {
		if came, ok := c.came.Load(string(m.Body)); ok {
			select {
			case came.(chan time.Time) <- time.Now():
			default: // it came before
			}
		}
		return nil
	}))
	c.try(consumer.ConnectToNSQDs(c.run.Nodes))
	c.t.Cleanup(consumer.Stop)
}

// delay publishes a message with a delay; the result waits until it comes, not before its time.
func (c *clocks) delay() (due func()) {
	c.t.Helper()
	after := c.publishDelayed(c.c.Nodes[(c.delayed+1)%len(c.c.Nodes)], clockWait)
	return func() {
		c.t.Helper()
		if took := after(); took < clockWait {
			c.t.Errorf("a message with a delay of %v came after %v", clockWait, took)
		}
	}
}

// publishDelayed publishes a message with a delay at a node; the result waits until it comes, and says after how long.
func (c *clocks) publishDelayed(n *harness.Node, wait time.Duration) (came func() time.Duration) {
	c.t.Helper()
	c.delayed++
	body := "delayed " + strconv.Itoa(c.delayed)
	at := make(chan time.Time, 1)
	c.came.Store(body, at)
	began := time.Now()
	url := fmt.Sprintf("http://%s/pub?topic=%s&defer=%d", n.HTTP, delayTopic, wait.Milliseconds())
	ctx, cancel := context.WithTimeout(c.t.Context(), startTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewBufferString(body))
	c.try(err)
	resp, err := http.DefaultClient.Do(req)
	c.try(err)
	c.try(resp.Body.Close())
	if resp.StatusCode != http.StatusOK {
		c.t.Fatalf("publishing with a delay: %s", resp.Status)
	}
	return func() time.Duration {
		c.t.Helper()
		select {
		case t := <-at:
			return t.Sub(began)
		case <-time.After(startTimeout):
			c.t.Fatalf("a message with a delay of %v did not come within %v", wait, startTimeout)
			return 0
		}
	}
}
