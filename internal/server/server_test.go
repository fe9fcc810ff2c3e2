package server

import (
	"cmp"
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"testing"

	"penstock/internal/meta"
	"penstock/internal/node"
	"penstock/internal/node/errs"
	"penstock/tests/support/nsqtest"
)

// testNode is a server over a real engine in a directory of its own.
type testNode struct {
	*Server
	e    *node.Engine
	base string
}

func startNode(t testing.TB, eo node.Options, o Options) *testNode {
	t.Helper()
	quiet := slog.New(slog.NewTextHandler(io.Discard, nil))
	eo.Logger = quiet
	if eo.Disk == nil {
		eo.DataPath = t.TempDir()
	}
	eo.BufferBytes = cmp.Or(eo.BufferBytes, 16<<20) // the ring touches all of it
	e, err := node.Open(context.Background(), eo)
	if err != nil {
		t.Fatal(err)
	}
	o.Hostname = "testhost"
	for _, address := range []*string{&o.TCPAddress, &o.HTTPAddress, &o.LookupAddress} {
		*address = cmp.Or(*address, "127.0.0.1:0")
	}
	if o.Logger == nil {
		o.Logger = quiet
	}
	s, err := Listen(e, o)
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- s.Serve() }()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), nsqtest.Patience)
		defer cancel()
		if err := s.Shutdown(ctx); err != nil {
			t.Errorf("Shutdown: %v", err)
		}
		if err := <-served; err != nil {
			t.Errorf("Serve: %v", err)
		}
		if err := e.Close(); err != nil && !errors.Is(err, errs.ErrClosed) { // a test may have closed it
			t.Errorf("Close: %v", err)
		}
	})
	return &testNode{Server: s, e: e, base: "http://" + s.HTTPAddr().String()}
}

func (n *testNode) post(t testing.TB, path, body string) {
	t.Helper()
	if code, got := n.do(t, "POST", path, body); code != 200 {
		t.Fatalf("POST %s: %d %s", path, code, got)
	}
}

func (n *testNode) do(t testing.TB, method, path, body string) (int, string) {
	t.Helper()
	reply, got := request(t, method, n.base+path, body)
	return reply.StatusCode, got
}

// request sends a request with headers, given as alternating names and values, and returns the answer and its body.
func request(t testing.TB, method, url, body string, headers ...string) (*http.Response, string) {
	t.Helper()
	r, err := http.NewRequest(method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(headers); i += 2 {
		r.Header.Add(headers[i], headers[i+1])
	}
	reply, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer reply.Body.Close()
	b, err := io.ReadAll(reply.Body)
	if err != nil {
		t.Fatal(err)
	}
	return reply, string(b)
}

// topicNow returns the statistics of the topic, which must exist.
func (n *testNode) topicNow(t testing.TB, name string) node.TopicStats {
	t.Helper()
	s := n.e.Stats(name, "")
	if len(s) != 1 {
		t.Fatalf("topic %s: %d in the statistics", name, len(s))
	}
	return s[0]
}

// dialRaw connects, and sends nothing.
func (n *testNode) dialRaw(t testing.TB) *nsqtest.Client { return n.dialFrom(t, "") }

// dialFrom is dialRaw from an address of this machine; "": the usual one.
func (n *testNode) dialFrom(t testing.TB, ip string) *nsqtest.Client {
	t.Helper()
	return nsqtest.Dial(t, n.TCPAddr(), ip)
}

// dial connects, and says that the protocol is V2.
func (n *testNode) dial(t testing.TB) *nsqtest.Client {
	c := n.dialRaw(t)
	c.Send(nsqtest.Magic)
	return c
}

// tlsOptions returns the TLS options that a server needs.
func tlsOptions(t testing.TB, ca *nsqtest.Authority) Options {
	cert, key := ca.Issue(t, "server")
	return Options{TLS: TLSOptions{CertFile: cert, KeyFile: key}}
}

// leads says whether the node leads a partition of a topic.
func (n *testNode) leads(topic string, partition int) bool {
	snap := n.e.Snapshot()
	if snap == nil {
		return true
	}
	t, self := snap.Names[topic], snap.Nodes[n.e.Node().ID]
	if t == nil || self == nil {
		return false
	}
	p := snap.Partitions.Get(meta.PartitionID{Topic: t.ID, Partition: uint32(partition)})
	return p != nil && p.State.Leader == self.ID && p.State.Boot == self.Boot
}
