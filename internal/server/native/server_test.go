package native

import (
	"context"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"penstock/internal/node"
	"penstock/internal/node/errs"
	"penstock/internal/server/native/wire"
	"penstock/netproto"
	"penstock/tests/support/faultaio"
)

// A client hears where its topics are, which are created if it asks for that, and of each change of them.
func TestMetadataIsPushed(t *testing.T) {
	w := open(t, nil)
	c, idle := w.dial(), w.dial()
	m := c.ask(false, "orders", "!", "orders")
	if len(m.Topics) != 2 || m.Topics[0].Status != netproto.StatusRejected ||
		m.Topics[1].Status != netproto.StatusRejected {
		t.Fatalf("topics that do not exist: %+v", m.Topics)
	}
	if _, err := w.e.CreateTopic(t.Context(), "others", 1); err != nil {
		t.Fatal(err)
	}
	topic, err := w.e.CreateTopic(t.Context(), "orders", 3)
	if err != nil {
		t.Fatal(err)
	}
	now := c.metadata(0)
	at := now.Topics[0]
	if now.Revision < m.Revision || at.Status != netproto.StatusOK || at.ID != topic.ID() || len(at.Partitions) != 3 ||
		at.Partitions[2] != (wire.Partition{Leader: 0, Epoch: 1}) || len(now.Nodes) != 1 || now.Nodes[0].Address != "" ||
		now.Nodes[0].Name != w.e.Info().NodeID {
		t.Fatalf("after the topic was created: %+v", now)
	}
	if err := w.e.DeleteTopic(t.Context(), "orders"); err != nil {
		t.Fatal(err)
	}
	if gone := c.metadata(0); gone.Topics[0].Status != netproto.StatusRejected || gone.Revision < now.Revision {
		t.Fatalf("after it was deleted: %+v", gone)
	}
	made := c.ask(true, "orders", "!")
	if made.Topics[0].Status != netproto.StatusOK || made.Topics[0].ID == topic.ID() ||
		made.Topics[1].Status != netproto.StatusRejected {
		t.Fatalf("created on demand: %+v", made.Topics)
	}
	if len(idle.frames) != 0 {
		t.Errorf("a client that asked for nothing got %d frames", len(idle.frames))
	}
}

// A node that does not create topics by itself does not do so for native clients either.
func TestMetadataCreatesAsTheNodeDoes(t *testing.T) {
	w := open(t, func(o *Options) {
		o.Topic = func(context.Context, string, string) (*node.Topic, bool, error) {
			return nil, false, errs.ErrTooManyTopics
		}
	})
	if m := w.dial().ask(true, "orders"); m.Topics[0].Status != netproto.StatusFull {
		t.Errorf("%+v", m.Topics)
	}
}

// Where the node asks who its clients are, they hear and do only what their token allows.
func TestAuth(t *testing.T) {
	grants := map[string]string{"shop": mayPublish, "watcher": mayView}
	authority, file := tokens(t, grants)
	w := open(t, func(o *Options) { o.Auth = authority })
	if _, err := w.e.CreateTopic(t.Context(), "secret", 1); err != nil {
		t.Fatal(err)
	}

	early := w.dial()
	id := early.send(wire.TypeMetadata, &wire.MetadataRequest{Topics: []string{"orders"}})
	early.refusal(id, wire.TypeMetadataReply, netproto.StatusUnproven)
	id = early.send(wire.TypeAuth, &wire.Auth{Token: "wrong"})
	early.refusal(id, wire.TypeAuthAck, netproto.StatusUnproven)
	mustBe(t, early.end(), netproto.ErrGoodbye)
	if got := w.refused(); len(got) != 2 || got[0].What != "native metadata" || got[1].What != "native auth" ||
		!strings.HasPrefix(got[0].From, "127.0.0.1:") || strings.Contains(fmt.Sprint(got), "wrong") {
		t.Errorf("the audit was told %+v", got)
	}

	watcher := w.dial()
	watcher.login("watcher")
	if m := watcher.ask(true, "orders"); m.Topics[0].Status != netproto.StatusRejected {
		t.Fatalf("a client that may not publish created a topic: %+v", m.Topics)
	}
	shop := w.dial()
	shop.login("shop")
	m := shop.ask(true, "orders", "secret")
	if m.Topics[0].Status != netproto.StatusOK || m.Topics[1].Status != netproto.StatusUnproven ||
		len(m.Topics[1].Partitions) != 0 {
		t.Fatalf("what the shop sees: %+v", m.Topics)
	}
	if m = watcher.metadata(0); m.Topics[0].Status != netproto.StatusOK {
		t.Fatalf("what the watcher sees: %+v", m.Topics)
	}

	delete(grants, "watcher")
	writeTokens(t, file, grants)
	if err := authority.Reload(); err != nil {
		t.Fatal(err)
	}
	shop.ask(false, "orders")
	id = watcher.send(wire.TypeMetadata, &wire.MetadataRequest{})
	watcher.refusal(id, wire.TypeMetadataReply, netproto.StatusUnproven)
	watcher.login("shop") // a new token on a connection that lasts
	if m = watcher.ask(false, "orders"); m.Topics[0].Status != netproto.StatusOK {
		t.Errorf("with a new token: %+v", m.Topics)
	}
	if n := w.s.Meter().AuthFailures; n < 4 {
		t.Errorf("%d failures were counted", n)
	}
}

