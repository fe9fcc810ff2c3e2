package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"penstock/cmd/engine/internal/cli"
	"penstock/cmd/engine/internal/devcluster"
)

// The embedded etcd of a node is damaged: the node says in one sentence what to do, and its messages can be saved.
func TestDamagedEtcd(t *testing.T) {
	t.Parallel()
	data, out := filepath.Join(t.TempDir(), "n1"), filepath.Join(t.TempDir(), "backup")
	at := fmt.Sprintf("127.0.0.1:%d", freeBasePort(t)+devcluster.PortPeer)
	args := []string{"--node-id", "n1", "--cluster-address", at, "--cluster-peers", "n1=" + at, "--replicas", "1"}
	p := startNode(t, data, args...)
	p.publish("orders", 10)
	p.end(syscall.SIGQUIT) // with the trace that a panic has
	if label := `labels:{"embedded etcd": "` + data; !strings.Contains(p.log.String(), label) {
		t.Errorf("the trace does not say %s", label)
	}
	db := filepath.Join(data, "etcd", "member", "snap", "db")
	f, err := os.OpenFile(db, os.O_RDWR, 0)
	must(t, err)
	_, err = f.WriteAt(make([]byte, 64<<10), 8192)
	must(t, err)
	must(t, f.Close())
	r := execute(t, append([]string{"serve", "--data-path", data, "--http-address", "off"}, args...)...)
	r.check(t, cli.ExitData, "the database "+db+" is damaged")
	r.check(t, cli.ExitData, "The messages are unharmed. This is the only member")
	b := execute(t, "backup", "--from", data, out)
	if b.code != 0 {
		t.Fatalf("%+v", b)
	}
	execute(t, "backup", "--verify", out)
}
