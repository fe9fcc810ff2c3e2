package server

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"penstock/internal/node"
	"penstock/internal/server/api"
	"penstock/internal/server/auth"
	"penstock/tests/support/authtest"
	"penstock/tests/support/nsqtest"
)

// tenants returns options with the tokens mallory and billing, which may publish to t, and admin.
func tenants(t *testing.T) Options {
	t.Helper()
	file := filepath.Join(t.TempDir(), "tokens.toml")
	const grant = "permissions = [\"publish\"]\ntopics = [\"t\"]"
	const admin = "permissions = [\"admin\", \"publish\"]\ntopics = [\"*\"]\nchannels = [\"*\"]"
	authtest.Write(t, file, authtest.Token("billing", "billing", grant)+authtest.Token("mallory", "mallory", grant)+
		authtest.Token("admin", "admin", admin))
	return Options{BroadcastAddress: "127.0.0.1", Auth: auth.Options{File: file}}
}

// asToken is a request with a token. It is repeated while a cluster is about to answer.
func (n *testNode) asToken(t *testing.T, method, path, token string, answer any) (status int, text string) {
	t.Helper()
	nsqtest.Eventually(t, "an answer to "+path, func() bool {
		reply, got := request(t, method, n.base+path, "", "Authorization", "Bearer "+token)
		status, text = reply.StatusCode, got
		return status != 503 && !strings.Contains(text, "feature level")
	})
	if answer != nil && (status != 200 || json.Unmarshal([]byte(text), answer) != nil) {
		t.Fatalf("%s for %s: %d %s", path, token, status, text)
	}
	return status, text
}

// One token opens names until it is refused, by name; another one opens its own all the same. An administrator of the
// topic sees whose names they are, and removes one, which makes room. Nobody else may look or remove.
func TestNamesOfOneTokenLeaveRoom(t *testing.T) {
	n := startNode(t, node.Options{}, tenants(t))
	var all sync.WaitGroup
	names := make(chan int)
	var mu sync.Mutex
	refused := ""
	count := 0
	for range 32 {
		all.Go(func() {
			for i := range names {
				status, text := n.asToken(t, "POST", fmt.Sprint("/producer/open?topic=t&producer=m", i), "mallory", nil)
				mu.Lock()
				if status == 507 {
					refused = text
					count++
				}
				mu.Unlock()
			}
		})
	}
	for i := range 1034 {
		names <- i
	}
	close(names)
	all.Wait()
	if count != 10 || !strings.Contains(refused, "1024") || !strings.Contains(refused, "of this token") {
		t.Errorf("%d were refused: %s", count, refused)
	}
	var p api.ProducerOpened
	n.asToken(t, "POST", "/producer/open?topic=t&producer=billing-1", "billing", &p)
	var rows api.ProducerRows
	n.asToken(t, "GET", "/topic/producers?topic=t&producer=billing-1", "admin", &rows)
	if len(rows.Producers) != 1 || rows.Producers[0].Owner != "billing" || rows.Producers[0].Epoch != 1 {
		t.Errorf("%+v", rows)
	}
	for _, token := range []string{"mallory", "billing"} {
		if status, _ := n.asToken(t, "GET", "/topic/producers?topic=t", token, nil); status != 403 {
			t.Errorf("%s lists: %d", token, status)
		}
		if status, _ := n.asToken(t, "POST", "/producer/remove?topic=t&producer=billing-1", token, nil); status != 403 {
			t.Errorf("%s removes: %d", token, status)
		}
	}
	n.asToken(t, "GET", "/topic/producers?topic=t", "admin", &rows)
	if len(rows.Producers) != 1025 || rows.More {
		t.Errorf("%d rows, more: %v", len(rows.Producers), rows.More)
	}
	var removed api.ProducerRemoved
	n.asToken(t, "POST", "/producer/remove?topic=t&producer="+rows.Producers[1].Producer, "admin", &removed)
	if removed.Removed != 1 {
		t.Errorf("removed from %d partitions", removed.Removed)
	}
	n.asToken(t, "POST", "/producer/open?topic=t&producer=room", "mallory", &p)
	for path, want := range map[string]int{
		"/producer/remove?topic=t": 400, "/producer/remove?topic=t&producer=none": 404,
		"/producer/remove?topic=none&producer=p": 404,
	} {
		if status, text := n.asToken(t, "POST", path, "admin", nil); status != want {
			t.Errorf("%s: %d %s", path, status, text)
		}
	}
}

// Every node of a cluster lists and removes what any leader knows.
func TestProducersOfACluster(t *testing.T) {
	nodes := startCluster(t, 3, tenants(t))
	leader, n := bystander(t, nodes, "t")
	if n == nil {
		n = leader
	}
	var p api.ProducerOpened
	n.asToken(t, "POST", "/producer/open?topic=t&producer=p", "billing", &p)
	for _, m := range nodes {
		var rows api.ProducerRows
		m.asToken(t, "GET", "/topic/producers?topic=t", "admin", &rows)
		if len(rows.Producers) != 1 || rows.Producers[0].Producer != "p" || rows.Producers[0].Owner != "billing" {
			t.Errorf("%+v", rows)
		}
	}
	var removed api.ProducerRemoved
	n.asToken(t, "POST", "/producer/remove?topic=t&producer=p", "admin", &removed)
	if removed.Removed != 1 {
		t.Errorf("%+v", removed)
	}
	var rows api.ProducerRows
	leader.asToken(t, "GET", "/topic/producers?topic=t", "admin", &rows)
	if len(rows.Producers) != 0 {
		t.Errorf("%+v", rows)
	}
}
