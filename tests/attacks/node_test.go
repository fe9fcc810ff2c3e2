//go:build attacks

package attacks

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"penstock/tests/cluster/harness"
	"penstock/tests/support/authtest"
	"penstock/tests/support/porttest"
)

func TestMain(m *testing.M) {
	code := m.Run()
	if err := harness.Cleanup(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = max(code, 1)
	}
	os.Exit(code)
}

// Addresses of the loopback network: who attacks comes from another one than who publishes.
const (
	attacker = "127.0.0.66"
	neighbor = "127.0.0.2"
)

// patience bounds all that should end at once, also on a machine that gives a process little of its time.
const patience = time.Minute

// tokens are who the node knows. mallory is the tenant that attacks, good the one that must not notice.
var tokens = []struct{ name, grant string }{
	{"good", `permissions = ["publish", "subscribe"]` + "\n" + `topics = ["good*"]`},
	{"mallory", `permissions = ["publish", "subscribe", "view"]` + "\n" + `topics = ["mallory*"]`},
	{"guest", `permissions = ["publish"]` + "\n" + `topics = ["good"]`},
	{"owner", `permissions = ["admin"]` + "\n" + `topics = ["mallory*"]`},
	{"root", `permissions = ["admin"]` + "\n" + `topics = ["*"]`},
}

// node is the process that is attacked.
type node struct {
	*harness.Node
	t                 *testing.T
	https, peer, etcd string // addresses, of a node that has them
}

// start starts a node with the tokens above.
func (at *attack) start(t *testing.T) *node {
	t.Helper()
	dir := t.TempDir()
	file, text := filepath.Join(dir, "tokens.toml"), ""
	for _, token := range tokens {
		text += authtest.Token(token.name, token.name, token.grant)
	}
	authtest.Write(t, file, text)
	n := &node{t: t}
	o := harness.Options{Dir: dir, Serve: append([]string{"--auth-file", file}, at.flags...)}
	if at.certificates {
		cert, key := selfSigned(t)
		n.https = freeAddresses(t, 1)[0]
		o.Serve = append(o.Serve, "--tls-cert", cert, "--tls-key", key, "--https-address", n.https)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if at.files > 0 {
		o.Binary = limited(t, at.files)
	}
	if at.disk > 0 {
		if err := harness.VolumeMissing(); err != nil {
			t.Skip(err)
		}
		v, err := harness.NewVolume(t.TempDir(), "disk", at.disk)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := v.Close(); err != nil {
				t.Error(err)
			}
		})
		o.Volumes = map[int]string{0: filepath.Join(v.Path, "data")}
	}
	if at.cluster {
		secret := filepath.Join(dir, "secret")
		if err := os.WriteFile(secret, []byte(strings.Repeat("0123456789", 4)), 0o600); err != nil {
			t.Fatal(err)
		}
		at := freeAddresses(t, 3)
		n.peer, n.etcd = at[0], at[2]
		o.Serve = append(o.Serve, "--cluster-name", "attacked", "--cluster-address", at[0], "--cluster-peers", "n1="+at[0],
			"--etcd-peer-address", at[1], "--etcd-client-address", at[2], "--cluster-secret-file", secret)
	}
	c, err := harness.Single(ctx, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
		if t.Failed() {
			log, _ := os.ReadFile(c.Nodes[0].LogPath)
			t.Logf("the end of the node's log:\n%s", log[max(0, len(log)-4000):])
		}
	})
	n.Node = c.Nodes[0]
	return n
}

// freeAddresses returns addresses of the loopback network at which nobody listens, with ports in a row.
func freeAddresses(t *testing.T, count int) (all []string) {
	t.Helper()
	port, err := porttest.Range(count)
	if err != nil {
		t.Fatal(err)
	}
	for i := range count {
		all = append(all, "127.0.0.1:"+strconv.Itoa(port+i))
	}
	return all
}

// limited returns a program that is the engine of this tree and may open so many files.
func limited(t *testing.T, files int) string {
	t.Helper()
	engine, err := harness.Binary()
	if err != nil {
		t.Fatal(err)
	}
	name := filepath.Join(t.TempDir(), "engine")
	script := fmt.Sprintf("#!/bin/sh\nulimit -n %d\nexec %s \"$@\"\n", files, engine)
	if err := os.WriteFile(name, []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	return name
}

// dial connects from an address of the loopback network.
func dial(from, to string) (net.Conn, error) {
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}, Timeout: patience}
	return d.Dial("tcp", to)
}

