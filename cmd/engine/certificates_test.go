package main

import (
	"bytes"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"penstock/cmd/engine/internal/devcluster"
	"penstock/internal/cluster/trust"
	"penstock/tests/support/clitest"
)

const day = 24 * time.Hour

// The end of a certificate shows in the log, the metrics, the health and the faults of a running node, until a new file
// is in its place.
func TestCertificatesEnd(t *testing.T) {
	t.Parallel()
	dir, other := t.TempDir(), t.TempDir()
	cert, key := clitest.WriteCertificate(t, dir, "x", -day, 10*day)
	ca, _ := clitest.WriteCertificate(t, other, "ca", -2*day, -day)
	p := startNode(t, t.TempDir(), "--https-address", "127.0.0.1:0", "--tls-cert", cert, "--tls-key", key,
		"--tls-root-ca-file", ca)
	for _, says := range []string{cert + " of tls-cert ends in 9 days", ca + " of tls-root-ca-file ended 24h0m"} {
		if n := strings.Count(p.log.String(), says); n != 1 {
			t.Errorf("the log says %d times %q:\n%s", n, says, p.log)
		}
		if _, text := p.get("/health"); !strings.Contains(text, says) {
			t.Errorf("health does not say %q: %s", says, text)
		}
	}
	if s := p.metric(`certificate_expiry_seconds{setting="tls-cert"}`); s < 9*86400 || s > 10*86400 {
		t.Errorf("the certificate ends in %v s", s)
	}
	for setting, want := range map[string]float64{"tls-cert": 1, "tls-root-ca-file": 0} {
		if got := p.metric(`certificate_valid{setting="` + setting + `"}`); got != want {
			t.Errorf("%s: valid is %v, want %v", setting, got, want)
		}
	}
	clitest.WriteCertificate(t, dir, "x", -day, 100*day)
	clitest.WriteCertificate(t, other, "ca", -day, 100*day)
	waitUntil(t, "nothing is said of certificates", func() bool {
		code, text := p.get("/health")
		return code == http.StatusOK && !strings.Contains(text, "certificate")
	})
}

// A node that starts with a certificate that nobody takes says so, and the others say of one that is gone that its
// certificate has ended.
func TestCertificateOfANodeEnds(t *testing.T) {
	t.Parallel()
	tls, short := t.TempDir(), t.TempDir()
	hosts := []trust.Node{{Name: "a", Hosts: []string{"127.0.0.1"}}, {Name: "b", Hosts: []string{"127.0.0.1"}}}
	_, _, err := trust.Init(tls, hosts, time.Now())
	must(t, err)
	// The same authority signs one for b that ends soon: it is five years old.
	must(t, os.Link(filepath.Join(tls, "ca.pem"), filepath.Join(short, "ca.pem")))
	must(t, os.Link(filepath.Join(tls, "ca-key.pem"), filepath.Join(short, "ca-key.pem")))
	ends := time.Now().Add(15 * time.Second)
	_, _, err = trust.Init(short, hosts[1:], ends.AddDate(-5, 0, 0))
	must(t, err)

	address := fmt.Sprintf("127.0.0.1:%d", freeBasePort(t)+devcluster.PortPeer)
	args := func(name, dir, own string) []string {
		return []string{
			"serve", "--node-id", name, "--data-path", dir, "--nsq-address", "127.0.0.1:0", "--http-address", "127.0.0.1:0",
			"--lookup-address", "off", "--cluster-peers", "a=" + address, "--cluster-address", own,
			"--cluster-tls-ca", filepath.Join(tls, "ca.pem"),
		}
	}
	files := func(dir, name string) []string {
		return []string{
			"--cluster-tls-cert", filepath.Join(dir, name+".pem"), "--cluster-tls-key", filepath.Join(dir, name+"-key.pem"),
		}
	}
	a := startProcess(t, "", binary(t), append(args("a", filepath.Join(t.TempDir(), "a"), address), files(tls, "a")...))
	argsB := args("b", filepath.Join(t.TempDir(), "b"), "127.0.0.1:0")
	b := startProcess(t, "", binary(t), append(slices.Clone(argsB), files(short, "b")...))
	waitUntil(t, "a knows what b has shown, and b is live", func() bool {
		_, text := a.get("/health")
		return strings.Contains(text, "all 2 nodes are live") && strings.Contains(a.log.String(), "connected to node")
	})
	waitUntil(t, "b's certificate has ended", func() bool { return time.Now().After(ends) })
	if code := b.end(syscall.SIGKILL); code == 0 {
		t.Errorf("b ended with %d", code)
	}
	const says = "node b is dead (the certificate that node b showed last ended at "
	waitUntil(t, "a says why b is dead", func() bool {
		_, text := a.get("/health")
		return strings.Contains(text, says)
	})

	web := fmt.Sprintf("127.0.0.1:%d", freeBasePort(t)+devcluster.PortPeer)
	again := append(slices.Clone(argsB), files(short, "b")...)
	launch(t, "", binary(t), append(again, "--http-address", web))
	waitUntil(t, "b says why it does not start", func() bool {
		reply, err := http.Get("http://" + web + "/health")
		if err != nil {
			return false
		}
		defer reply.Body.Close()
		var text bytes.Buffer
		_, _ = text.ReadFrom(reply.Body)
		return strings.Contains(text.String(), "the node is starting: ") &&
			strings.Contains(text.String(), "b.pem of cluster-tls-cert ended ")
	})
}
