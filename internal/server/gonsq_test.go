package server

import (
	"fmt"
	"io"
	"log"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	gonsq "github.com/nsqio/go-nsq"

	"penstock/internal/node"
	"penstock/tests/support/authtest"
	"penstock/tests/support/nsqtest"
)

// The stock Go client publishes with each of its methods and consumes everything, with requeues and a deferred message.
func TestGoNSQRoundTrip(t *testing.T) {
	roundTrip(t, startNode(t, node.Options{}, Options{}), gonsq.NewConfig)
}

// B98. The same over TLS with a client certificate, with each compression, and with AUTH.
func TestGoNSQWrapped(t *testing.T) {
	t.Parallel()
	ca := nsqtest.NewAuthority(t)
	name := filepath.Join(t.TempDir(), "tokens.toml")
	authtest.Write(t, name,
		authtest.Token("all", "a token", `permissions = ["publish", "subscribe"]`+"\n"+`topics = ["*"]`))
	for _, x := range []struct {
		tls             bool
		snappy, deflate bool
	}{{true, false, false}, {true, true, false}, {true, false, true}, {false, true, false}, {false, false, true}} {
		t.Run(fmt.Sprintf("%+v", x), func(t *testing.T) {
			o := tlsOptions(t, ca)
			o.Auth.File = name
			if x.tls {
				o.TLS.ClientAuth, o.TLS.RootCAFile = clientAuthVerify, ca.File("ca.pem")
			}
			roundTrip(t, startNode(t, node.Options{}, o), func() *gonsq.Config {
				cfg := gonsq.NewConfig()
				cfg.TlsV1, cfg.Snappy, cfg.Deflate, cfg.AuthSecret = x.tls, x.snappy, x.deflate, "a token"
				if x.tls {
					cfg.TlsConfig = ca.Client(t, "go-nsq")
				}
				return cfg
			})
		})
	}
}

// roundTrip publishes and consumes with clients that newConfig configures.
func roundTrip(t *testing.T, n *testNode, newConfig func() *gonsq.Config) {
	t.Helper()
	addr := n.TCPAddr().String()
	silent := log.New(io.Discard, "", 0)

	cfg := newConfig()
	cfg.MaxInFlight = 200
	consumer, err := gonsq.NewConsumer("orders", "billing", cfg)
	if err != nil {
		t.Fatal(err)
	}
	consumer.SetLogger(silent, gonsq.LogLevelError)
	var mu sync.Mutex
	seen := map[string]int{}
	done := make(chan struct{})
	const count = 2001
	consumer.AddConcurrentHandlers(gonsq.HandlerFunc(func(m *gonsq.Message) error {
		if strings.HasSuffix(string(m.Body), "7") && m.Attempts == 1 {
			m.RequeueWithoutBackoff(0)
			return nil
		}
		mu.Lock()
		defer mu.Unlock()
		if seen[string(m.Body)]++; len(seen) == count {
			close(done)
		}
		return nil
	}), 4)
	if err := consumer.ConnectToNSQD(addr); err != nil {
		t.Fatal(err)
	}

	producer := publishWithGoNSQ(t, addr, newConfig(), silent)
	<-done
	producer.Stop()
	consumer.Stop()
	<-consumer.StopChan
	for body, times := range seen {
		if times != 1 {
			t.Errorf("%s came %d times", body, times)
		}
	}
	nsqtest.Eventually(t, "every message to be confirmed", func() bool {
		ch := n.topicNow(t, "orders").Channels[0]
		return ch.Depth == 0 && ch.InFlightCount == 0 && ch.DeferredCount == 0
	})
	if ch := n.topicNow(t, "orders").Channels[0]; ch.RequeueCount != 200 {
		t.Errorf("%d requeues, want 200", ch.RequeueCount)
	}
}

// publishWithGoNSQ publishes 2001 messages and returns when all of them are answered.
func publishWithGoNSQ(t *testing.T, addr string, cfg *gonsq.Config, silent *log.Logger) *gonsq.Producer {
	t.Helper()
	producer, err := gonsq.NewProducer(addr, cfg)
	if err != nil {
		t.Fatal(err)
	}
	producer.SetLogger(silent, gonsq.LogLevelError)
	if err := producer.Ping(); err != nil {
		t.Fatal(err)
	}
	acks := make(chan *gonsq.ProducerTransaction, 1000)
	for i := range 1000 {
		if err := producer.PublishAsync("orders", fmt.Appendf(nil, "async %d", i), acks); err != nil {
			t.Fatal(err)
		}
	}
	var batch [][]byte
	for i := range 1000 {
		batch = append(batch, fmt.Appendf(nil, "batch %d", i))
	}
	if err := producer.MultiPublish("orders", batch); err != nil {
		t.Fatal(err)
	}
	if err := producer.DeferredPublish("orders", 20_000_000, []byte("deferred")); err != nil {
		t.Fatal(err)
	}
	for range 1000 {
		if a := <-acks; a.Error != nil {
			t.Fatal(a.Error)
		}
	}
	return producer
}
