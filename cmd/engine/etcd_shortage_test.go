package main

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// A node of a cluster cannot open a file for a while, and its etcd says its last words when it looks for old files. The
// node goes on: it stores again as soon as it can, and its member comes back by itself.
func TestNodeOutlivesItsEtcdWithoutDescriptors(t *testing.T) {
	t.Parallel()
	dir, base := t.TempDir(), freeBasePort(t)
	at := func(i int) string { return fmt.Sprintf("127.0.0.1:%d", base+10*i) }
	var list []string
	for i := range 3 {
		list = append(list, fmt.Sprintf("n%d=%s", i+1, at(i)))
	}
	nodes := make([]*process, 3)
	for i := range nodes {
		name := fmt.Sprintf("n%d", i+1)
		nodes[i] = launch(t, "", binary(t), []string{
			"serve", "--data-path", filepath.Join(dir, name), "--nsq-address", "127.0.0.1:0", "--http-address", "127.0.0.1:0",
			"--lookup-address", "off", "--native-address", "off", "--node-id", name, "--cluster-address", at(i),
			"--cluster-peers", strings.Join(list, ","),
		})
	}
	for _, p := range nodes {
		p.ready()
	}
	p := nodes[0]
	waitUntil(t, "a topic", func() bool {
		code, _ := post(p.http, "/topic/create?topic=t&replicas=3", "")
		return code == 200
	})
	pid := p.cmd.Process.Pid
	var limit unix.Rlimit
	none := unix.Rlimit{Cur: 3}
	must(t, unix.Prlimit(pid, unix.RLIMIT_NOFILE, nil, &limit))
	none.Max = limit.Max
	must(t, unix.Prlimit(pid, unix.RLIMIT_NOFILE, &none, nil))
	p.waitLog(t, "the embedded etcd member has a fault")
	must(t, unix.Prlimit(pid, unix.RLIMIT_NOFILE, &limit, nil))
	nc := p.dialNSQ("  V2")
	waitUntil(t, "a publish", func() bool {
		err := publishOne(nc)
		if err != nil {
			nc = p.dialNSQ("  V2")
		}
		return err == nil
	})
	waitUntil(t, "the member is back", func() bool {
		_, says := p.get("/health")
		return p.metric("store_member_failed") == 0 && !strings.Contains(says, "has a member less")
	})
	select {
	case err := <-p.exited:
		t.Errorf("the node has ended: %v", err)
	default:
	}
}
