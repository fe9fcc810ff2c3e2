package main

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"crypto/tls"
	"encoding/pem"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"penstock/cmd/engine/internal/cli"
	"penstock/cmd/engine/internal/settings"
	"penstock/cmd/engine/internal/values"
	"penstock/internal/cluster/etcd"
	"penstock/tests/support/patience"
)

// etcdWithPassword starts an etcd whose only user is root.
func etcdWithPassword(t *testing.T, base int, password string) (address string) {
	t.Helper()
	at := func(i int) string { return fmt.Sprintf("127.0.0.1:%d", base+i) }
	m, err := etcd.Start(etcd.MemberOptions{
		Name: "x", Dir: filepath.Join(t.TempDir(), "etcd"), UnsafeNoFsync: true,
		Voters: []etcd.Voter{{Name: "x", Peer: at(0), Client: at(1)}},
	})
	must(t, err)
	t.Cleanup(func() { _ = m.Close() })
	must(t, m.Ready(t.Context()))
	c, err := clientv3.New(clientv3.Config{Endpoints: []string{at(1)}, Logger: zap.NewNop()})
	must(t, err)
	defer c.Close()
	_, err = c.UserAdd(t.Context(), "root", password)
	must(t, err)
	_, err = c.UserGrantRole(t.Context(), "root", "root")
	must(t, err)
	_, err = c.AuthEnable(t.Context())
	must(t, err)
	return at(1)
}

// paths returns every path that answers GET on the listener with this heading in internal/server/testdata/grants.txt,
// which a test of nsq compares with the tables of routes.
func paths(t *testing.T, heading string) (all []string) {
	t.Helper()
	f, err := os.Open("../../internal/server/testdata/grants.txt")
	must(t, err)
	defer f.Close()
	in := false
	for lines := bufio.NewScanner(f); lines.Scan(); {
		words := strings.Fields(lines.Text())
		switch {
		case strings.HasPrefix(lines.Text(), "HTTP, ") || strings.HasPrefix(lines.Text(), "NSQ protocol"):
			in = strings.HasPrefix(lines.Text(), heading)
		case in && len(words) > 1 && words[0] == "GET" && !slices.Contains(all, words[1]):
			all = append(all, words[1])
		}
	}
	if len(all) < 8 {
		t.Fatalf("%q has only the paths %q", heading, all)
	}
	return all
}

// trusting does not look at the certificate.
var trusting = &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}

// getAs sends a GET with a token.
func (p *process) getAs(token, url string) (int, []byte) {
	p.t.Helper()
	r, err := http.NewRequestWithContext(p.t.Context(), "GET", url, nil)
	must(p.t, err)
	r.Header.Set("Authorization", "Bearer "+token)
	reply, err := trusting.Do(r)
	must(p.t, err)
	defer reply.Body.Close()
	body, err := io.ReadAll(reply.Body)
	must(p.t, err)
	return reply.StatusCode, body
}

// Secrets appear in no answer to a GET, on no listener, not in the log at its finest level, and not in the list of
// processes: neither those in settings nor those that clients send.
func TestSecretsStayInside(t *testing.T) {
	t.Parallel()
	for _, way := range []string{"files", "config"} {
		t.Run(way, func(t *testing.T) { secretsStayInside(t, way) })
	}
}

