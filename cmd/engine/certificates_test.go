package main

import (
	"bytes"
	"encoding/pem"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"penstock/internal/cluster/trust"
)

const day = 24 * time.Hour

// A file is as good as its worst certificate, if it is a chain; of authorities the next one to end counts, and those
// that have ended do not while one is good.
func TestCertificateFiles(t *testing.T) {
	for name, tc := range map[string]struct {
		authorities bool
		until       []time.Duration
		want        time.Duration
	}{
		"one":                        {false, []time.Duration{9 * day}, 9 * day},
		"a chain":                    {false, []time.Duration{9 * day, 3 * day, 20 * day}, 3 * day},
		"authorities":                {true, []time.Duration{9 * day, 3 * day, 20 * day}, 3 * day},
		"an authority that has gone": {true, []time.Duration{-day, 9 * day, 20 * day, -2 * day}, 9 * day},
	} {
		dir := t.TempDir()
		var all bytes.Buffer
		for _, until := range tc.until {
			cert, _ := writeCertificateFor(t, dir, "x", -10*day, until)
			data, err := os.ReadFile(cert)
			must(t, err)
			all.Write(data)
		}
		must(t, pem.Encode(&all, &pem.Block{Type: "PRIVATE KEY", Bytes: []byte("x")}))
		file := filepath.Join(dir, "all.pem")
		must(t, os.WriteFile(file, all.Bytes(), 0o600))
		c := &certificates{files: []certificateFile{
			{"x", file, tc.authorities}, {"missing", file + "-not", false},
		}}
		c.read()
		got := c.all()
		if len(got) != 1 || got[0].Setting != "x" || time.Until(got[0].Until).Round(time.Hour) != tc.want {
			t.Errorf("%s: %+v, want one that ends in %v", name, got, tc.want)
		}
	}
}

// Of a file that the node has not taken, what it had counts, whatever is on the disk.
func TestCertificatesOfRefusedFiles(t *testing.T) {
	one, two := t.TempDir(), t.TempDir()
	a, _ := writeCertificateFor(t, one, "x", -day, 9*day)
	b, _ := writeCertificateFor(t, two, "x", -day, 9*day)
	c := &certificates{files: []certificateFile{{"tls-cert", a, false}, {"etcd-cert-file", b, false}}}
	c.read()
	writeCertificateFor(t, one, "x", -day, 20*day)
	writeCertificateFor(t, two, "x", -day, 20*day)
	for _, step := range []struct {
		taken []string
		want  [2]time.Duration
	}{
		{nil, [2]time.Duration{9 * day, 9 * day}},
		{[]string{"etcd-cert-file"}, [2]time.Duration{9 * day, 20 * day}},
		{[]string{"tls-cert", "tls-key"}, [2]time.Duration{20 * day, 20 * day}},
	} {
		c.readAgain(step.taken)
		for i, one := range c.all() {
			if got := time.Until(one.Until).Round(time.Hour); got != step.want[i] {
				t.Errorf("after %v, %s ends in %v, want %v", step.taken, one.Setting, got, step.want[i])
			}
		}
	}
}

// A certificate that ends soon is in the log when that begins and once a day; and when it has ended, and is replaced.
func TestCertificateIsToldOnceADay(t *testing.T) {
	dir := t.TempDir()
	cert, _ := writeCertificateFor(t, dir, "x", -day, 40*day)
	var log bytes.Buffer
	c := &certificates{
		files: []certificateFile{{"tls-cert", cert, false}}, told: map[string]reminded{},
		log: slog.New(slog.NewTextHandler(&log, nil)),
	}
	c.read()
	now := time.Now()
	for _, step := range []struct {
		after time.Duration
		lines int
	}{
		{0, 0},
		{9 * day, 0},
		{10*day + time.Minute, 1},
		{11*day - time.Minute, 1},
		{11*day + time.Minute, 2},
		{40*day - time.Hour, 3},
		{40*day + time.Hour, 4},
		{40*day + 2*time.Hour, 4},
		{41*day + 2*time.Hour, 5},
	} {
		for range 3 {
			c.tell(now.Add(step.after))
		}
		if got := strings.Count(log.String(), "\n"); got != step.lines {
			t.Fatalf("after %v there are %d lines, want %d:\n%s", step.after, got, step.lines, log.String())
		}
	}
	if text := log.String(); strings.Count(text, "level=WARN") != 3 || strings.Count(text, "level=ERROR") != 2 {
		t.Errorf("the log:\n%s", text)
	}
}

// The end of a certificate shows in the log, the metrics, the health and the faults of a running node, until a new file
// is in its place.
func TestCertificatesEnd(t *testing.T) {
	dir, other := t.TempDir(), t.TempDir()
	cert, key := writeCertificateFor(t, dir, "x", -day, 10*day)
	ca, _ := writeCertificateFor(t, other, "ca", -2*day, -day)
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
	writeCertificateFor(t, dir, "x", -day, 100*day)
	writeCertificateFor(t, other, "ca", -day, 100*day)
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

	address := fmt.Sprintf("127.0.0.1:%d", freeBasePort(t)+devPeer)
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

	web := fmt.Sprintf("127.0.0.1:%d", freeBasePort(t)+devPeer)
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
