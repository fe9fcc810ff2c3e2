package native

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"

	"penstock/internal/node"
	"penstock/internal/server/native/wire"
	"penstock/netproto"
)

// createWorld is a node whose store answers nothing about new topics but first until release is called.
func createWorld(t *testing.T, first string) (w *world, entered chan string, release func()) {
	t.Helper()
	entered = make(chan string, 10)
	answered := make(chan struct{})
	release = sync.OnceFunc(func() { close(answered) })
	w = open(t, func(o *Options) {
		o.Topic = func(ctx context.Context, _, name string) (*node.Topic, bool, error) {
			if name != first {
				entered <- name
				<-answered
			}
			topic, err := w.e.Topic(ctx, name)
			return topic, true, err
		}
	})
	t.Cleanup(release) // before the server is stopped
	return w, entered, release
}

// While topics are created, a connection is served, whatever else it asks for, and hears of topics as before. The last
// list of topics counts, in the order in which the client has sent them.
func TestCreationHoldsUpNobody(t *testing.T) {
	w, entered, release := createWorld(t, "orders")
	c := w.dial()
	topic := c.ask(true, "orders").Topics[0].ID
	p := c.openProducer(topic, 0, "")
	slow := c.send(wire.TypeMetadata, &wire.MetadataRequest{Topics: []string{"slow", "slow"}, Create: true})
	next := c.send(wire.TypeMetadata, &wire.MetadataRequest{Topics: []string{"next"}, Create: true})
	<-entered
	c.produced(c.publish(topic, 0, seal(t, p, 0, 1)))
	c.openProducer(topic, 0, "shop")
	if m := c.ask(false, "orders", "slow"); m.Topics[0].Status != netproto.StatusOK ||
		m.Topics[1].Status != netproto.StatusRejected {
		t.Errorf("while a topic is created: %+v", m.Topics)
	}
	if len(entered) > 0 {
		t.Error("two requests of a connection create topics at a time")
	}
	release()
	for _, want := range []struct {
		request uint64
		name    string
	}{{slow, "slow"}, {next, "next"}} {
		m := c.metadata(want.request)
		if len(m.Topics) != 1 || m.Topics[0].Name != want.name || m.Topics[0].Status != netproto.StatusOK {
			t.Errorf("%+v, want %s", m.Topics, want.name)
		}
	}
	eventually(t, "the limits are free", func() bool { return w.s.inFlight.Used() == 0 })
	if x := w.s.all()[0]; len(x.topics) != 2 {
		t.Errorf("the client hears of %v", x.topics)
	}
}

// A connection that ends while topics are created for it leaves nothing.
func TestCreationOutlivesItsConnection(t *testing.T) {
	w, entered, release := createWorld(t, "")
	c := w.dial()
	for _, name := range []string{"one", "two"} {
		c.send(wire.TypeMetadata, &wire.MetadataRequest{Topics: []string{name}, Create: true})
	}
	<-entered
	c.c.Abort(nil)
	eventually(t, "the end of the connection", func() bool { return w.s.Meter().Connections == 0 })
	if w.s.inFlight.Used() == 0 {
		t.Error("Shutdown would not wait for the topic that is created")
	}
	release()
	eventually(t, "nothing is left", func() bool { return w.s.inFlight.Used() == 0 })
	if _, ok := w.e.Catalog().LookupTopic("two"); ok {
		t.Error("a topic was created for a client that had left")
	}
}

// What does not fit into one frame about topics comes in several, the answer last.
func TestMetadataInPages(t *testing.T) {
	w := open(t, func(o *Options) { o.pageBytes = 100 })
	c := w.dial()
	var names []string
	for i := range 20 {
		names = append(names, fmt.Sprint("topic", i))
	}
	expect := func(request uint64) {
		t.Helper()
		var got []string
		last := uint64(0)
		for len(got) < len(names) {
			f := c.receive()
			var m wire.Metadata
			if err := wire.Decode(f.payload, &m); err != nil || len(f.payload) > 200 || len(m.Topics) == 0 || len(m.Topics) > 3 {
				t.Fatalf("%d topics in %d bytes: %v", len(m.Topics), len(f.payload), err)
			}
			for _, topic := range m.Topics {
				if topic.Status == netproto.StatusOK && len(topic.Partitions) == 1 {
					got = append(got, topic.Name)
				}
			}
			if last = f.Request; last != 0 { // the answer is the last one
				break
			}
		}
		if !slices.Equal(got, names) || last != request {
			t.Fatalf("%q came, and the last answers %d, not %d", got, last, request)
		}
	}
	create := &wire.MetadataRequest{Topics: names, Create: true}
	expect(c.send(wire.TypeMetadata, create))
	expect(c.send(wire.TypeMetadata, &wire.MetadataRequest{Topics: names}))
}
