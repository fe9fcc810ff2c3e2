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
	"penstock/internal/node/message"
	"penstock/internal/server/native/wire"
	"penstock/netproto"
	"penstock/tests/support/faultaio"
)

// Messages and bytes of credit bound what comes; more than the node allows is cut.
func TestConsumeCredit(t *testing.T) {
	w := open(t, func(o *Options) { o.MaxMessagesInFlight = 4 })
	topic, _ := stock(t, w, 10)
	size := uint32(wire.DeliverySize(&wire.Delivery{Body: []byte("0")}))
	k := w.dial().subscribe(topic, "c", func(m *wire.Subscribe) { m.Messages, m.Bytes = 2, size+1 })
	got := k.expect("0", "1") // the second one exceeds the credit
	k.order(wire.TypeCredit, &wire.Credit{Messages: 1000, Bytes: size - 1})
	k.expectNothing()
	k.order(wire.TypeCredit, &wire.Credit{Messages: 1000, Bytes: 1})
	k.expect("2")
	k.order(wire.TypeCredit, &wire.Credit{Messages: 1000, Bytes: 1 << 31})
	k.expect("3")
	k.expectNothing() // four are in flight
	k.through(got[1])
	last := k.expect("4", "5")[1]
	k.order(wire.TypeCredit, &wire.Credit{Messages: 0})
	k.through(last)
	k.expectNothing()
	for range 5 { // credit that overflows is cut, and ends nothing
		k.order(wire.TypeCredit, &wire.Credit{Messages: 1 << 31, Bytes: 1<<32 - 1})
	}
	k.expect("6", "7", "8", "9")
	u := func() *subscription {
		for _, x := range w.s.all() {
			return x.subscription(k.request)
		}
		return nil
	}()
	u.packer.mu.Lock()
	defer u.packer.mu.Unlock()
	if n := u.packer.credit.left; n > wire.MaxCreditBytes || n < wire.MaxCreditBytes-10*int64(size) {
		t.Errorf("a credit of %d bytes", n)
	}
}

// deafClient is a client that receives nothing until its gate is opened, and for which its system keeps little.
func (w *world) deafClient() *client {
	w.t.Helper()
	c := &client{t: w.t, frames: make(chan frame, 1<<16), gate: make(chan struct{}), ended: make(chan error, 1)}
	nc, err := net.Dial("tcp", w.s.Addr().String())
	if err == nil {
		err = nc.(*net.TCPConn).SetReadBuffer(64 << 10)
	}
	if err == nil {
		o := netproto.Options{Hello: clientHello(), Handler: c, SilenceTimeout: time.Hour}
		c.c, err = netproto.Connect(context.Background(), nc, o)
	}
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { c.c.Abort(nil) })
	return c
}

// A client that does not read holds a bounded part of the node's memory and no more messages than that, and other
// consumers of the channel get the rest. When it reads on, it gets what it was sent, and then more.
func TestConsumerThatDoesNotRead(t *testing.T) {
	w := open(t, func(o *Options) { o.MaxConnOutputBytes, o.MaxOutputBytes = 512<<10, 1<<20 })
	topic, _ := stock(t, w, 0)
	const count = 400
	publish := func() {
		t.Helper()
		for i := range count {
			body := fmt.Sprintf("%08d%s", i, make([]byte, 64<<10))
			if _, err := topic.PublishMessage(t.Context(), node.Outgoing{Body: []byte(body)}); err != nil {
				t.Fatal(err)
			}
		}
	}
	publish()
	deaf := w.deafClient()
	slow := &consuming{client: deaf, request: deaf.sendSubscribe(topic, "c", nil)}
	held := func() int { // by the client that does not read
		for _, c := range channelStats(t, w, "c").Consumers {
			if c.Client == 1 {
				return c.InFlightCount
			}
		}
		return 0
	}
	eventually(t, "the client has what fits", func() bool { return held() > 1 })
	more := &wire.Credit{Messages: 1000}
	credit := netproto.Frame{Type: wire.TypeCredit, Request: slow.request, Head: wire.Append(nil, more)}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go func() { // a client that says nothing for 5 s, either, loses its connection
		for tick := time.NewTicker(time.Second); ctx.Err() == nil; <-tick.C {
			_ = deaf.c.TrySend(&credit)
		}
	}()
	good := w.dial().subscribe(topic, "c", nil)
	for got := 0; ; got++ {
		// The client that does not read may get the last message: its socket's buffers grow.
		eventually(t, "a message comes, or all are somewhere", func() bool {
			return len(good.came)+len(good.frames) > 0 || got > 0 && got+held() == count
		})
		if len(good.came)+len(good.frames) == 0 {
			break
		}
		good.through(good.next())
		good.sync(netproto.StatusOK)
	}
	if n := held(); n > count/2 {
		t.Errorf("%d messages are in flight to a client that does not read", n)
	}
	cancel()
	close(deaf.gate)
	for n := held(); n > 0; n-- {
		slow.through(slow.next())
	}
	good.order(wire.TypeSubscribeEnd, new(wire.Outcome))
	good.ended(netproto.StatusOK)
	publish()
	for range count {
		slow.through(slow.next())
	}
	slow.sync(netproto.StatusOK)
	eventually(t, "room is given back", func() bool { return w.s.output.Used() == 0 })
}