// Without authentication a token is ignored, and none is needed.
func TestNoAuth(t *testing.T) {
	w := open(t, nil)
	c := w.dial()
	c.ask(true, "a")
	c.login("anything")
	c.ask(true, "b")
}

// Whoever opens connections all the time pays for it: a client of another address has all the time that it needs.
func TestStrangersOfAnotherAddressStay(t *testing.T) {
	authority, _ := tokens(t, map[string]string{"shop": mayPublish})
	w := open(t, func(o *Options) { o.Auth, o.MaxStrangers, o.StrangerTime = authority, 4, time.Hour })
	for range 4 {
		w.dial()
	}
	honest, err := w.tryFrom("127.0.0.2", nil)
	if err != nil {
		t.Fatal(err)
	}
	for range 20 {
		w.dial()
	}
	eventually(t, "the others had to go", func() bool { return w.s.Meter().TurnedAway[awayCrowded] == 21 })
	honest.login("shop")
	honest.ask(true, "orders")
}

// A stranger costs little: its frames are bounded, its time is, and the number of strangers is.
func TestStrangers(t *testing.T) {
	authority, _ := tokens(t, map[string]string{"shop": mayPublish})
	w := open(t, func(o *Options) {
		o.Auth, o.MaxStrangers, o.MaxStrangerBytes, o.StrangerTime = authority, 3, 4<<10, time.Hour
	})
	one := w.dial()
	many := make([]string, 100)
	for i := range many {
		many[i] = fmt.Sprintf("topic-%060d", i)
	}
	one.send(wire.TypeMetadata, &wire.MetadataRequest{Topics: many})
	var bye *netproto.GoodbyeError
	if err := one.end(); !asGoodbye(err, &bye) || bye.Status != netproto.StatusTooBig {
		t.Errorf("after 6 KB: %v", err)
	}

	known := w.dial()
	known.login("shop")
	known.ask(false, many...) // no limit any more
	var crowd []*client
	for i := range 4 {
		crowd = append(crowd, w.dial())
		eventually(t, "the server to know it", func() bool { return w.s.Meter().Strangers == min(i+1, 3) })
	}
	crowd[0].refusal(0, netproto.TypeError, netproto.StatusUnproven)
	crowd[0].end()
	for _, c := range crowd[1:] {
		c.login("shop")
	}
	known.ask(false, "orders")
	eventually(t, "the end of the others", func() bool { return w.s.Meter().Connections == 4 })
	if m := w.s.Meter(); m.Strangers != 0 || m.TurnedAway[awayCrowded] != 1 {
		t.Errorf("%+v", m)
	}

	hurried := open(t, func(o *Options) { o.Auth, o.StrangerTime = authority, 50*time.Millisecond })
	slow := hurried.dial()
	slow.refusal(0, netproto.TypeError, netproto.StatusUnproven)
	slow.end()
	if m := hurried.s.Meter(); m.TurnedAway[awayTime] != 1 {
		t.Errorf("%+v", m)
	}
}

func asGoodbye(err error, to **netproto.GoodbyeError) bool {
	bye, ok := err.(*netproto.GoodbyeError)
	*to = bye
	return ok
}

