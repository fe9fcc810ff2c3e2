package server

import (
	"context"
	"crypto/tls"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"penstock/internal/node"
	"penstock/internal/server/auth"
	nativewire "penstock/internal/server/native/wire"
	"penstock/netproto"
	"penstock/tests/support/authtest"
	"penstock/tests/support/nsqtest"
)

// nativeFrames is the Handler of a native client.
type nativeFrames chan netproto.Received

func (h nativeFrames) Frames(_ *netproto.Conn, frames []netproto.Received) error {
	for _, f := range frames {
		f.Payload = append([]byte(nil), f.Payload...)
		h <- f
	}
	return nil
}

func (h nativeFrames) Closed(*netproto.Conn, error) {}

// next returns the next frame.
func (h nativeFrames) next(t *testing.T) netproto.Received {
	t.Helper()
	select {
	case f := <-h:
		return f
	case <-time.After(nsqtest.Patience):
		t.Fatal("the node does not answer")
	}
	return netproto.Received{}
}

// dialNative connects a native client to the node; cfg nil: without TLS.
func (n *testNode) dialNative(t *testing.T, cfg *tls.Config) (*netproto.Conn, nativeFrames, error) {
	t.Helper()
	nc, err := net.Dial("tcp", n.NativeAddr().String())
	if err != nil {
		t.Fatal(err)
	}
	if cfg != nil {
		nc = tls.Client(nc, cfg)
	}
	h := make(nativeFrames, 64)
	c, err := netproto.Connect(context.Background(), nc, netproto.Options{
		Hello: netproto.Hello{Role: netproto.RoleClient, MinVersion: 1, MaxVersion: 1}, Handler: h,
	})
	if err == nil {
		t.Cleanup(func() { c.Abort(nil) })
	}
	return c, h, err
}

// Native clients use the certificates, the tokens, the audit and the metrics of the node.
func TestNativeClientsOfANode(t *testing.T) {
	ca := nsqtest.NewAuthority(t)
	o := tlsOptions(t, ca)
	name := filepath.Join(t.TempDir(), "tokens.toml")
	authtest.Write(t, name, authtest.Token("shop", "shop-token", `permissions = ["publish"]`+"\n"+`topics = ["orders"]`))
	o.Auth, o.NativeAddress = auth.Options{File: name}, "127.0.0.1:0"
	n := startNode(t, node.Options{}, o)

	if _, _, err := n.dialNative(t, nil); err == nil {
		t.Error("a client without TLS is served")
	}
	c, frames, err := n.dialNative(t, ca.Client(t, ""))
	if err != nil {
		t.Fatal(err)
	}
	send := func(typ netproto.Type, payload []byte) netproto.Status {
		t.Helper()
		if err := c.TrySend(&netproto.Frame{Type: typ, Request: 1, Head: payload}); err != nil {
			t.Fatal(err)
		}
		return (<-frames).Status
	}
	ask := nativewire.Append(nil, &nativewire.MetadataRequest{Topics: []string{"orders"}, Create: true})
	if s := send(nativewire.TypeMetadata, ask); s != netproto.StatusUnproven {
		t.Errorf("before Auth: %v", s)
	}
	token := nativewire.Append(nil, &nativewire.Auth{Token: "shop-token"})
	if s := send(nativewire.TypeAuth, token); s != netproto.StatusOK {
		t.Errorf("Auth: %v", s)
	}
	if s := send(nativewire.TypeMetadata, ask); s != netproto.StatusOK {
		t.Errorf("after Auth: %v", s)
	}
	if _, ok := n.e.Catalog().LookupTopic("orders"); !ok {
		t.Error("the topic was not created")
	}
	list := n.audit.List().Entries
	if len(list) != 2 || list[0].What != "native metadata" ||
		list[1].What+list[1].Who+list[1].Names != "native createshoptopic=orders" || list[1].From == "" {
		t.Errorf("the audit has %+v", list)
	}
	m := n.meter()
	if m.Connections["native"] != 1 || m.AuthFailures != 1 || m.Native.SentBytes == 0 || m.Native.ReceivedBytes == 0 {
		t.Errorf("%+v", m)
	}
	_, page := request(t, "GET", n.base+"/metrics", "", "Authorization", "Bearer shop-token")
	if !strings.Contains(page, `penstock_native_requests_total{request="metadata",status="Unproven"} 1`) {
		t.Errorf("/metrics has no count of the refusal:\n%s", page)
	}
}