// memory is what the process has in memory, in bytes, without the pages of files.
func (n *node) memory() int64 {
	n.t.Helper()
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", n.PID()))
	if err != nil {
		n.t.Fatal(err)
	}
	for line := range strings.Lines(string(data)) {
		if rest, ok := strings.CutPrefix(line, "RssAnon:"); ok {
			kib, err := strconv.ParseInt(strings.Fields(rest)[0], 10, 64)
			if err != nil {
				n.t.Fatal(err)
			}
			return kib << 10
		}
	}
	n.t.Fatal("the process has no RssAnon")
	return 0
}

// metrics returns the page of metrics.
func (n *node) metrics() string {
	n.t.Helper()
	code, page := n.ask("GET", "/metrics", "root", "")
	if code != 200 {
		n.t.Fatalf("/metrics: %d %s", code, page)
	}
	return page
}

// metric returns the sum of the series of a metric.
func metric(page, name string) (sum float64, known bool) {
	for line := range strings.Lines(page) {
		rest, ok := strings.CutPrefix(line, name)
		if !ok || rest[0] != ' ' && rest[0] != '{' {
			continue
		}
		v, err := strconv.ParseFloat(strings.TrimSpace(rest[strings.LastIndexByte(rest, ' '):]), 64)
		if err == nil {
			sum, known = sum+v, true
		}
	}
	return sum, known
}

// ask sends a request from the neighbor's address.
func (n *node) ask(method, path, token, body string) (int, string) {
	n.t.Helper()
	code, text, err := request(client(neighbor), method, "http://"+n.HTTP+path, token, body)
	if err != nil {
		n.t.Fatal(err)
	}
	return code, text
}

// client is one whose connections come from an address.
func client(from string) *http.Client {
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}
	return &http.Client{
		Timeout:   patience,
		Transport: &http.Transport{DisableKeepAlives: true, DialContext: d.DialContext},
	}
}

func request(c *http.Client, method, url, token, body string) (int, string, error) {
	r, err := http.NewRequest(method, url, strings.NewReader(body))
	if err != nil {
		return 0, "", err
	}
	if token != "" {
		r.Header.Set("Authorization", "Bearer "+token)
	}
	reply, err := c.Do(r)
	if err != nil {
		return 0, "", err
	}
	defer reply.Body.Close()
	text, err := io.ReadAll(reply.Body)
	return reply.StatusCode, string(text), err
}

// nsqConn is a connection of an NSQ client that has sent AUTH.
type nsqConn struct {
	net.Conn
	in *bufio.Reader
}

// login connects an NSQ client.
func login(from, to, token string) (*nsqConn, error) {
	nc, err := dial(from, to)
	if err != nil {
		return nil, err
	}
	c := &nsqConn{nc, bufio.NewReader(nc)}
	_ = c.SetDeadline(time.Now().Add(patience))
	if _, err := c.Write([]byte("  V2AUTH\n" + sized(token))); err != nil {
		return nil, errors.Join(err, nc.Close())
	}
	if text, err := c.frame(); err != nil || strings.HasPrefix(text, "E_") {
		return nil, errors.Join(fmt.Errorf("AUTH: %s %w", text, err), nc.Close())
	}
	_ = c.SetDeadline(time.Time{})
	return c, nil
}

// sized returns text behind its length.
func sized(text string) string {
	return string(binary.BigEndian.AppendUint32(nil, uint32(len(text)))) + text
}

// frame returns the text of the next frame. It answers heartbeats.
func (c *nsqConn) frame() (string, error) {
	for {
		var size [8]byte
		if _, err := io.ReadFull(c.in, size[:]); err != nil {
			return "", err
		}
		text := make([]byte, binary.BigEndian.Uint32(size[:4])-4)
		if _, err := io.ReadFull(c.in, text); err != nil {
			return "", err
		}
		if string(text) != "_heartbeat_" {
			return string(text), nil
		}
		if _, err := c.Write([]byte("NOP\n")); err != nil {
			return "", err
		}
	}
}

// pub publishes one message and waits for the answer.
func (c *nsqConn) pub(topic, body string) error {
	_ = c.SetDeadline(time.Now().Add(patience))
	if _, err := c.Write([]byte("PUB " + topic + "\n" + sized(body))); err != nil {
		return err
	}
	text, err := c.frame()
	if err == nil && text != "OK" {
		err = errors.New(text)
	}
	return err
}
