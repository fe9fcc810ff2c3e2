package main

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"penstock/cmd/engine/internal/cli"
	"penstock/cmd/engine/internal/devcluster"
	"penstock/internal/server/api"
	"penstock/tests/support/clitest"
	"penstock/tests/support/patience"
)

var httpsAddress = regexp.MustCompile(`msg=ready .* https=(\S+)`)

// writeCertificate writes a self-signed certificate and its key to the directory.
func writeCertificate(t *testing.T, dir, name string) (certFile, keyFile string) {
	t.Helper()
	return clitest.WriteCertificate(t, dir, name, -time.Hour, time.Hour)
}

// servedName returns the name in the certificate that is served at the address.
func servedName(t *testing.T, address string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	d := tls.Dialer{Config: &tls.Config{InsecureSkipVerify: true}} // the test checks the name itself
	c, err := d.DialContext(ctx, "tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	return c.(*tls.Conn).ConnectionState().PeerCertificates[0].Subject.CommonName
}

func (p *process) waitLog(t *testing.T, text string) {
	t.Helper()
	deadline := time.After(patience.Or(90 * time.Second))
	for !strings.Contains(p.log.String(), text) {
		select {
		case <-p.log.more:
		case <-deadline:
			t.Fatalf("the log never says %q:\n%s", text, p.log)
		}
	}
}

func (p *process) publishAs(t *testing.T, token string) int {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), "POST", "http://"+p.http+"/pub?topic=t", strings.NewReader("x"))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer "+token)
	reply, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer reply.Body.Close()
	_, _ = io.Copy(io.Discard, reply.Body)
	return reply.StatusCode
}