// Whatever one client sends, others are served; what this version does not know is answered, what breaks the protocol
// ends the connection.
func TestBadInput(t *testing.T) {
	w := open(t, nil)
	good := w.dial()
	later := w.dial()
	id := later.send(wire.TypeGoAway+50, &wire.Auth{})
	later.refusal(id, netproto.TypeError, netproto.StatusRejected)
	later.ask(true, "orders")

	for name, f := range map[string]*netproto.Frame{
		"an answer":         {Type: wire.TypeAuthAck, Request: 1, Head: wire.Append(nil, new(wire.Outcome))},
		"a node's frame":    {Type: netproto.TypeForwardPut, Request: 1},
		"a status":          {Type: wire.TypeMetadata, Status: netproto.StatusFull, Head: make([]byte, 16)},
		"an empty payload":  {Type: wire.TypeMetadata, Request: 1},
		"a false count":     {Type: wire.TypeMetadata, Request: 1, Head: []byte{0, 0xff, 3, 1}},
		"unchecked bytes":   {Type: wire.TypeMetadata, Flags: netproto.FlagSelfChecked, Body: [][]byte{make([]byte, 16)}},
		"a token of 60 KiB": {Type: wire.TypeAuth, Request: 1, Head: append([]byte{0x60, 0xea}, make([]byte, 60000)...)},
	} {
		t.Run(name, func(t *testing.T) {
			c := w.dial()
			if err := c.c.TrySend(f); err != nil {
				t.Fatal(err)
			}
			var bye *netproto.GoodbyeError
			if err := c.end(); !asGoodbye(err, &bye) || bye.Status != netproto.StatusRejected {
				t.Errorf("it ended with %v", err)
			}
			good.ask(false, "orders")
		})
	}
	_, err := w.try(func(o *netproto.Options) {
		o.Hello = netproto.Hello{
			Role: netproto.RoleNode, NodeID: "n", Cluster: w.s.hello.Cluster, Store: netproto.ID{1}, Boot: netproto.ID{2},
			MinVersion: 1, MaxVersion: 1,
		}
	})
	mustBe(t, err, netproto.ErrRefused)
	eventually(t, "it is counted", func() bool { return w.s.Meter().TurnedAway[awayHandshake] == 1 })
	if m := w.s.Meter(); m.Requests[Answered{"other", "Rejected"}] == 0 {
		t.Errorf("%+v", m)
	}
}

// Requests that the node has no room for are refused and leave the connection as it is. The reader of the connection
// does not wait for requests that are being served.
func TestFullInbox(t *testing.T) {
	release := make(chan struct{})
	w := open(t, func(o *Options) {
		o.MaxConnInFlightCount = 4
		o.Topic = func(ctx context.Context, _, name string) (*node.Topic, bool, error) {
			<-release
			return nil, false, errs.ErrOverloaded
		}
	})
	c := w.dial()
	for range 6 {
		c.send(wire.TypeMetadata, &wire.MetadataRequest{Topics: []string{"orders"}, Create: true})
	}
	for id := range uint64(2) {
		c.refusal(5+id, wire.TypeMetadataReply, netproto.StatusFull)
	}
	if m := w.s.Meter(); m.InFlight == 0 {
		t.Errorf("%+v", m)
	}
	close(release)
	for id := range uint64(4) {
		c.metadata(1 + id)
	}
	c.ask(false, "orders")

	tight := open(t, func(o *Options) { o.MaxInFlightBytes = 16 })
	c = tight.dial()
	id := c.send(wire.TypeMetadata, &wire.MetadataRequest{})
	c.refusal(id, wire.TypeMetadataReply, netproto.StatusFull)
}

