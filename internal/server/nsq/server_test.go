package nsq

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"sync/atomic"
	"testing"

	"penstock/internal/descriptors"
	"penstock/internal/netio"
	"penstock/internal/node"
	"penstock/internal/node/errs"
	"penstock/internal/server/audit"
	"penstock/internal/server/publish"
	"penstock/internal/shares"
	"penstock/internal/sparing"
	"penstock/internal/strangers"
	"penstock/tests/support/nsqtest"
)

// testNode is a server of NSQ's clients, and nothing else, over a real engine in a directory of its own.
type testNode struct {
	*Server
	e *node.Engine
}

// startNode starts a node without certificates; with adds to the options.
func startNode(t testing.TB, eo node.Options, set Settings, with ...func(*Options)) *testNode {
	t.Helper()
	quiet := slog.New(slog.NewTextHandler(io.Discard, nil))
	eo.Logger = quiet
	if eo.Disk == nil {
		eo.DataPath = t.TempDir()
	}
	if eo.BufferBytes == 0 {
		eo.BufferBytes = 16 << 20 // the ring touches all of it
	}
	e, err := node.Open(context.Background(), eo)
	if err != nil {
		t.Fatal(err)
	}
	if err := set.SetDefaults(); err != nil {
		t.Fatal(err)
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	flusher, err := netio.NewFlusher(true)
	if err != nil {
		t.Log("each answer is written with a system call of its own:", err)
	}
	log := sparing.New(quiet)
	now := new(atomic.Pointer[Settings])
	now.Store(&set)
	o := Options{
		Settings: now, Listener: ln.(*net.TCPListener), Version: "test", Answers: flusher,
		Topic: func(ctx context.Context, name string, maker func() (string, error)) (*node.Topic, bool, error) {
			_, had := e.Catalog().LookupTopic(name)
			topic, err := e.Topic(ctx, name)
			return topic, !had && err == nil, err
		},
		Known:     shares.Percent(int64(descriptors.ForClients(set.MaxConnections)), e.Catalog().TokenShare()),
		Received:  shares.New(&shares.LargeInput, set.MaxLargeInputBytes, set.LargestCommand()),
		Strangers: strangers.New(set.MaxStrangers), Publishes: new(publish.Counts),
		Audit: audit.New(log, 1000), Log: log, Logger: quiet,
	}
	for _, f := range with {
		f(&o)
	}
	e.HoldAnswers(flusher)
	s := Listen(e, o)
	served := make(chan error, 1)
	go func() { served <- s.Serve() }()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), nsqtest.Patience)
		defer cancel()
		s.Shutdown(ctx)
		if err := ctx.Err(); err != nil {
			t.Errorf("Shutdown: %v", err)
		}
		if err := <-served; err != nil {
			t.Errorf("Serve: %v", err)
		}
		e.HoldAnswers(nil)
		flusher.Close()
		o.Audit.Close(ctx)
		log.Close()
		if err := e.Close(); err != nil && !errors.Is(err, errs.ErrClosed) {
			t.Errorf("Close: %v", err)
		}
	})
	return &testNode{Server: s, e: e}
}

// dialRaw connects, and sends nothing.
func (n *testNode) dialRaw(t testing.TB) *nsqtest.Client {
	t.Helper()
	return nsqtest.Dial(t, n.Addr(), "")
}

// dial connects, and says that the protocol is V2.
func (n *testNode) dial(t testing.TB) *nsqtest.Client {
	t.Helper()
	c := n.dialRaw(t)
	c.Send(magic)
	return c
}

// publish publishes each body to the topic.
func (n *testNode) publish(t testing.TB, topic string, bodies ...string) {
	t.Helper()
	to, err := n.e.Topic(context.Background(), topic)
	if err != nil {
		t.Fatal(err)
	}
	var list [][]byte
	for _, body := range bodies {
		list = append(list, []byte(body))
	}
	if _, err := to.PublishBatch(context.Background(), list); err != nil {
		t.Fatal(err)
	}
}

// makeChannel makes the topic and the channel.
func (n *testNode) makeChannel(t testing.TB, topic, channel string) {
	t.Helper()
	of, err := n.e.Topic(context.Background(), topic)
	if err == nil {
		_, err = of.CreateChannel(context.Background(), channel)
	}
	if err != nil {
		t.Fatal(err)
	}
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
