package main

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"penstock/internal/cluster/etcd"
	"penstock/internal/cluster/trust"
)

// replaceFiles copies files over others, as a mount of secrets does: by rename.
func replaceFiles(t *testing.T, from, to []string) {
	t.Helper()
	for i := range from {
		data, err := os.ReadFile(from[i])
		must(t, err)
		must(t, os.WriteFile(to[i]+".new", data, 0o600))
		must(t, os.Rename(to[i]+".new", to[i]))
	}
}

// A node that etcd does not let in, because of its certificate, waits. It takes the certificate that replaces this one,
// and joins without a restart.
func TestNodeThatWaitsForEtcdTakesNewCertificates(t *testing.T) {
	t.Parallel()
	dir, base := t.TempDir(), freeBasePort(t)
	at := func(i int) string { return fmt.Sprintf("127.0.0.1:%d", base+i) }
	authority := func(name string, nodes ...string) (ca string, files []trust.NodeFiles) {
		var all []trust.Node
		for _, n := range nodes {
			all = append(all, trust.Node{Name: n, Hosts: []string{"127.0.0.1"}})
		}
		ca, files, err := trust.Init(filepath.Join(dir, name), all, time.Now())
		must(t, err)
		return ca, files
	}
	ca, ours := authority("ours", "e", "n1")
	_, others := authority("others", "n1")
	m, err := etcd.Start(etcd.MemberOptions{
		Name: "e", Voters: []etcd.Voter{{Name: "e", Peer: at(5), Client: at(6)}}, Dir: filepath.Join(dir, "etcd"),
		TLS:           etcd.TLSFiles{CA: ca, Cert: ours[0].Cert, Key: ours[0].Key},
		UnsafeNoFsync: true, Log: slog.New(slog.DiscardHandler),
	})
	must(t, err)
	t.Cleanup(func() { _ = m.Close() })
	must(t, m.Ready(t.Context()))

	mounted := []string{filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")}
	replaceFiles(t, []string{others[0].Cert, others[0].Key}, mounted)
	p := launch(t, "", binary(t), []string{
		"serve", "--data-path", filepath.Join(dir, "n1"), "--nsq-address", "127.0.0.1:0", "--http-address", "127.0.0.1:0",
		"--lookup-address", "off", "--node-id", "n1", "--cluster-address", at(2), "--etcd-endpoints", at(6),
		"--etcd-ca-file", ca, "--etcd-cert-file", mounted[0], "--etcd-key-file", mounted[1], "--replicas", "1",
	})
	p.waitLog(t, "the metadata store does not answer")
	replaceFiles(t, []string{ours[1].Cert, ours[1].Key}, mounted)
	p.ready()
	if text := p.log.String(); !strings.Contains(text, "certificates and tokens were read again") {
		t.Errorf("the log does not say that they were taken:\n%s", text)
	}
}

// A node whose certificate is for another address than the one to which it has moved waits for the other members of the
// metadata store, and they for it, until it has a new one.
func TestNodesThatWaitForEachOtherTakeNewCertificates(t *testing.T) {
	t.Parallel()
	dir, base := t.TempDir(), freeBasePort(t)
	at := func(i int) string { return fmt.Sprintf("127.0.0.1:%d", base+i) }
	ca, files, err := trust.Init(filepath.Join(dir, "tls"), []trust.Node{
		{Name: "n1", Hosts: []string{"127.0.0.1"}},
		{Name: "n2", Hosts: []string{"127.0.0.1"}},
		{Name: "n3", Hosts: []string{"127.0.0.1"}},
		{Name: "moved", Hosts: []string{"192.0.2.1"}},
	}, time.Now())
	must(t, err)
	mounted := []string{filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")}
	replaceFiles(t, []string{files[3].Cert, files[3].Key}, mounted)
	start := func(name string, port int, cert, key string) *process {
		return launch(t, "", binary(t), []string{
			"serve", "--data-path", filepath.Join(dir, name), "--nsq-address", "127.0.0.1:0", "--http-address", "127.0.0.1:0",
			"--lookup-address", "off", "--node-id", name, "--cluster-address", at(port), "--cluster-peers",
			"n1=" + at(0) + ",n2=" + at(3) + ",n3=" + at(6), "--cluster-tls-ca", ca, "--cluster-tls-cert", cert,
			"--cluster-tls-key", key,
		})
	}
	all := []*process{
		start("n1", 0, files[0].Cert, files[0].Key), start("n2", 3, mounted[0], mounted[1]),
		start("n3", 6, files[2].Cert, files[2].Key),
	}
	for _, p := range all {
		p.waitLog(t, "the embedded etcd member waits")
	}
	replaceFiles(t, []string{files[1].Cert, files[1].Key}, mounted)
	for _, p := range all {
		p.ready()
	}
}
