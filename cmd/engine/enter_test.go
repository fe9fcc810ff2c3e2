package main

import (
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"penstock/cmd/engine/internal/cli"
	"penstock/internal/cluster/etcd"
	"penstock/internal/cluster/trust"
)

// With certificates that have to name nodes, only nodes reach the embedded etcd: those of cluster-peers, those of the
// cluster, and those that cluster-tls-nodes lets join. Another host of the same authority does not.
func TestOnlyNodesReachTheEmbeddedEtcd(t *testing.T) {
	t.Parallel()
	dir, base := t.TempDir(), freeBasePort(t)
	at := func(i int) string { return fmt.Sprintf("127.0.0.1:%d", base+i) }
	tls := filepath.Join(dir, "tls")
	var nodes []trust.Node
	for _, name := range []string{"n1", "n2", "web1"} {
		nodes = append(nodes, trust.Node{Name: name, Hosts: []string{"127.0.0.1"}})
	}
	ca, files, err := trust.Init(tls, nodes, time.Now())
	must(t, err)
	args := func(i, port int, more ...string) []string {
		return append([]string{
			"--node-id", nodes[i].Name, "--cluster-address", at(port), "--cluster-peers", "n1=" + at(0), "--replicas", "1",
			"--cluster-tls-ca", ca, "--cluster-tls-cert", files[i].Cert, "--cluster-tls-key", files[i].Key,
			"--cluster-tls-names", "required",
		}, more...)
	}
	enters := func(i int) error {
		s, err := etcd.Dial(t.Context(), []string{at(2)}, etcd.Options{
			TLS:         etcd.TLSFiles{CA: ca, Cert: files[i].Cert, Key: files[i].Key},
			DialTimeout: 2 * time.Second,
		})
		if err == nil {
			err = s.Close()
		}
		return err
	}
	n1 := startNode(t, filepath.Join(dir, "n1"), args(0, 0)...)
	if err := enters(0); err != nil {
		t.Errorf("the node itself: %v", err)
	}
	for _, i := range []int{1, 2} {
		if enters(i) == nil {
			t.Errorf("%s, which is no node yet, reaches etcd", nodes[i].Name)
		}
	}
	n1.waitLog(t, "cluster-tls-nodes")
	n1.end(syscall.SIGTERM)
	n1 = startNode(t, filepath.Join(dir, "n1"), args(0, 0, "--cluster-tls-nodes", "n?")...)
	startNode(t, filepath.Join(dir, "n2"), args(1, 3)...)
	n1.end(syscall.SIGTERM)
	startNode(t, filepath.Join(dir, "n1"), args(0, 0)...)
	waitUntil(t, "n2, which is in the cluster, reaches etcd", func() bool { return enters(1) == nil })
	if enters(2) == nil {
		t.Error("another host reaches etcd")
	}
	execute(t, append([]string{
		"serve", "--data-path", filepath.Join(dir, "n3"),
	}, args(2, 4, "--cluster-tls-nodes", "a[")...)...).check(t, cli.ExitUsage, "cluster-tls-nodes")
	if names, err := os.ReadDir(filepath.Join(dir, "n3")); err == nil && len(names) > 0 {
		t.Errorf("a node that is refused makes %v", names)
	}
}
