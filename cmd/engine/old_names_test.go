package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"penstock/cmd/engine/internal/devcluster"
	"penstock/internal/cluster/trust"
)

// All nodes move, and their certificates have the old addresses: each says so while it waits for the others, and they
// find each other once the files are replaced, without a restart.
func TestNodesMoveWithOldCertificates(t *testing.T) {
	t.Parallel()
	tls, dir := t.TempDir(), t.TempDir()
	names := []string{"a", "b", "c"}
	sign := func(hosts ...string) {
		t.Helper()
		var nodes []trust.Node
		for _, n := range names {
			nodes = append(nodes, trust.Node{Name: n, Hosts: hosts})
		}
		next := t.TempDir()
		for _, ca := range []string{"ca.pem", "ca-key.pem"} { // the same authority, once there is one
			if err := os.Link(filepath.Join(tls, ca), filepath.Join(next, ca)); err != nil && !os.IsNotExist(err) {
				t.Fatal(err)
			}
		}
		_, _, err := trust.Init(next, nodes, time.Now())
		must(t, err)
		files, err := filepath.Glob(filepath.Join(next, "*.pem"))
		must(t, err)
		for _, f := range files {
			must(t, os.Rename(f, filepath.Join(tls, filepath.Base(f))))
		}
	}
	launchAll := func(host string) (all []*process, web []string) {
		var own, peers []string
		for _, n := range names {
			base := freeBasePort(t)
			own, web = append(own, fmt.Sprintf("%s:%d", host, base+devcluster.PortPeer)),
				append(web, fmt.Sprintf("127.0.0.1:%d", base))
			peers = append(peers, n+"="+own[len(own)-1])
		}
		for i, n := range names {
			all = append(all, launch(t, "", binary(t), []string{
				"serve", "--node-id", n, "--data-path", filepath.Join(dir, n), "--nsq-address", "127.0.0.1:0", "--http-address",
				web[i], "--lookup-address", "off", "--cluster-peers", strings.Join(peers, ","), "--cluster-address", own[i],
				"--cluster-tls-ca", filepath.Join(tls, "ca.pem"), "--cluster-tls-cert", filepath.Join(tls, n+".pem"),
				"--cluster-tls-key", filepath.Join(tls, n+"-key.pem"),
			}))
		}
		return all, web
	}
	sign("127.0.0.1")
	all, _ := launchAll("127.0.0.1")
	for _, p := range all {
		p.ready()
	}
	for _, p := range all {
		p.end(syscall.SIGTERM)
	}
	all, web := launchAll("127.0.0.2")
	for i, n := range names {
		says := filepath.Join(tls, n+".pem") + " of cluster-tls-cert is not for 127.0.0.2, which this node announces"
		waitUntil(t, n+" says why it does not find the others", func() bool {
			_, text := ask(t, web[i], "/health")
			return strings.Contains(text, "the node is starting: ") && strings.Contains(text, says)
		})
	}
	sign("127.0.0.1", "127.0.0.2")
	for _, p := range all {
		p.ready()
	}
}