// A client that does not read what it asked for loses its own connection, and others are served.
func TestClientThatNeverReads(t *testing.T) {
	w := open(t, nil)
	var names []string // none of them exists; each answer has 270 KB
	for i := range 1000 {
		names = append(names, fmt.Sprintf("%0250d", i))
	}
	good := w.dial()
	deaf := &client{t: t, frames: make(chan frame, 1<<16), gate: make(chan struct{}), ended: make(chan error, 1)}
	nc, err := net.Dial("tcp", w.s.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	o := netproto.Options{Hello: clientHello(), Handler: deaf, SilenceTimeout: time.Hour}
	if deaf.c, err = netproto.Connect(t.Context(), nc, o); err != nil {
		t.Fatal(err)
	}
	request := wire.Append(nil, &wire.MetadataRequest{Topics: names})
	for n := uint64(1); ; n++ {
		f := &netproto.Frame{Type: wire.TypeMetadata, Request: n, Head: request}
		if deaf.c.Send(t.Context(), f) != nil {
			break
		}
		if n%50 == 0 {
			good.ask(false, "orders")
			if w.s.Meter().Connections == 1 {
				break
			}
		}
	}
	eventually(t, "the end of the connection that does not read", func() bool { return w.s.Meter().Connections == 1 })
	close(deaf.gate)
	good.ask(false, "orders")
}

// A node that stops says so, answers what it has taken, and refuses the rest.
func TestShutdown(t *testing.T) {
	entered, release := make(chan struct{}, 1), make(chan struct{})
	w := open(t, func(o *Options) {
		o.Topic = func(context.Context, string, string) (*node.Topic, bool, error) {
			entered <- struct{}{}
			<-release
			return nil, false, errs.ErrOverloaded
		}
	})
	c := w.dial()
	owed := c.send(wire.TypeMetadata, &wire.MetadataRequest{Topics: []string{"orders"}, Create: true})
	<-entered
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		w.stop()
	}()
	c.refusal(0, wire.TypeGoAway, netproto.StatusClosed)
	late := c.send(wire.TypeMetadata, &wire.MetadataRequest{})
	c.refusal(late, wire.TypeMetadataReply, netproto.StatusClosed)
	close(release)
	c.metadata(owed)
	mustBe(t, c.end(), netproto.ErrGoodbye)
	<-stopped
	if _, err := net.Dial("tcp", w.s.Addr().String()); err == nil {
		t.Error("the port is still open")
	}
}

// Shutdown returned while batches of clients that had left were still on their way through the engine.
func TestShutdownWaitsForBatchesOfClientsThatLeft(t *testing.T) {
	w := openOnDisk(t, nil)
	c := w.dial()
	topic := c.ask(true, "orders").Topics[0].ID
	p := c.openProducer(topic, 0, "")
	t.Cleanup(func() { // before the server is stopped
		w.disk.ClearRules()
		w.disk.ReleaseHeld()
	})
	direct, err := w.e.Topic(t.Context(), "orders")
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "all before it is over", func() bool { return w.s.Meter().InFlight == 0 })
	w.disk.Inject(faultaio.Rule{Kind: faultaio.KindWriteSync, Name: "clog/*", Hold: true, Count: -1})
	put := make(chan error, 1)
	go func() { // the reader of the client's connection must not be the one who writes
		_, err := direct.PublishMessage(t.Context(), node.Outgoing{Body: []byte("x")})
		put <- err
	}()
	eventually(t, "the write hangs", func() bool { return w.disk.Blocked() > 0 })
	c.publish(topic, 0, seal(t, p, 0, 1))
	eventually(t, "the batch", func() bool { return w.s.Meter().InFlight > 0 })
	c.c.Close()
	eventually(t, "the client is gone", func() bool { return w.s.Meter().Connections == 0 })
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		w.stop()
	}()
	select {
	case <-stopped:
		t.Error("Shutdown did not wait")
	case <-time.After(10 * partingCheck):
	}
	w.disk.ClearRules()
	w.disk.ReleaseHeld()
	<-stopped
	if err := <-put; err != nil {
		t.Error(err)
	}
	if n := w.e.Stats("orders", "")[0].MessageCount; n != 2 {
		t.Errorf("%d messages are stored", n)
	}
}

// A Shutdown whose time is over cuts clients off, and a Server that never served closes its listener.
func TestShutdownInAHurry(t *testing.T) {
	release := make(chan struct{})
	w := open(t, func(o *Options) {
		o.Topic = func(ctx context.Context, _, _ string) (*node.Topic, bool, error) {
			<-ctx.Done()
			<-release
			return nil, false, ctx.Err()
		}
	})
	c := w.dial()
	c.send(wire.TypeMetadata, &wire.MetadataRequest{Topics: []string{"orders"}, Create: true})
	eventually(t, "the request", func() bool { return w.s.Meter().InFlight > 0 })
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	time.AfterFunc(50*time.Millisecond, func() { close(release) })
	mustBe(t, w.s.Shutdown(ctx), context.Canceled)
	c.end()

	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s, err := Listen(w.e, Options{Listener: ln, Logger: quiet})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Shutdown(t.Context()); err != nil {
		t.Error(err)
	}
	if _, err := net.Dial("tcp", ln.Addr().String()); err == nil {
		t.Error("the port is still open")
	}
}

func TestOptions(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	w := open(t, nil)
	for name, o := range map[string]Options{
		"no listener":      {},
		"a negative limit": {Listener: ln, MaxConnInFlightBytes: -1},
	} {
		if _, err := Listen(w.e, o); err == nil {
			t.Errorf("%s is taken", name)
		}
	}
}
