package main

import (
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
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
func etcdLeader(t *testing.T, nodes map[string]devNode) string {
	t.Helper()
	for name, n := range nodes {
		host, port := n.NSQ[:strings.LastIndex(n.NSQ, ":")], 0
		if _, err := fmt.Sscan(n.NSQ[len(host)+1:], &port); err != nil {
			t.Fatal(err)
		}
		address := fmt.Sprintf("%s:%d", host, port+6) // see planDevCluster
		c, err := clientv3.New(clientv3.Config{Endpoints: []string{address}, DialTimeout: 10 * time.Second})
		if err != nil {
			t.Fatal(err)
		}
		st, err := c.Status(t.Context(), address)
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
	p := startDevAs(t, realNodes, t.TempDir())
	nodes := p.ready(3)
	leader := etcdLeader(t, nodes)
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
