package main

import (
	"bytes"
	sizes "encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"penstock/tests/support/patience"
)

var lookupAddress = regexp.MustCompile(`msg=ready .* lookup=(\S+)`)

// closedNode starts a node whose clients have to send AUTH; the secret is "s3cret-token".
func closedNode(t *testing.T, args ...string) *process {
	t.Helper()
	tokens := filepath.Join(t.TempDir(), "tokens.toml")
	writeToken(t, tokens, "s3cret-token")
	return startNode(t, t.TempDir(), append([]string{"--auth-file", tokens}, args...)...)
}

// dialNSQ opens a connection and sends text.
func (p *process) dialNSQ(text string) net.Conn {
	p.t.Helper()
	nc, err := net.Dial("tcp", p.nsq)
	must(p.t, err)
	p.t.Cleanup(func() { nc.Close() })
	must(p.t, nc.SetDeadline(time.Now().Add(30*time.Second)))
	_, err = io.WriteString(nc, text)
	must(p.t, err)
	return nc
}

func sizedBody(body string) string {
	return string(sizes.BigEndian.AppendUint32(nil, uint32(len(body)))) + body
}

// answer returns the next frame's data.
func answer(nc net.Conn) (string, error) {
	var head [8]byte
	if _, err := io.ReadFull(nc, head[:]); err != nil {
		return "", err
	}
	data := make([]byte, sizes.BigEndian.Uint32(head[:])-4)
	_, err := io.ReadFull(nc, data)
	return string(data), err
}

// publishes fails the test if the connection cannot publish.
func publishes(t *testing.T, nc net.Conn) {
	t.Helper()
	must(t, publishOne(nc))
}

// publishOne publishes a message to topic t, and returns an error unless the answer is OK.
func publishOne(nc net.Conn) error {
	if _, err := io.WriteString(nc, "PUB t\n"+sizedBody("x")); err != nil {
		return err
	}
	for {
		switch text, err := answer(nc); {
		case err != nil:
			return err
		case text == "OK":
			return nil
		case text != "_heartbeat_":
			return errors.New("a PUB is answered with " + text)
		}
	}
}

// peakBytes returns the most memory that the process has had since forgetPeak.
func (p *process) peakBytes() int64 {
	p.t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.cmd.Process.Pid))
	must(p.t, err)
	_, rest, _ := bytes.Cut(text, []byte("VmHWM:"))
	kib, err := strconv.ParseInt(string(bytes.Fields(rest)[0]), 10, 64)
	must(p.t, err)
	return kib << 10
}

func (p *process) forgetPeak() {
	p.t.Helper()
	must(p.t, os.WriteFile(fmt.Sprintf("/proc/%d/clear_refs", p.cmd.Process.Pid), []byte("5"), 0))
}

// waitUntil polls for an effect of the node.
func waitUntil(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(patience.Or(90 * time.Second)); !ok(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("waited in vain for %s", what)
		}
	}
}

// metric returns the value of a series in the node's metrics.
func (p *process) metric(series string) float64 {
	p.t.Helper()
	_, body := p.get("/metrics", "s3cret-token") // the token of closedNode
	for line := range strings.SplitSeq(body, "\n") {
		if text, ok := strings.CutPrefix(line, "penstock_"+series+" "); ok {
			v, err := strconv.ParseFloat(text, 64)
			must(p.t, err)
			return v
		}
	}
	p.t.Fatalf("/metrics has no %s", series)
	return 0
}

// O8. A hundred clients without AUTH that each try to send 5 MiB cost the process at most 20 MiB, also for a moment.
func TestStrangersCostLittle(t *testing.T) {
	p := closedNode(t)
	known := p.dialNSQ("  V2AUTH\n" + sizedBody("s3cret-token"))
	if _, err := answer(known); err != nil {
		t.Fatal(err)
	}
	publishes(t, known)
	p.forgetPeak()
	before := p.peakBytes()
	body := bytes.Repeat([]byte(" "), 5<<20)
	var all sync.WaitGroup
	for range 100 {
		nc := p.dialNSQ("  V2")
		all.Go(func() {
			// All but the last byte, so that the node would have to keep it. It stops when the node closes the connection.
			_, _ = nc.Write([]byte("IDENTIFY\n\x00\x50\x00\x00"))
			_, _ = nc.Write(body[1:])
			const says = "E_BAD_BODY IDENTIFY body too big 5242880 > 4096"
			if text, err := answer(nc); err != nil || !strings.HasPrefix(text, says) {
				t.Errorf("the answer is %q, %v", text, err)
			}
		})
	}
	all.Wait()
	publishes(t, known)
	grown := p.peakBytes() - before
	t.Logf("the peak grew by %d KiB", grown>>10)
	if grown > 20<<20 {
		t.Errorf("a hundred strangers cost %d MiB", grown>>20)
	}
	if n := p.metric(`unauthenticated_refused_total{reason="bytes"}`); n != 100 {
		t.Errorf("/metrics counts %v refusals", n)
	}
}

