package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.etcd.io/etcd/client/pkg/v3/transport"
	clientv3 "go.etcd.io/etcd/client/v3"

	"penstock/cmd/engine/internal/devcluster"
)

// post sends a change to a node and returns the answer.
func post(address, path, body string) (int, string) {
	resp, err := http.Post("http://"+address+path, "application/json", strings.NewReader(body))
	if err != nil {
		return 0, err.Error()
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		return 0, err.Error()
	}
	return resp.StatusCode, string(text)
}

// etcdLeader returns the node whose embedded etcd leads.
func etcdLeader(t *testing.T, dir string, nodes map[string]devcluster.Node) string {
	t.Helper()
	own := filepath.Join(dir, "n1", "etcd", "tls") // etcd speaks to nobody who has not got the cluster's secret
	node := filepath.Join(own, "node.pem")
	info := transport.TLSInfo{TrustedCAFile: filepath.Join(own, "authority.pem"), CertFile: node, KeyFile: node}
	config, err := info.ClientConfig()
	if err != nil {
		t.Fatal(err)
	}
	for name, n := range nodes {
		host, port := n.NSQ[:strings.LastIndex(n.NSQ, ":")], 0
		if _, err := fmt.Sscan(n.NSQ[len(host)+1:], &port); err != nil {
			t.Fatal(err)
		}
		address := fmt.Sprintf("%s:%d", host, port+6) // see devcluster.Plan
		c, err := clientv3.New(clientv3.Config{
			Endpoints: []string{"https://" + address}, DialTimeout: 10 * time.Second, TLS: config,
		})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		st, err := c.Status(ctx, "https://"+address)
		cancel()
		c.Close()
		if err != nil {
			t.Fatal(err)
		}
		if st.Leader == st.Header.MemberId {
			return name
		}
	}
	t.Fatal("etcd has no leader")
	return ""
}

// O21: changes that come in the half second after the death of etcd's leader wait for the election and succeed.
func TestChangesOutlastTheElection(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	p := startDevAs(t, realNodes, dir)
	nodes := p.ready(3)
	leader := etcdLeader(t, dir, nodes)
	asked := ""
	for name, n := range nodes {
		if name != leader {
			asked = n.HTTP
		}
	}
	if code, text := post(asked, "/topic/create?topic=orders&partitions=2", ""); code != 200 {
		t.Fatalf("%d %s", code, text)
	}
	p.signal(nodes[leader].PID, syscall.SIGKILL)
	var all sync.WaitGroup
	for i := range 5 {
		after := time.Duration(i) * 100 * time.Millisecond
		all.Go(func() {
			time.Sleep(after)
			if code, text := post(asked, fmt.Sprintf("/topic/create?topic=t%d&partitions=2", i), ""); code != 200 {
				t.Errorf("a topic that is made %v later: %d %s", after, code, text)
			}
		})
	}
	all.Go(func() {
		if code, text := post(asked, "/cluster/expand", `{"topic":"orders","partitions":4}`); code != 200 {
			t.Errorf("expand: %d %s", code, text)
		}
		code, text := post(asked, "/topic/settings?topic=orders", `{"version":1,"quota_bytes":1048576}`)
		if code != 200 {
			t.Errorf("settings: %d %s", code, text)
		}
	})
	all.Wait()
	resp, err := http.Get("http://" + asked + "/topic/settings?" + url.Values{"topic": {"orders"}}.Encode())
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	for _, want := range []string{`"version":2`, `"partitions":4`, `"quota_bytes":1048576`} {
		if err != nil || !strings.Contains(string(text), want) {
			t.Errorf("the settings are %s (%v), and lack %s", text, err, want)
		}
	}
}