func secretsStayInside(t *testing.T, way string) {
	const (
		password, inURL, inQuery = "s3cret-of-etcd", "s3cret-in-url", "s3cret-in-query"
		shared                   = "s3cret-of-the-cluster-0123456789abcdef"
		token, unknown           = "s3cret-token", "s3cret-unknown"
	)
	dir, base := t.TempDir(), freeBasePort(t)
	write := func(name, text string) string {
		name = filepath.Join(dir, name)
		must(t, os.WriteFile(name, []byte(text), 0o600))
		return name
	}
	asked := make(chan string, 100)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		user, pass, _ := r.BasicAuth()
		asked <- user + " " + pass + " " + r.URL.Query().Get("key")
		w.WriteHeader(http.StatusInternalServerError) // the node logs that
	}))
	defer server.Close()
	authURL := strings.Replace(server.URL, "http://", "http://me:"+inURL+"@", 1) + "/auth?key=" + inQuery
	cert, key := writeCertificate(t, dir, "node")
	grants := fmt.Sprintf("[[token]]\nname = \"ann\"\nsha256 = \"%x\"\n[[token.grant]]\npermissions = [\"admin\", "+
		"\"publish\", \"subscribe\"]\ntopics = [\"*\"]\n", sha256.Sum256([]byte(token)))
	args := []string{
		"--node-id", "n1", "--cluster-address", fmt.Sprintf("127.0.0.1:%d", base+5), "--log-level", "debug",
		"--etcd-endpoints", etcdWithPassword(t, base, password), "--etcd-user", "root", "--auth-file",
		write("tokens.toml", grants), "--cluster-secret-file", write("secret", shared+"\n"), "--tls-cert", cert, "--tls-key",
		key, "--https-address", "127.0.0.1:0",
	}
	switch way {
	case "files":
		args = append(args, "--etcd-password-file", write("password", password+"\n"), "--auth-http-address-file",
			write("servers", authURL+"\n"))
	case "config":
		args = append(args, "--config", write("engine.toml", fmt.Sprintf("etcd_password = %q\nauth_http_address = %q\n",
			password, authURL)))
	}
	p := startNode(t, filepath.Join(dir, "data"), args...)

	pemKey, err := os.ReadFile(key)
	must(t, err)
	block, _ := pem.Decode(pemKey)
	secrets := []string{password, inURL, inQuery, shared, token, unknown, string(block.Bytes)}
	secrets = append(secrets, strings.Split(strings.TrimSpace(string(pemKey)), "\n")[1])
	check := func(what string, text []byte) {
		t.Helper()
		for i, s := range secrets {
			if bytes.Contains(text, []byte(s)) {
				t.Errorf("%s has secret %d (%.12q...)", what, i, s)
			}
		}
	}
	// Clients send secrets that are right, unknown, and in the wrong place.
	p.dialNSQ("  V2AUTH\n" + sizedBody(token) + "PUB t\n" + sizedBody("x") + "SUB t c\n")
	wrong := p.dialNSQ("  V2AUTH\n" + sizedBody(unknown))
	_, _ = io.Copy(io.Discard, wrong)
	_, _ = io.Copy(io.Discard, p.dialNSQ(unknown))
	_, _ = p.getAs(unknown, "http://"+p.http+"/config/log_level")
	select {
	case got := <-asked:
		if got != "me "+inURL+" "+inQuery {
			t.Fatalf("the auth server got %q", got)
		}
	case <-time.After(patience.Or(90 * time.Second)):
		t.Fatal("the auth server was not asked")
	}
	lookup := lookupAddress.FindStringSubmatch(p.log.String())[1]
	https := "https://" + httpsAddress.FindStringSubmatch(p.log.String())[1]
	count := 0
	for base, heading := range map[string]string{
		"http://" + p.http: "HTTP, nsqd's API", "http://" + lookup: "HTTP, nsqlookupd's API", https: "HTTP, nsqd's API",
	} {
		var all []string
		for _, path := range paths(t, heading) {
			if path == "/config/{option}" {
				for _, s := range settings.Table(new(settings.Options)) {
					all = append(all, "/config/"+s.Key())
				}
				continue
			}
			all = append(all, path+"?topic=t&channel=c&seconds=1&verbose")
		}
		for _, profile := range []string{"heap", "allocs", "goroutine?debug=2", "goroutine?debug=1", "block", "mutex"} {
			all = append(all, "/debug/pprof/"+profile)
		}
		for _, path := range all {
			_, body := p.getAs(token, base+path)
			check(base+path, body)
			count++
		}
	}
	if code, body := p.getAs(token, "http://"+p.http+"/config/auth_http_address"); code != 200 ||
		way == "config" && !bytes.Contains(body, []byte(values.IsSet)) {
		t.Errorf("/config/auth_http_address: %d %s", code, body)
	}
	if code, _ := p.getAs(token, "http://"+p.http+"/config/etcd_password"); code != 400 {
		t.Errorf("/config/etcd_password: %d", code)
	}
	line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", p.cmd.Process.Pid))
	must(t, err)
	check("the command line", line)
	p.end(os.Interrupt)
	text := p.log.String()
	check("the log", []byte(text))
	if !strings.Contains(text, "level=DEBUG") || !strings.Contains(text, "AUTH_FAILED") && !strings.Contains(text, "500") {
		t.Errorf("the log does not tell of what was refused:\n%.3000s", text)
	}
	t.Logf("%d answers and %d bytes of log were searched", count, len(text))
}