// O8. A thousand connections that say nothing keep nobody out for long, and /metrics shows them: on a node without AUTH
// they are only connections; with AUTH most are refused, the others closed in time, and whoever has sent AUTH goes on.
func TestSilentConnections(t *testing.T) {
	const silent = 1000
	hold := func(p *process) {
		for range silent {
			p.dialNSQ("")
		}
	}
	t.Run("open node", func(t *testing.T) {
		p := startNode(t, t.TempDir())
		early := p.dialNSQ("  V2")
		publishes(t, early)
		hold(p)
		waitUntil(t, "all connections", func() bool { return p.metric(`connections{kind="nsq"}`) == silent+1 })
		publishes(t, early)
		publishes(t, p.dialNSQ("  V2"))
		if code, _ := p.get("/ping"); code != 200 {
			t.Errorf("/ping: %d", code)
		}
	})
	t.Run("node with AUTH", func(t *testing.T) {
		p := closedNode(t, "--max-unauthenticated-time", "3s")
		known := p.dialNSQ("  V2AUTH\n" + sizedBody("s3cret-token"))
		if _, err := answer(known); err != nil {
			t.Fatal(err)
		}
		hold(p)
		const refused = `unauthenticated_refused_total{reason="connections"}`
		// Some of the first may have been closed already, and others have taken their places.
		waitUntil(t, "the refusals", func() bool { return p.metric(refused) >= silent-2*256 })
		if n := p.metric("unauthenticated_connections"); n > 256 {
			t.Errorf("%v connections have not sent AUTH", n)
		}
		publishes(t, known)
		waitUntil(t, "a place for a new client", func() bool {
			nc, err := net.Dial("tcp", p.nsq)
			must(t, err)
			defer nc.Close()
			must(t, nc.SetDeadline(time.Now().Add(30*time.Second)))
			if _, err = io.WriteString(nc, "  V2AUTH\n"+sizedBody("s3cret-token")); err != nil {
				return false
			}
			text, err := answer(nc)
			return err == nil && strings.Contains(text, "permission_count")
		})
		waitUntil(t, "the silent ones to be gone", func() bool { return p.metric("unauthenticated_connections") == 0 })
		total := p.metric(refused) + p.metric(`unauthenticated_refused_total{reason="time"}`)
		if total < silent {
			t.Errorf("%v of %d are counted", total, silent)
		}
		publishes(t, known)
	})
}

// Connections to the node port that say nothing make room for newer ones, and /metrics counts them; so it does those to
// the lookup ports.
func TestSilentConnectionsToOtherPorts(t *testing.T) {
	base := freeBasePort(t)
	address := fmt.Sprintf("127.0.0.1:%d", base)
	registrations := fmt.Sprintf("127.0.0.1:%d", base+3)
	p := startNode(t, t.TempDir(), "--node-id", "n1", "--cluster-address", address, "--cluster-peers", "n1="+address,
		"--cluster-max-handshakes", "4", "--lookup-tcp-address", registrations)
	lookup := lookupAddress.FindStringSubmatch(p.log.String())[1]
	for place, count := range map[string]int{address: 10, registrations: 5, lookup: 3} {
		for range count {
			nc, err := net.Dial("tcp", place)
			must(t, err)
			t.Cleanup(func() { nc.Close() })
		}
	}
	for series, want := range map[string]float64{
		`node_connections_refused_total{reason="crowded"}`: 6, `connections{kind="lookup_tcp"}`: 5,
		`connections{kind="lookup"}`: 3,
	} {
		waitUntil(t, series, func() bool { return p.metric(series) == want })
	}
	publishes(t, p.dialNSQ("  V2"))
}
