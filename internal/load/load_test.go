package load

import (
	"bytes"
	"context"
	"encoding/json"
	"strings"
	"testing"
	"time"
)

func config(p *peer) Config {
	return Config{
		Address: p.address(), Topic: "topic", Channel: "ch", Connections: 2, InFlight: 8, Batch: 1, SizeBytes: 100, Ready: 50,
		Messages: 1000,
	}
}

// crowdOf returns config with enough connections that one goroutine serves them all.
func crowdOf(p *peer) Config {
	cfg := config(p)
	cfg.Connections = 2 * crowdCount
	return cfg
}

func TestPublishClosed(t *testing.T) {
	for _, c := range []struct{ batch, connections int }{{1, 2}, {10, 2}, {1, 2 * crowdCount}, {10, 2 * crowdCount}} {
		p := newPeer(t)
		cfg := config(p)
		batch := c.batch
		cfg.Batch, cfg.Connections = batch, c.connections
		if cfg.crowded() != (c.connections > crowdCount) {
			t.Fatalf("%d connections in a crowd: %v", c.connections, cfg.crowded())
		}
		report, err := Publish(t.Context(), cfg)
		if err != nil {
			t.Fatal(err)
		}
		p.mu.Lock()
		want := map[int]string{1: "PUB", 10: "MPUB"}[batch]
		if got := p.commands[want]; got != 1000/batch {
			t.Errorf("the peer saw %d %s commands, want %d", got, want, 1000/batch)
		}
		if p.bodies[string(body(100))] != 1000 {
			t.Errorf("bodies arrived changed: %d kinds", len(p.bodies))
		}
		p.mu.Unlock()
		if report.Messages != 1000 || report.Errors != 0 || report.MessagesPerSecond <= 0 {
			t.Errorf("report: %+v", report)
		}
		l := report.Latencies[0]
		if l.Count != int64(1000/batch) || l.P50 <= 0 || l.P50 > l.P99 || l.P99 > l.Max {
			t.Errorf("latencies: %+v", l)
		}
	}
}

// Messages with headers are sent as PUB_EXT and MPUB_EXT in every kind of loop, and when sub fills the topic. The
// report names the headers.
func TestPublishHeaders(t *testing.T) {
	for _, c := range []struct {
		verb               string
		batch, connections int
		rate               float64
		described          string
	}{
		{"PUB_EXT", 1, 2, 0, "2 connections × 8 in flight, PUB_EXT, 100 B + 3 headers (85 B of JSON), closed loop"},
		{"MPUB_EXT", 10, 2, 0, "2 connections × 8 in flight, MPUB_EXT ×10, 100 B + 3 headers (85 B of JSON), closed loop"},
		{"PUB_EXT", 1, crowdCount, 0, "8 connections × 8 in flight, PUB_EXT, 100 B + 3 headers (85 B of JSON), closed loop"},
		{"PUB_EXT", 1, 2, 20_000, "2 connections, PUB_EXT, 100 B + 3 headers (85 B of JSON), open loop at 20,000 msg/s"},
	} {
		p := newPeer(t)
		cfg := config(p)
		cfg.Headers, cfg.Batch, cfg.Connections, cfg.Rate = 3, c.batch, c.connections, c.rate
		report, err := Publish(t.Context(), cfg)
		if err != nil {
			t.Fatal(err)
		}
		p.mu.Lock()
		if got := p.commands[c.verb]; got != 1000/c.batch {
			t.Errorf("%s: the peer saw %d commands, want %d", c.verb, got, 1000/c.batch)
		}
		if p.bodies[string(body(100))] != 1000 || p.headers["header-000"] != 1000 || len(p.headers) != 3 {
			t.Errorf("%s: %d bodies of the run, headers %v", c.verb, p.bodies[string(body(100))], p.headers)
		}
		p.mu.Unlock()
		if text := report.describe(); report.Messages != 1000 || report.Headers != 3 ||
			!strings.HasSuffix(text, c.described) {
			t.Errorf("%d messages with %d headers, described as %q", report.Messages, report.Headers, text)
		}
	}
}