// Many subscriptions that share less room than each of them could use get everything all the same.
func TestConsumersThatShareRoom(t *testing.T) {
	w := open(t, func(o *Options) { o.MaxConnOutputBytes, o.MaxOutputBytes = 300<<10, 300<<10 })
	topic, _ := stock(t, w, 0)
	var all []*consuming
	for i := range 6 {
		all = append(all, w.dial().subscribe(topic, fmt.Sprint("c", i), nil))
	}
	body := strings.Repeat("x", 40<<10)
	for range 50 {
		if _, err := topic.PublishMessage(t.Context(), node.Outgoing{Body: []byte(body)}); err != nil {
			t.Fatal(err)
		}
	}
	for _, k := range all {
		for range 50 {
			k.next()
		}
		k.expectNothing()
	}
}

// A frame is no longer than the client accepts. A single message that is ends the subscription by name.
func TestConsumerOfShortFrames(t *testing.T) {
	w := open(t, nil)
	topic, _ := stock(t, w, 0)
	c, err := w.try(func(o *netproto.Options) { o.Hello.MaxFrameBytes = 64 << 10 })
	if err != nil {
		t.Fatal(err)
	}
	for range 40 {
		if _, err := topic.PublishMessage(t.Context(), node.Outgoing{Body: make([]byte, 10<<10)}); err != nil {
			t.Fatal(err)
		}
	}
	k := c.subscribe(topic, "c", nil)
	for range 40 {
		k.through(k.next())
	}
	k.sync(netproto.StatusOK) // otherwise the subscription may end before the node has read the last FinishThrough
	if _, err := topic.PublishMessage(t.Context(), node.Outgoing{Body: make([]byte, 100<<10)}); err != nil {
		t.Fatal(err)
	}
	k.ended(netproto.StatusTooBig)
	k = w.dial().subscribe(topic, "c", nil)
	if n := len(k.next().Body); n != 100<<10 {
		t.Errorf("a message of %d bytes", n)
	}
}

// Orders that find no room are refused by name, and can be repeated. Credit and the end need none.
func TestConsumeOrdersThatFindNoRoom(t *testing.T) {
	w := openOnDisk(t, func(o *Options) { o.MaxConnInFlightCount = 2 })
	topic, _ := stock(t, w, 10)
	k := w.dial().subscribe(topic, "c", func(m *wire.Subscribe) { m.Messages = 9 })
	got := k.expect(numbers(0, 9)...)
	release := func() {
		w.disk.ClearRules()
		w.disk.ReleaseHeld()
	}
	t.Cleanup(release)
	w.disk.Inject(faultaio.Rule{Kind: faultaio.KindWriteSync, Hold: true, Count: -1})
	k.order(wire.TypeFinish, handles(got[0]))
	eventually(t, "the message is finished", func() bool { return channelStats(t, w, "c").FinishCount == 1 })
	x := w.s.all()[0]
	roomIsBack := func() {
		t.Helper()
		eventually(t, "what has ended gives its room back", func() bool {
			x.mu.Lock()
			defer x.mu.Unlock()
			return x.load.count == 0
		})
	}
	roomIsBack()
	var owed []uint64
	for range 2 { // they wait for the disk
		owed = append(owed, k.send(wire.TypeSync, &wire.Sync{Subscription: k.request}))
	}
	full := func(typ netproto.Type, m wire.Payload, d came) {
		t.Helper()
		k.order(typ, m)
		want := wire.Refusal{Handle: d.handle(), Kind: uint16(typ), Status: netproto.StatusFull}
		if r := k.refusals(); len(r) != 1 || r[0] != want {
			t.Errorf("%+v, want %+v", r, want)
		}
	}
	full(wire.TypeFinish, handles(got[1]), got[1])
	full(wire.TypeTouch, handles(got[1]), got[1])
	full(wire.TypeRequeue, &wire.Requeue{Messages: []wire.Delayed{{Handle: got[2].handle()}}}, got[2])
	full(wire.TypeFinishThrough, &wire.FinishThrough{Number: got[3].number, ID: got[3].ID}, got[3])
	k.sync(netproto.StatusFull)
	k.order(wire.TypeCredit, &wire.Credit{Messages: 1000})
	k.expect("9")
	release()
	for _, request := range owed {
		if f := k.await(func(f frame) bool { return f.Request == request }); f.Status != netproto.StatusOK {
			t.Errorf("a Sync is answered %v", f.Status)
		}
	}
	roomIsBack()
	k.through(got[3])
	k.sync(netproto.StatusOK)
	if st := channelStats(t, w, "c"); st.FinishCount != 4 {
		t.Errorf("%d were finished", st.FinishCount)
	}
}

