package server

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	native "penstock/client"
	"penstock/internal/node"
	"penstock/internal/server/nsq"
	"penstock/internal/sparing"
	"penstock/tests/support/nsqtest"
)

// logged collects the lines of a node's log, as a file would have them.
type logged struct {
	mu    sync.Mutex
	lines []string
}

func (l *logged) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lines = append(l.lines, string(bytes.TrimSuffix(p, []byte("\n"))))
	return len(p), nil
}

// with returns the lines that have text.
func (l *logged) with(text string) (found []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, line := range l.lines {
		if strings.Contains(line, text) {
			found = append(found, line)
		}
	}
	return found
}

const (
	attacks       = 60
	maxLoggedLine = 1500
)

// A stranger causes a line of each kind at once, and then one with a count each minute, whatever it does and however
// long what it sends is.
func TestStrangersCauseFewLines(t *testing.T) {
	t.Parallel()
	log := &logged{}
	began, ca := time.Now(), nsqtest.NewAuthority(t)
	o := tlsOptions(t, ca)
	o.Logger = slog.New(slog.NewTextHandler(log, nil))
	o.NativeAddress, o.LookupTCPAddress = "127.0.0.1:0", "127.0.0.1:0"
	o.MaxStrangers, o.MaxCommandTime = 4*attacks, 3*time.Second
	n := startClosed(t, o)
	long := strings.Repeat("x", 6000)
	ask := func(method, url string, headers ...string) {
		if reply, _ := request(t, method, url, "", headers...); reply.StatusCode < 400 {
			t.Errorf("%s %.60s: %d", method, url, reply.StatusCode)
		}
	}
	lookups := "http://" + n.LookupAddr().String()
	for _, x := range []struct {
		what, line string
		attack     func()
	}{
		{"HTTP without a token", "audit: refusing a client", func() { ask("POST", n.base+"/topic/create?topic="+long) }},
		{"HTTP with a wrong token", "audit: refusing a client", func() {
			ask("POST", n.base+"/topic/create?topic=t", "Authorization", "Bearer "+long)
		}},
		{"HTTP of another site", "audit: refusing a client", func() {
			ask("POST", n.base+"/pub?topic=t", "Origin", "http://"+long)
		}},
		{"lookups' HTTP", "audit: refusing a client", func() { ask("POST", lookups+"/topic/create?topic="+long) }},
		{"a registration", "an nsqd registers", func() {
			nc, err := net.Dial("tcp", n.LookupTCPAddr().String())
			if err != nil {
				t.Fatal(err)
			}
			defer nc.Close()
			body := fmt.Sprintf(`{"broadcast_address":%q,"hostname":"h","http_port":1,"tcp_port":2,"version":%q}`,
				long[:250], long[:250])
			fmt.Fprintf(nc, "  V1IDENTIFY\n%s%s", nsqtest.U32(len(body)), body)
			_ = nc.SetReadDeadline(time.Now().Add(nsqtest.Patience))
			if _, err := nc.Read(make([]byte, 1)); err != nil {
				t.Error(err)
			}
		}},
		{"AUTH with a wrong token", "audit: refusing a client", func() {
			c := n.dial(t)
			c.Send(authCommand(long[:500]))
			c.Fatal("E_AUTH_FAILED AUTH failed")
		}},
		{"a TLS handshake that is none", "its TLS handshake failed", func() {
			c := n.dial(t)
			c.Identify(`{"feature_negotiation":true,"tls_v1":true}`)
			c.Send(long)
			c.Closed()
		}},
		{"a native client with a wrong token", "audit: refusing a client", func() {
			c, err := native.Dial(t.Context(), []string{n.NativeAddr().String()}, native.Options{
				TLS: ca.Client(t, ""), Logger: slog.New(slog.DiscardHandler),
				Token: func(context.Context, string) (string, error) { return "wrong", nil },
			})
			if err == nil {
				c.Close()
				t.Error("it is let in")
			}
		}},
	} {
		before := n.sparing.LeftOut()
		for range attacks {
			x.attack()
		}
		if len(log.with(x.line)) == 0 {
			t.Errorf("%s: the log says nothing at once", x.what)
		}
		nsqtest.Eventually(t, x.what+": what was left out is counted", func() bool {
			return n.sparing.LeftOut() >= before+attacks-2
		})
	}
	// Those who begin a command and stop.
	for range attacks {
		n.dial(t).Send("PUB")
	}
	nsqtest.Eventually(t, "slow ones are closed", func() bool { return n.nsq.Meter().Connections == 0 })
	kinds := map[string]int{}
	log.mu.Lock()
	defer log.mu.Unlock()
	for _, line := range log.lines {
		if len(line) > maxLoggedLine {
			t.Errorf("a line has %d bytes: %.200s", len(line), line)
		}
		kinds[kindOf(line)]++
	}
	for kind, count := range kinds {
		if most := 2 + int(time.Since(began)/sparing.Interval); count > most {
			t.Errorf("%d lines: %s", count, kind)
		}
	}
	if got := n.metric(t, `log_lines_left_out_total{by="clients"}`); got == "0" {
		t.Error("/metrics shows none left out")
	}
}

// kindOf is what a line says, with the first word of its result, without whom it is about.
func kindOf(line string) string {
	_, msg, _ := strings.Cut(line, "msg=")
	end := strings.Index(msg[1:], `"`)
	_, result, _ := strings.Cut(line, "result=")
	result, _, _ = strings.Cut(strings.Trim(result, `"`), " ")
	return msg[:max(end+1, 1)] + " " + result
}

// Connections that are too many are one line.
func TestTooManyConnectionsAreFewLines(t *testing.T) {
	t.Parallel()
	log := &logged{}
	n := startNode(t, node.Options{}, Options{
		Settings: nsq.Settings{MaxConnections: 1},
		Logger:   slog.New(slog.NewTextHandler(log, nil)),
	})
	first := n.dial(t)
	first.Identify(`{}`)
	for range attacks {
		n.dialRaw(t).Closed()
	}
	if got := log.with("MaxConnections reached"); len(got) != 1 {
		t.Errorf("%d lines", len(got))
	}
	if got := n.sparing.LeftOut(); got != attacks-1 {
		t.Errorf("%d lines were left out", got)
	}
	ctx, cancel := context.WithTimeout(context.Background(), nsqtest.Patience)
	defer cancel()
	first.Conn.Close()
	if err := n.Shutdown(ctx); err != nil {
		t.Error(err)
	}
	if got := log.with(fmt.Sprintf("and %d more", attacks-1)); len(got) != 1 {
		t.Errorf("the end does not say how many there were: %q", got)
	}
}