// A secret in a flag is refused with a sentence that says where it belongs; nsqd's own flag works, with a warning.
func TestSecretsInFlags(t *testing.T) {
	for flag, value := range map[string]string{
		"etcd-password": "s3cret", "auth-http-address": "http://me:s3cret@127.0.0.1:1/auth",
	} {
		dir := filepath.Join(t.TempDir(), "data")
		o := execute(t, "serve", "--data-path", dir, "--"+flag, value)
		o.check(t, cli.ExitUsage, "everybody on this machine can read the secret in the flag --"+flag)
		if strings.Contains(o.stdout+o.stderr, "s3cret") || !strings.Contains(o.stderr, "--"+flag+"-file") {
			t.Errorf("%+v", o)
		}
		if _, err := os.Stat(dir); err == nil {
			t.Error("a data directory was made")
		}
	}
	dir := t.TempDir()
	p := startProcess(t, dir, binary(t), []string{
		"nsqd", "-data-path", dir, "-tcp-address", "127.0.0.1:0", "-http-address", "127.0.0.1:0", "-auth-http-address",
		"http://me:s3cret@127.0.0.1:1/auth",
	})
	if text := p.log.String(); !strings.Contains(text, "everybody on this machine can read the secret in a flag") ||
		!strings.Contains(text, "auth-http-address") || strings.Contains(text, "s3cret") {
		t.Errorf("the log has\n%s", text)
	}
}

// No file of secrets is taken that everybody on the machine may read or change, whatever it is for. What the
// check of one kind of files says, the others say, too.
func TestAllSecretsArePrivate(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	secret := filepath.Join(dir, "secret")
	must(t, os.WriteFile(secret, []byte(strings.Repeat("s3cret-", 8)), 0o600))
	for _, setting := range []string{
		"tls-key", "auth-file", "auth-http-address-file", "cluster-secret-file", "cluster-tls-key", "etcd-key-file",
		"etcd-password-file",
	} {
		for mode, want := range map[os.FileMode]string{
			0o644: "or set readable-secrets", 0o602: "may be changed by everybody", 0o601: "or set readable-secrets",
		} {
			must(t, os.Chmod(secret, mode))
			o := execute(t, "serve", "--data-path", filepath.Join(dir, "data"), "--"+setting, secret)
			o.check(t, cli.ExitUsage, "the file of "+setting+" cannot be used: "+secret+" may be ")
			o.check(t, cli.ExitUsage, want)
			if strings.Contains(o.stderr, "s3cret") {
				t.Errorf("%s: %s", setting, o.stderr)
			}
		}
		must(t, os.Chmod(secret, 0o444))
		o := execute(t, "serve", "--data-path", filepath.Join(dir, "data"), "--readable-secrets", "--"+setting, secret,
			"--tls-required", "true") // it ends, because there is no certificate
		if o.code != cli.ExitUsage || strings.Contains(o.stderr, "may be ") {
			t.Errorf("%s with readable-secrets: %s", setting, o.stderr)
		}
	}
}

// Files with secrets that others may read, or that have something else, are refused.
func TestSecretFiles(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string, mode os.FileMode) string {
		name = filepath.Join(dir, name)
		must(t, os.WriteFile(name, []byte(text), mode))
		must(t, os.Chmod(name, mode))
		return name
	}
	for name, x := range map[string]struct{ flags, want string }{
		"open":    {"--etcd-password-file " + write("open", "s3cret", 0o644), "or set readable-secrets"},
		"two":     {"--etcd-password-file " + write("two", "s3cret\ns3cret\n", 0o600), "has 2 lines"},
		"missing": {"--etcd-password-file " + filepath.Join(dir, "none"), "cannot be used"},
		"dir":     {"--auth-http-address-file " + dir, "not a regular file"},
		"empty":   {"--auth-http-address-file " + write("empty", "\n", 0o600), "is empty"},
		"address": {
			"--nsq-address 127.0.0.1:0 --http-address 127.0.0.1:0 --lookup-address off --auth-http-address-file " +
				write("address", "me:s3cret@127.0.0.1:1\n", 0o600), "neither the HOST:PORT nor the URL",
		},
	} {
		args := []string{"serve", "--data-path", filepath.Join(dir, "data-"+name)}
		o := execute(t, append(args, strings.Fields(x.flags)...)...)
		o.check(t, cli.ExitUsage, x.want)
		if strings.Contains(o.stderr, "s3cret") {
			t.Errorf("%s: %s", name, o.stderr)
		}
	}
	// Where chmod cannot work, a setting accepts what others may read, and never what they may change.
	mounted := "--readable-secrets --auth-file " + write("tokens", "rubbish = 1", 0o444) + " --etcd-password-file "
	o := execute(t, append([]string{"serve", "--data-path", filepath.Join(dir, "data-mounted")}, strings.Fields(
		mounted+write("password", "s3cret", 0o444)+" --auth-http-address-file "+write("servers", "a:1", 0o444))...)...)
	o.check(t, cli.ExitUsage, "unknown key")
	o = execute(t, append([]string{"serve", "--data-path", filepath.Join(dir, "data-mounted")}, strings.Fields(
		mounted+write("changed", "s3cret", 0o446))...)...)
	o.check(t, cli.ExitUsage, "may be changed by everybody on this machine (mode 0446)")
}
