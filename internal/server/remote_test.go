package server

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"strings"
	"sync"
	"testing"
	"time"

	gonsq "github.com/nsqio/go-nsq"

	"penstock/tests/support/nsqtest"
)

// bystander creates a topic, and returns the node that leads its only partition and a node that does not.
func bystander(t *testing.T, nodes []*testNode, topic string) (leader, other *testNode) {
	t.Helper()
	if _, err := nodes[0].e.CreateTopic(t.Context(), topic, 0); err != nil {
		t.Fatal(err)
	}
	nsqtest.Eventually(t, "the topic to be led", func() bool {
		for _, n := range nodes {
			if _, ok := n.e.Catalog().LookupTopic(topic); !ok {
				return false
			}
			if n.leadsSome(topic) {
				leader = n
			}
		}
		return leader != nil
	})
	for _, n := range nodes {
		if n != leader {
			other = n
		}
	}
	return leader, other
}

// fixed starts a stock consumer that knows one address and uses no lookups.
func fixed(
	t *testing.T, n *testNode, topic string, maxInFlight int, handle func(*gonsq.Message) error,
) *gonsq.Consumer {
	t.Helper()
	cfg := gonsq.NewConfig()
	cfg.MaxInFlight, cfg.ClientID, cfg.UserAgent = maxInFlight, "the-client", "remote-test"
	consumer, err := gonsq.NewConsumer(topic, "billing", cfg)
	if err != nil {
		t.Fatal(err)
	}
	consumer.SetLogger(log.New(io.Discard, "", 0), gonsq.LogLevelError)
	consumer.AddConcurrentHandlers(gonsq.HandlerFunc(handle), 4)
	if err := consumer.ConnectToNSQD(n.TCPAddr().String()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		consumer.Stop()
		<-consumer.StopChan
	})
	return consumer
}

// The stock client, given the address of a node that does not lead the topic, gets every message once, with requeues.
// The leader's /stats shows the client, and the other node's does not.
//
// B44, B48: a consumer with a fixed address.
func TestGoNSQFixedAddress(t *testing.T) {
	nodes := startCluster(t, 3, Options{})
	leader, other := bystander(t, nodes, "orders")
	const count = 3000
	var mu sync.Mutex
	got := map[string]int{}
	all := make(chan struct{})
	fixed(t, other, "orders", 100, func(m *gonsq.Message) error {
		if m.Attempts == 1 && strings.HasSuffix(string(m.Body), "00") {
			m.RequeueWithoutBackoff(0)
			return errors.New("once more")
		}
		mu.Lock()
		defer mu.Unlock()
		if got[string(m.Body)]++; len(got) == count {
			select {
			case <-all:
			default:
				close(all)
			}
		}
		return nil
	})
	for at := range count / 100 {
		var bodies []string
		for i := range 100 {
			bodies = append(bodies, fmt.Sprint("order-", at*100+i))
		}
		nodes[at%3].post(t, "/mpub?topic=orders", strings.Join(bodies, "\n"))
	}
	select {
	case <-all:
	case <-time.After(nsqtest.Patience):
		t.Fatalf("%d of %d messages came", len(got), count)
	}
	for body, n := range got {
		if n != 1 {
			t.Errorf("%s came %d times", body, n)
		}
	}
	nsqtest.Eventually(t, "all to be confirmed at the leader", func() bool {
		s := leader.topicNow(t, "orders")
		return len(s.Channels) == 1 && s.Channels[0].InFlightCount == 0 && s.Channels[0].Depth == 0
	})
	clients := leader.stats.Collect("orders", "billing", true).Topics[0].Channels[0].Clients
	if len(clients) != 1 || clients[0].ClientID != "the-client" || clients[0].UserAgent != "remote-test" ||
		clients[0].ConnectTime == 0 ||
		clients[0].FinishCount != count {
		t.Errorf("the leader shows %+v", clients)
	}
	if clients := other.stats.Collect("orders", "billing", true).Topics[0].Channels; len(clients) > 0 &&
		len(clients[0].Clients) > 0 {
		t.Errorf("the client's node shows it, too: %+v", clients)
	}
}

// A FIN that the leader refuses is answered with nsqd's error frame, and the connection continues.
func TestFixedAddressFailures(t *testing.T) {
	nodes := startCluster(t, 3, Options{})
	_, other := bystander(t, nodes, "orders")
	c := other.dial(t)
	c.Sub("orders", "billing")
	c.Send("RDY 5\n")
	other.post(t, "/pub?topic=orders", "m")
	m := c.Message()
	c.Send("FIN " + m.ID + "\n")
	c.Send("FIN " + m.ID + "\n")
	c.Expect(nsqtest.FrameError, "E_FIN_FAILED FIN "+m.ID+" failed ID not in flight")
	c.Send("TOUCH 00000000000000ff\n")
	c.Expect(nsqtest.FrameError, "E_TOUCH_FAILED TOUCH 00000000000000ff failed ID not in flight")
	c.Send("REQ ffffffffffffffff 0\n")
	c.Expect(nsqtest.FrameError, "E_REQ_FAILED REQ ffffffffffffffff failed ID not in flight")
	other.post(t, "/pub?topic=orders", "goes on")
	if m := c.Message(); m.Body != "goes on" {
		t.Errorf("got %q", m.Body)
	}
}

// The stock client's connection survives when leadership moves to a third node, to the client's own node, and back.
//
// B57: no message is lost when the leader changes.
func TestGoNSQFixedAddressFollows(t *testing.T) {
	nodes := startCluster(t, 3, Options{})
	_, other := bystander(t, nodes, "orders")
	var mu sync.Mutex
	got := map[string]bool{}
	consumer := fixed(t, other, "orders", 10, func(m *gonsq.Message) error {
		mu.Lock()
		defer mu.Unlock()
		got[string(m.Body)] = true
		return nil
	})
	sent := 0
	publish := func(n int) {
		for range n {
			other.post(t, "/pub?topic=orders", fmt.Sprint("order-", sent))
			sent++
		}
	}
	arrived := func() bool {
		mu.Lock()
		defer mu.Unlock()
		return len(got) == sent
	}
	for range 2 {
		publish(20)
		var leader *testNode
		nsqtest.Eventually(t, "somebody to lead", func() bool {
			for _, n := range nodes {
				if n.leadsSome("orders") {
					leader = n
				}
			}
			return leader != nil
		})
		if leader == other {
			break
		}
		ctx, cancel := context.WithTimeout(context.Background(), nsqtest.Patience)
		if err := leader.e.Leave(ctx); err != nil {
			t.Fatal(err)
		}
		cancel()
		publish(20)
		nsqtest.Eventually(t, "all messages to come", arrived)
	}
	if s := consumer.Stats(); s.Connections != 1 {
		t.Errorf("%d connections", s.Connections)
	}
}