func writeToken(t *testing.T, name, token string) {
	t.Helper()
	text := fmt.Sprintf("[[token]]\nname = \"a\"\nsha256 = \"%x\"\n[[token.grant]]\npermissions = [\"publish\"]\ntopics "+
		"= [\"*\"]\n", sha256.Sum256([]byte(token)))
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// startWithCredentials starts a node with a certificate and a token, both called first.
func startWithCredentials(t *testing.T) (p *process, https, dir, tokens string) {
	t.Helper()
	dir = t.TempDir()
	cert, key := writeCertificate(t, dir, "first")
	tokens = filepath.Join(dir, "tokens.toml")
	writeToken(t, tokens, "first-token")
	p = startNode(t, t.TempDir(), "--https-address", "127.0.0.1:0", "--tls-cert", cert, "--tls-key", key, "--auth-file",
		tokens)
	return p, httpsAddress.FindStringSubmatch(p.log.String())[1], dir, tokens
}

// B98. SIGHUP makes a running node use new certificates and tokens. Unusable files are reported and change nothing.
func TestHangupReadsAgain(t *testing.T) {
	p, address, dir, tokens := startWithCredentials(t)
	if name := servedName(t, address); name != "first" {
		t.Fatalf("the certificate is for %s", name)
	}
	if a, b := p.publishAs(t, "first-token"), p.publishAs(t, "second-token"); a != 200 || b != 401 {
		t.Fatalf("publishing with the token: %d, with another one: %d", a, b)
	}

	writeCertificate(t, dir, "second")
	writeToken(t, tokens, "second-token")
	if err := p.cmd.Process.Signal(syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
	p.waitLog(t, "were read again; connections stay")
	if name := servedName(t, address); name != "second" {
		t.Errorf("after SIGHUP the certificate is for %s", name)
	}
	if a, b := p.publishAs(t, "first-token"), p.publishAs(t, "second-token"); a != 401 || b != 200 {
		t.Errorf("after SIGHUP, publishing with the old token: %d, with the new one: %d", a, b)
	}

	for _, name := range []string{filepath.Join(dir, "key.pem"), tokens} {
		if err := os.WriteFile(name, []byte("rubbish"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := p.cmd.Process.Signal(syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
	p.waitLog(t, "reading again failed")
	if name := servedName(t, address); name != "second" {
		t.Errorf("after a useless SIGHUP the certificate is for %s", name)
	}
	if code := p.publishAs(t, "second-token"); code != 200 {
		t.Errorf("after a useless SIGHUP the token gives %d", code)
	}
	if text := p.log.String(); strings.Contains(text, "-token") {
		t.Errorf("a token is in the log:\n%s", text)
	}
}

// A password cannot be queried as a setting over HTTP.
func TestPasswordsStayInside(t *testing.T) {
	p := startNode(t, t.TempDir())
	for path, want := range map[string]int{"/config/etcd_password": 400, "/config/etcd_user": 200} {
		if code, _ := p.get(path); code != want {
			t.Errorf("%s: %d, want %d", path, code, want)
		}
	}
}

// penstock reload says of every file what came of it, in words and as JSON; what is refused names why, and the old one
// holds on. Who asked is in the audit.
func TestReloadCommand(t *testing.T) {
	dir := t.TempDir()
	cert, key := writeCertificate(t, dir, "first")
	tokens, token, servers := filepath.Join(dir, "tokens.toml"), filepath.Join(dir, "token"), filepath.Join(dir, "servers")
	write := func(name, text string) {
		t.Helper()
		must(t, os.WriteFile(name, []byte(text), 0o600))
	}
	write(token, "s3cret")
	grants := fmt.Sprintf("[[token]]\nname = \"ann\"\nsha256 = \"%x\"\n[[token.grant]]\npermissions = [\"admin\"]\n"+
		"topics = [\"*\"]\n", sha256.Sum256([]byte("s3cret")))
	write(tokens, grants)
	asked := func(name string) (address string) {
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			fmt.Fprintf(w, `{"ttl":60,"identity":%q,"authorizations":[{"topic":%q,"channels":[".*"],`+
				`"permissions":["publish"]}]}`, name, name)
		}))
		t.Cleanup(s.Close)
		return strings.TrimPrefix(s.URL, "http://")
	}
	write(servers, asked("another")+"\n")
	p := startNode(t, t.TempDir(), "--https-address", "127.0.0.1:0", "--tls-cert", cert, "--tls-key", key, "--auth-file",
		tokens, "--auth-http-address-file", servers)
	https := httpsAddress.FindStringSubmatch(p.log.String())[1]
	reload := func(args ...string) outcome {
		t.Helper()
		return execute(t, append([]string{"reload", "--http-address", p.http, "--token-file", token}, args...)...)
	}
	results := func(want string) {
		t.Helper()
		var r api.Reload
		o := reload("--json")
		if err := json.Unmarshal([]byte(o.stdout), &r); err != nil {
			t.Fatalf("%v: %+v", err, o)
		}
		var got []string
		for _, f := range r.Files {
			got = append(got, f.Setting+" "+f.Result)
		}
		if strings.Join(got, ", ") != want {
			t.Errorf("got %s, want %s: %+v", strings.Join(got, ", "), want, o)
		}
	}
	const rest = ", auth-file unchanged, auth-http-address-file unchanged"
	results("tls-cert unchanged, tls-key unchanged" + rest)

	write(key, "half")
	o := reload()
	o.check(t, cli.ExitOther, "tls-key: the TLS certificate "+cert+" and the key "+key+" cannot be used")
	if name := servedName(t, https); name != "first" || !strings.Contains(o.stdout, "refused") {
		t.Errorf("%s is served: %+v", name, o)
	}
	results("tls-cert unchanged, tls-key refused" + rest)

	// The node's own look may be quicker than the command: then the file is unchanged, and new all the same.
	writeCertificate(t, dir, "second")
	if o := reload(); o.code != 0 || strings.Contains(o.stdout, "refused") {
		t.Errorf("%+v", o)
	}
	if name := servedName(t, https); name != "second" {
		t.Errorf("%s is served", name)
	}
	if code := p.publishAs(t, "anybody"); code != 403 {
		t.Errorf("the first auth server allows t: %d", code)
	}
	write(servers, asked("t")+"\n")
	must(t, os.Chmod(servers, 0o644))
	reload().check(t, cli.ExitOther, "or set readable-secrets")
	must(t, os.Chmod(servers, 0o600))
	if o := reload(); o.code != 0 {
		t.Errorf("%+v", o)
	}
	if code := p.publishAs(t, "somebody"); code != 200 {
		t.Errorf("the second auth server does not allow t: %d", code)
	}
	o = execute(t, "audit", "--http-address", p.http, "--token-file", token)
	if !strings.Contains(o.stdout, "POST /reload") || !strings.Contains(o.stdout, "ann") {
		t.Errorf("the audit: %+v", o)
	}
	execute(t, "reload", "--http-address", p.http).check(t, cli.ExitOther, "")
}

// A new password of etcd holds once etcd takes it: until then the old one does.
func TestEtcdPasswordIsReplaced(t *testing.T) {
	t.Parallel()
	dir, base := t.TempDir(), freeBasePort(t)
	file := filepath.Join(dir, "password")
	must(t, os.WriteFile(file, []byte("first\n"), 0o600))
	at := etcdWithPassword(t, base, "first")
	p := startNode(t, filepath.Join(dir, "data"), "--node-id", "n1", "--cluster-address",
		fmt.Sprintf("127.0.0.1:%d", base+5), "--etcd-endpoints", at, "--etcd-user", "root", "--etcd-password-file", file,
		"--replicas", "1")
	must(t, os.WriteFile(file, []byte("second\n"), 0o600))
	reload := func() outcome { return execute(t, "reload", "--http-address", p.http) }
	reload().check(t, cli.ExitOther, "does not take the new password of root")
	if code, text := post(p.http, "/topic/create?topic=before", ""); code != 200 {
		t.Fatalf("with the old password: %d %s", code, text)
	}
	c, err := clientv3.New(clientv3.Config{
		Endpoints: []string{at}, Username: "root", Password: "first", Logger: zap.NewNop(),
	})
	must(t, err)
	defer c.Close()
	_, err = c.UserChangePassword(t.Context(), "root", "second")
	must(t, err)
	if o := reload(); o.code != 0 {
		t.Fatalf("%+v", o)
	}
	if code, text := post(p.http, "/topic/create?topic=after", ""); code != 200 {
		t.Fatalf("with the new password: %d %s", code, text)
	}
	if text := p.log.String(); strings.Contains(text, "second") {
		t.Errorf("the password is in the log:\n%s", text)
	}
}

// The secret between nodes, certificates and tokens are replaced by SIGHUP in a cluster under load: no connection of a
// client or between nodes ends, no publish fails, and a node that starts afterwards is let in by the new secret. A
// secret that would lock nodes out is refused, and changes nothing.
func TestHangupInAClusterUnderLoad(t *testing.T) {
	t.Parallel()
	dir, files := t.TempDir(), t.TempDir()
	cert, key := writeCertificate(t, files, "first")
	p := startDevAs(t, realNodes, dir, "--", "--tls-cert", cert, "--tls-key", key)
	nodes := p.ready(3)
	health := func() {
		t.Helper()
		if o := execute(t, "cluster", "health", "--wait", "30s", "--http", nodes["n1"].HTTP); o.code != 0 {
			t.Fatalf("%+v", o)
		}
	}
	if code, text := post(nodes["n1"].HTTP, "/topic/create?topic=t&partitions=3", ""); code != 200 {
		t.Fatalf("%d %s", code, text)
	}
	health()

	stop, done, count := make(chan struct{}), make(chan error, 2*len(nodes)), new(atomic.Int64)
	for _, n := range nodes {
		for _, secure := range []bool{false, true} {
			nc := dialForLoad(t, n.NSQ, secure)
			go func() {
				for {
					select {
					case <-stop:
						done <- nil
						return
					default:
					}
					if err := publishOne(nc); err != nil {
						done <- fmt.Errorf("%s: %w", n.Node, err)
						return
					}
					count.Add(1)
				}
			}()
		}
	}
	more := func() {
		t.Helper()
		from := count.Load()
		waitUntil(t, "more publishes", func() bool { return count.Load() > from+200 || len(done) > 0 })
	}
	secretFile := filepath.Join(dir, devcluster.SecretName)
	text, err := os.ReadFile(secretFile)
	must(t, err)
	before, after := strings.TrimSpace(string(text)), strings.Repeat("new-secret", 5)
	links := map[string]int{}
	for name := range nodes {
		links[name] = strings.Count(p.log(name), `msg="connected to node"`)
	}
	const accepted, refused = "SIGHUP: certificates and tokens were read again", "SIGHUP: reading again failed"
	for round, x := range []struct{ secrets, says string }{
		{before + "\n" + after, accepted},
		{after + "\n" + before, accepted},
		{after[1:], refused},
		{after + "\n" + before, accepted},
	} {
		more()
		must(t, os.WriteFile(secretFile, []byte(x.secrets+"\n"), 0o600))
		writeCertificate(t, files, fmt.Sprintf("round-%d", round))
		for name, n := range nodes {
			earlier := strings.Count(p.log(name), x.says)
			p.signal(n.PID, syscall.SIGHUP)
			waitUntil(t, name+" to say "+x.says, func() bool { return strings.Count(p.log(name), x.says) > earlier })
		}
	}
	more()
	close(stop)
	for range cap(done) {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
	for name := range nodes {
		log := p.log(name)
		made, ended := strings.Count(log, `msg="connected to node"`), strings.Count(log, "connection to node ended")
		if made != links[name] || ended > 0 {
			t.Errorf("%s: %d connections between nodes were made, %d before; %d ended", name, made, links[name], ended)
		}
		if strings.Contains(log, after) || strings.Contains(log, before) {
			t.Errorf("the log of %s has a secret", name)
		}
	}
	t.Logf("%d messages were published meanwhile", count.Load())

	p.signal(nodes["n3"].PID, syscall.SIGKILL)
	startProcess(t, "", binary(t), nodes["n3"].Args)
	health()
}

// dialForLoad opens a connection for publishing, with TLS if it is to be secure.
func dialForLoad(t *testing.T, address string, secure bool) net.Conn {
	t.Helper()
	nc, err := net.Dial("tcp", address)
	must(t, err)
	t.Cleanup(func() { nc.Close() })
	must(t, nc.SetDeadline(time.Now().Add(2*time.Minute)))
	_, err = io.WriteString(nc, "  V2")
	must(t, err)
	if !secure {
		return nc
	}
	_, err = io.WriteString(nc, "IDENTIFY\n"+sizedBody(`{"feature_negotiation":true,"tls_v1":true}`))
	must(t, err)
	_, err = answer(nc)
	must(t, err)
	tc := tls.Client(nc, &tls.Config{InsecureSkipVerify: true})
	if text, err := answer(tc); err != nil || text != "OK" {
		t.Fatalf("TLS: %q, %v", text, err)
	}
	return tc
}