// /stats and the lists of a channel show a native consumer as they show one of NSQ.
func TestNativeConsumerInStats(t *testing.T) {
	n := startNode(t, node.Options{}, Options{NativeAddress: "127.0.0.1:0"})
	topic, err := n.e.Topic(t.Context(), "orders")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := topic.Channel(t.Context(), "c"); err != nil {
		t.Fatal(err)
	}
	if _, err := topic.PublishMessage(t.Context(), node.Outgoing{Body: []byte("one")}); err != nil {
		t.Fatal(err)
	}
	c, frames, err := n.dialNative(t, nil)
	if err != nil {
		t.Fatal(err)
	}
	auth := nativewire.Append(nil, &nativewire.Auth{Client: "reporter 2.1"})
	if err := c.TrySend(&netproto.Frame{Type: nativewire.TypeAuth, Request: 1, Head: auth}); err != nil {
		t.Fatal(err)
	}
	<-frames
	m := nativewire.Subscribe{
		Topic: topic.ID(), Channel: "c", From: nativewire.FromDefault, Partition: nativewire.NoPartition,
		Messages: 7, Bytes: 1 << 20,
	}
	err = c.TrySend(&netproto.Frame{Type: nativewire.TypeSubscribe, Request: 2, Head: nativewire.Append(nil, &m)})
	if err != nil {
		t.Fatal(err)
	}
	for (<-frames).Type != nativewire.TypeDeliver {
	}
	_, page := n.do(t, "GET", "/stats?format=json&topic=orders&channel=c", "")
	for _, want := range []string{
		`"client_id":"reporter 2.1"`, `"hostname":"127.0.0.1"`, `"version":"native"`, `"ready_count":7`,
		`"in_flight_count":1`, `"user_agent":"reporter 2.1"`, `"client_count":1`,
	} {
		if !strings.Contains(page, want) {
			t.Errorf("/stats has no %s:\n%s", want, page)
		}
	}
}

// A channel that a native client creates is an entry of the audit, and one that exists is none.
func TestNativeAuditOfChannels(t *testing.T) {
	n := startNode(t, node.Options{}, Options{NativeAddress: "127.0.0.1:0"})
	topic, err := n.e.Topic(t.Context(), "orders")
	if err != nil {
		t.Fatal(err)
	}
	c, frames, err := n.dialNative(t, nil)
	if err != nil {
		t.Fatal(err)
	}
	m := nativewire.Subscribe{
		Topic: topic.ID(), Channel: "new", Create: true, From: nativewire.FromDefault, Partition: nativewire.NoPartition,
		Messages: 1, Bytes: 1 << 20,
	}
	for request := range uint64(2) {
		f := netproto.Frame{Type: nativewire.TypeSubscribe, Request: request + 1, Head: nativewire.Append(nil, &m)}
		if err := c.TrySend(&f); err != nil {
			t.Fatal(err)
		}
		if answer := <-frames; answer.Type != nativewire.TypeSubscribed || answer.Status != netproto.StatusOK {
			t.Fatalf("%+v", answer)
		}
	}
	list := n.audit.List().Entries
	if len(list) != 1 || list[0].What+" "+list[0].Names != "native create topic=orders channel=new" || list[0].From == "" {
		t.Errorf("the audit has %+v", list)
	}
}

// A node whose other ports are placed elsewhere does not open one more by itself.
func TestNativeAddressDefault(t *testing.T) {
	for _, x := range []struct{ nsq, native, want string }{
		{"", "", "127.0.0.1:4250"},
		{"127.0.0.1:4150", "", "127.0.0.1:4250"},
		{"0.0.0.0:4150", "", Off},
		{"127.0.0.1:4150", Off, Off},
		{"0.0.0.0:4150", "0.0.0.0:4250", "0.0.0.0:4250"},
	} {
		o := Options{TCPAddress: x.nsq, NativeAddress: x.native, Hostname: "h"}
		if err := o.setDefaults(); err != nil || o.NativeAddress != x.want {
			t.Errorf("%+v: %s, %v", x, o.NativeAddress, err)
		}
	}
}