func TestEndToEndAndFillWithHeaders(t *testing.T) {
	p := newPeer(t)
	cfg := config(p)
	cfg.Headers, cfg.Rate = 3, 5000
	report, err := EndToEnd(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	if report.Foreign != 0 || report.Latencies[0].Count < 999 {
		t.Errorf("what was measured: %+v", report)
	}
	p = newPeer(t)
	cfg = config(p)
	cfg.Headers, cfg.Fill = 3, true
	if report, err = Consume(t.Context(), cfg); err != nil {
		t.Fatal(err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.finished != 1000 || p.headers["header-002"] != 1000 ||
		!strings.HasSuffix(report.describe(), "filled with messages of 100 B + 3 headers") {
		t.Errorf("%d finished, headers %v, described as %q", p.finished, p.headers, report.describe())
	}
}

func TestPublishStopsAtDuration(t *testing.T) {
	for _, of := range []func(*peer) Config{config, crowdOf} {
		p := newPeer(t)
		cfg := of(p)
		cfg.Messages, cfg.WarmUp, cfg.Duration = 0, 500*time.Millisecond, 500*time.Millisecond
		report, err := Publish(t.Context(), cfg)
		if err != nil {
			t.Fatal(err)
		}
		p.mu.Lock()
		sent := int64(p.commands["PUB"])
		p.mu.Unlock()
		if report.Messages == 0 || report.Messages >= sent {
			t.Errorf("measured %d of %d messages: the warm-up must not count", report.Messages, sent)
		}
		if report.Elapsed < 250*time.Millisecond || report.Elapsed > 20*time.Second {
			t.Errorf("elapsed %v", report.Elapsed)
		}
	}
}

// A stall of the server must show in the latencies of an open loop, for every message that should have been sent during
// the stall.
func TestOpenLoopKeepsItsSchedule(t *testing.T) {
	p := newPeer(t)
	cfg := config(p)
	cfg.Rate, cfg.Messages = 2000, 1000
	go func() {
		for { // stall the peer for 200 ms once it has seen a tenth
			p.mu.Lock()
			if p.commands["PUB"] >= 100 {
				<-time.After(200 * time.Millisecond)
				p.mu.Unlock()
				return
			}
			p.mu.Unlock()
			<-time.After(time.Millisecond)
		}
	}()
	report, err := Publish(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	if report.Messages != 1000 {
		t.Errorf("%d messages, want 1000", report.Messages)
	}
	// 400 of 1000 messages were due during the stall; their latencies fall from 200 ms to 0.
	if l := report.Latencies[0]; l.P90 < 50*time.Millisecond || l.Max < 150*time.Millisecond {
		t.Errorf("the stall of 200 ms is hidden: %+v", l)
	}
	if report.Elapsed < 450*time.Millisecond {
		t.Errorf("1000 messages at 2000 a second took %v", report.Elapsed)
	}
}

func TestConsume(t *testing.T) {
	p := newPeer(t)
	cfg := config(p)
	cfg.Fill = true
	report, err := Consume(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.finished != 1000 || report.Messages != 1000 {
		t.Errorf("%d messages finished, %d reported, want 1000", p.finished, report.Messages)
	}
	// Each subscription was sent one heartbeat, and the peer may read the answers after Consume has returned. The
	// connection that only created the channel left without answering its own.
	for end := time.Now().Add(10 * time.Second); p.commands["NOP"] < 2 && time.Now().Before(end); {
		p.mu.Unlock()
		<-time.After(time.Millisecond)
		p.mu.Lock()
	}
	if p.commands["NOP"] != p.heartbeats-1 || p.heartbeats != 3 {
		t.Errorf("%d of %d heartbeats were answered", p.commands["NOP"], p.heartbeats)
	}
}

func TestEndToEnd(t *testing.T) {
	p := newPeer(t)
	p.messages = append(p.messages, []byte("a message of an earlier run, to be finished and not measured"))
	cfg := config(p)
	cfg.Rate, cfg.Messages = 5000, 1000
	report, err := EndToEnd(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	p.mu.Lock()
	if p.finished < 1000 {
		t.Errorf("%d messages finished, want at least 1000", p.finished)
	}
	p.mu.Unlock()
	if len(report.Latencies) != 3 || report.Foreign != 1 {
		t.Fatalf("report: %+v", report)
	}
	if call, intended := report.Latencies[0], report.Latencies[1]; call.Count < 999 || intended.P50 < call.P50/2 {
		t.Errorf("latencies: %+v", report.Latencies)
	}
}

func TestPublishReportsRefusal(t *testing.T) {
	for _, of := range []func(*peer) Config{config, crowdOf} {
		p := newPeer(t)
		p.failPub = 10
		report, err := Publish(t.Context(), of(p))
		if err == nil || !strings.Contains(err.Error(), "E_PUB_FAILED") {
			t.Fatalf("error: %v", err)
		}
		if report == nil || report.Errors == 0 || report.FirstError == "" {
			t.Errorf("report: %+v", report)
		}
	}
}

func TestInterruptEndsAWaitingRun(t *testing.T) {
	p := newPeer(t)
	p.mute = true
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	for name, rate := range map[string]float64{"closed": 0, "crowd": 0, "open": 100} {
		cfg := config(p)
		if cfg.Rate = rate; name == "crowd" {
			cfg = crowdOf(p)
		}
		if _, err := Publish(ctx, cfg); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

func TestConfigCheck(t *testing.T) {
	good := Config{Topic: "t", Connections: 1, InFlight: 1, Batch: 1, SizeBytes: 1, Ready: 1, Messages: 1}
	if err := good.check(); err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func(*Config){
		"topic":       func(c *Config) { c.Topic = "" },
		"connections": func(c *Config) { c.Connections = MaxConnections + 1 },
		"in-flight":   func(c *Config) { c.InFlight = 0 },
		"batch":       func(c *Config) { c.Batch = 0 },
		"size":        func(c *Config) { c.SizeBytes = 0 },
		"headers":     func(c *Config) { c.Headers = MaxHeaders + 1 },
		"no headers":  func(c *Config) { c.Headers = -1 },
		"rdy":         func(c *Config) { c.Ready = 0 },
		"rate":        func(c *Config) { c.Rate = -1 },
		"multiple":    func(c *Config) { c.Batch, c.Messages = 10, 15 },
		"no end":      func(c *Config) { c.Messages = 0 },
	} {
		c := good
		change(&c)
		if c.check() == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

func TestBudget(t *testing.T) {
	b := newBudget(10)
	if a, c, d := b.take(8), b.take(8), b.take(8); a != 8 || c != 2 || d != 0 {
		t.Errorf("take: %d %d %d, want 8 2 0", a, c, d)
	}
	if newBudget(0).take(5) != 5 {
		t.Error("an unlimited budget ran out")
	}
}

func TestFrameReader(t *testing.T) {
	big := bytes.Repeat([]byte("x"), 100<<10)
	stream := append([]byte{0, 0, 0, 6, 0, 0, 0, 0, 'O', 'K'}, 0, 1, 0x90, 4, 0, 0, 0, 2) // the second has 102404 bytes
	// the third is too short to hold its type
	stream = append(append(stream, big...), 0, 0, 0, 3, 0, 0, 0, 0)
	for _, step := range []int{1, 7, 4096, len(stream)} {
		f := newFrameReader(&chunks{data: stream, step: step})
		var got []string
		for len(got) < 2 {
			_, data, ok, err := f.next()
			if err != nil {
				t.Fatal(err)
			}
			if ok {
				got = append(got, string(data))
			} else if err := f.fill(); err != nil {
				t.Fatal(err)
			}
		}
		if got[0] != "OK" || got[1] != string(big) {
			t.Errorf("step %d: frames of %d and %d bytes", step, len(got[0]), len(got[1]))
		}
		for {
			_, _, ok, err := f.next()
			if err != nil {
				break
			}
			if ok {
				t.Fatal("a frame without a type was accepted")
			}
			if err := f.fill(); err != nil {
				t.Fatal(err)
			}
		}
	}
}

func TestReportText(t *testing.T) {
	for v, want := range map[float64]string{0: "0", 999: "999", 1000: "1,000", 1234567: "1,234,567"} {
		if got := grouped(v); got != want {
			t.Errorf("grouped(%v) = %s, want %s", v, got, want)
		}
	}
	for d, want := range map[time.Duration]string{
		85 * time.Microsecond: "85µs", 1500 * time.Microsecond: "1.50ms", 15 * time.Millisecond: "15ms",
		2 * time.Second: "2.00s",
	} {
		if got := shortDuration(d); got != want {
			t.Errorf("shortDuration(%v) = %s, want %s", d, got, want)
		}
	}
	p := newPeer(t)
	report, err := Publish(t.Context(), config(p))
	if err != nil {
		t.Fatal(err)
	}
	var text, asJSON bytes.Buffer
	if err := report.WriteText(&text); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"durability  unknown", "msg/s", "p99.999", "2 connections × 8 in flight"} {
		if !strings.Contains(text.String(), want) {
			t.Errorf("the report lacks %q:\n%s", want, text.String())
		}
	}
	if err := report.WriteJSON(&asJSON); err != nil {
		t.Fatal(err)
	}
	var back Report
	if err := json.Unmarshal(asJSON.Bytes(), &back); err != nil || back.Messages != 1000 {
		t.Errorf("JSON: %v, %d messages", err, back.Messages)
	}
}

// The generator must not be the bottleneck: sending a command and reading its answer allocates nothing.
func TestPublishAllocatesNothingPerMessage(t *testing.T) {
	reply := bytes.Repeat([]byte{0, 0, 0, 6, 0, 0, 0, 0, 'O', 'K'}, 8)
	r := &run{cfg: &Config{Topic: "topic", InFlight: 8, Batch: 1, SizeBytes: 100}, budget: newBudget(0)}
	r.clock.base = time.Now()
	conn := &chunks{data: reply, step: len(reply), again: true}
	p := newPublisher(r, conn, newFrameReader(conn), newMeter(1))
	if n := testing.AllocsPerRun(100, func() {
		if _, err := p.send(); err != nil {
			t.Fatal(err)
		}
		if err := p.receive(); err != nil {
			t.Fatal(err)
		}
	}); n != 0 {
		t.Errorf("%v allocations per turn of 8 messages", n)
	}
}