// The end of a subscription is told after the answers to the Syncs before, while what was in flight goes to others at
// once.
func TestConsumeEndFollowsSyncs(t *testing.T) {
	w := openOnDisk(t, nil)
	topic, _ := stock(t, w, 3)
	k := w.dial().subscribe(topic, "c", func(m *wire.Subscribe) { m.Messages = 3 })
	got := k.expect("0", "1", "2")
	release := func() {
		w.disk.ClearRules()
		w.disk.ReleaseHeld()
	}
	t.Cleanup(release)
	w.disk.Inject(faultaio.Rule{Kind: faultaio.KindWriteSync, Hold: true, Count: -1})
	k.order(wire.TypeFinish, handles(got[0]))
	request := k.send(wire.TypeSync, &wire.Sync{Subscription: k.request})
	k.order(wire.TypeSubscribeEnd, new(wire.Outcome))
	w.dial().subscribe(topic, "c", func(m *wire.Subscribe) { m.Messages = 3 }).expect("1", "2")
	release()
	for _, want := range []netproto.Type{wire.TypeSynced, wire.TypeSubscribeEnd} {
		f := k.await(func(frame) bool { return true })
		if f.Type != want || f.Status != netproto.StatusOK || want == wire.TypeSynced && f.Request != request {
			t.Fatalf("%v with %v, want %v", f.Type, f.Status, want)
		}
	}
}

// Consuming needs the permission to subscribe to the channel, for as long as it lasts.
func TestConsumeNeedsPermission(t *testing.T) {
	grants := map[string]string{
		"shop":  mayPublish,
		"audit": `permissions = ["subscribe"]` + "\n" + `topics = ["orders"]` + "\n" + `channels = ["c"]`,
	}
	authority, file := tokens(t, grants)
	w := open(t, func(o *Options) { o.Auth = authority })
	topic, _ := stock(t, w, 2)
	shop, consumer, idle := w.dial(), w.dial(), w.dial()
	shop.login("shop")
	shop.refusal(shop.sendSubscribe(topic, "c", nil), wire.TypeSubscribed, netproto.StatusUnproven)
	consumer.login("audit")
	consumer.refusal(consumer.sendSubscribe(topic, "other", nil), wire.TypeSubscribed, netproto.StatusUnproven)
	if _, ok := topic.LookupChannel("other"); ok {
		t.Error("the channel was created")
	}
	if r := w.refused(); len(r) != 2 || r[0].What != "native subscribe" || r[0].Names != "topic=orders channel=c" ||
		r[1].Names != "topic=orders channel=other" || r[1].Who != "of audit" {
		t.Errorf("the audit was told %+v", r)
	}
	k := consumer.subscribe(topic, "c", nil)
	k.expect("0", "1")
	idle.login("audit")
	waits := idle.subscribe(topic, "c", func(m *wire.Subscribe) { m.Messages = 0 })
	delete(grants, "audit")
	writeTokens(t, file, grants)
	if err := authority.Reload(); err != nil {
		t.Fatal(err)
	}
	if _, err := topic.PublishMessage(t.Context(), node.Outgoing{Body: []byte("secret")}); err != nil {
		t.Fatal(err)
	}
	k.ended(netproto.StatusUnproven)
	waits.ended(netproto.StatusUnproven)
	if len(k.came)+len(waits.came) > 0 {
		t.Error("a message came after the token was revoked")
	}
}

// A token that has to be looked up again, and still allows the subscription, costs no message.
func TestConsumeWithATokenThatIsAskedForAgain(t *testing.T) {
	grants := map[string]string{"audit": `permissions = ["subscribe"]` + "\n" + `topics = ["orders"]`}
	authority, _ := tokens(t, grants)
	w := open(t, func(o *Options) { o.Auth = authority })
	topic, _ := stock(t, w, 0)
	c := w.dial()
	c.login("audit")
	k := c.subscribe(topic, "c", nil)
	for i := range 5 {
		if err := authority.Reload(); err != nil {
			t.Fatal(err)
		}
		if _, err := topic.PublishMessage(t.Context(), node.Outgoing{Body: fmt.Append(nil, i)}); err != nil {
			t.Fatal(err)
		}
		k.through(k.expect(fmt.Sprint(i))[0])
	}
	k.expectNothing()
}

// A node that stops delivers nothing more, and takes what clients finish until they are gone.
func TestConsumeFromANodeThatStops(t *testing.T) {
	entered, release := make(chan struct{}, 1), make(chan struct{})
	w := open(t, func(o *Options) {
		o.Topic = func(context.Context, string, string) (*node.Topic, bool, error) {
			entered <- struct{}{}
			<-release
			return nil, false, errs.ErrOverloaded
		}
	})
	topic, _ := stock(t, w, 3)
	k := w.dial().subscribe(topic, "c", nil)
	got := k.expect(numbers(0, 3)...)
	k.send(wire.TypeMetadata, &wire.MetadataRequest{Topics: []string{"orders"}, Create: true}) // the node owes its answer
	<-entered
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		w.stop()
	}()
	k.await(func(f frame) bool { return f.Type == wire.TypeGoAway })
	eventually(t, "the end of deliveries", func() bool { return channelStats(t, w, "c").Consumers[0].Stopped })
	if _, err := topic.PublishMessage(t.Context(), node.Outgoing{Body: []byte("late")}); err != nil {
		t.Fatal(err)
	}
	k.through(got[1])
	k.expectNothing()
	k.refusal(k.sendSubscribe(topic, "c", nil), wire.TypeSubscribed, netproto.StatusClosed)
	close(release)
	<-stopped
	if st := channelStats(t, w, "c"); st.FinishCount != 2 || st.Depth != 2 || len(st.Consumers) != 0 {
		t.Errorf("%+v", st)
	}
}

// A subscription ends with its channel, its topic and its engine, and the client is told why.
func TestConsumeEnds(t *testing.T) {
	w := open(t, nil)
	topic, _ := stock(t, w, 1)
	c := w.dial()
	k := c.subscribe(topic, "c", nil)
	d := k.expect("0")[0]
	if err := topic.DeleteChannel(t.Context(), "c"); err != nil {
		t.Fatal(err)
	}
	k.ended(netproto.StatusNotLeader)
	k.through(d) // ignored
	k.sync(netproto.StatusUnknown)
	k = c.subscribe(topic, "d", nil)
	if err := w.e.DeleteTopic(t.Context(), "orders"); err != nil {
		t.Fatal(err)
	}
	k.ended(netproto.StatusNotLeader)
	c.refusal(c.sendSubscribe(topic, "d", nil), wire.TypeSubscribed, netproto.StatusNotLeader)
	// A connection that ends takes its subscriptions with it, and the messages go to others.
	topic, _ = stock(t, w, 5)
	c.subscribe(topic, "c", nil).expect(numbers(0, 5)...)
	c.c.Abort(nil)
	again := w.dial().subscribe(topic, "c", nil).expect(numbers(0, 5)...)
	if again[0].Attempts != 2 {
		t.Errorf("%+v", again[0])
	}
}

// What operators see of a native consumer.
func TestConsumerIsShown(t *testing.T) {
	w := open(t, nil)
	topic, _ := stock(t, w, 0)
	c := w.dial()
	c.login("")
	c.subscribe(topic, "c", func(m *wire.Subscribe) { m.SampleRate = 50 })
	var cons []message.ConsumerStats
	eventually(t, "the consumer is ready", func() bool {
		cons = channelStats(t, w, "c").Consumers
		return len(cons) == 1 && cons[0].ReadyCount == 1000
	})
	l, ok := cons[0].Label.(*Consumer)
	if !ok || l.Client != "test" || l.SampleRate != 50 || l.TLS || l.Who != "" || l.Host() != "127.0.0.1" ||
		l.String() != "test "+l.Address || time.Since(l.Since) > patience {
		t.Errorf("%+v", cons[0].Label)
	}
}
