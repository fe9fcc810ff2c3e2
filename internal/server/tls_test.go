package server

import (
	"bytes"
	"crypto/rand"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/klauspost/compress/s2"

	"penstock/internal/node"
	"penstock/internal/server/listen"
	"penstock/tests/support/nsqtest"
)

// B98. Every combination carries small and large commands in both directions, pipelined, and is shown in /stats.
func TestWrappedConnections(t *testing.T) {
	ca := nsqtest.NewAuthority(t)
	n := startNode(t, node.Options{}, tlsOptions(t, ca))
	for i, x := range []struct {
		tls         bool
		compression string
		level       int
	}{
		{true, "", 0},
		{false, "snappy", 0},
		{true, "snappy", 0},
		{false, "deflate", 1},
		{false, "deflate", 6},
		{false, "deflate", 99},
		{true, "deflate", 3},
	} {
		t.Run(fmt.Sprintf("tls=%t %s %d", x.tls, x.compression, x.level), func(t *testing.T) {
			var cfg *tls.Config
			if x.tls {
				cfg = ca.Client(t, "")
			}
			c := n.dial(t).Wrap(cfg, x.compression, x.level)
			topic := fmt.Sprintf("t%d", i)
			bodies := make([]byte, 900_000) // does not compress
			if _, err := rand.Read(bodies); err != nil {
				t.Fatal(err)
			}
			large, small := string(bodies), strings.Repeat("compressible ", 9000)
			c.Send(nsqtest.Pub(topic, large) + nsqtest.Pub(topic, small) + strings.Repeat(nsqtest.Pub(topic, "tiny"), 500) +
				"MPUB " + topic + "\n" + nsqtest.Sized(nsqtest.BatchBody("a", large, "b")))
			for range 503 {
				c.OK()
			}
			c.Sub(topic, "c")
			c.Send("RDY 10\n")
			got := map[string]int{}
			for range 505 {
				m := c.Message()
				got[m.Body]++
				c.Send("FIN " + m.ID + "\n")
			}
			if got[large] != 2 || got[small] != 1 || got["tiny"] != 500 || got["a"] != 1 || got["b"] != 1 {
				t.Errorf("%d different messages, %d large ones", len(got), got[large])
			}
			nsqtest.Eventually(t, "all to be confirmed", func() bool { return n.topicNow(t, topic).Channels[0].Depth == 0 })
			st := n.stats.Collect("", "", true).Producers[0]
			if st.TLS != x.tls || st.Snappy != (x.compression == "snappy") || st.Deflate != (x.compression == "deflate") ||
				x.tls && (st.TLSVersion != "TLS1.3" || st.CipherSuite == "") {
				t.Errorf("in the statistics: %+v", st)
			}
			c.Send("BLAH\n")
			c.Expect(nsqtest.FrameError, "E_INVALID invalid command BLAH")
			if _, _, err := c.Frame(nsqtest.Patience); !errors.Is(err, io.EOF) &&
				!(x.compression == "deflate" && errors.Is(err, io.ErrUnexpectedEOF)) {
				t.Errorf("the end is not a clean one: %v", err) // deflate has no end of its own, as at nsqd
			}
			if x.tls && !bytes.HasPrefix(c.Under.Last, []byte{23, 3, 3, 0, nsqtest.GoodbyeBytes - 5}) {
				t.Errorf("TLS does not say goodbye: %x", c.Under.Last)
			}
			c.Conn.Close()
			nsqtest.Eventually(t, "the end of the connection", func() bool { return n.nsq.Meter().Connections == 0 })
		})
	}
}

// Commands that came before the upgrade are answered before it, unencrypted.
func TestUpgradeBehindPublishes(t *testing.T) {
	ca := nsqtest.NewAuthority(t)
	n := startNode(t, node.Options{}, tlsOptions(t, ca))
	c := n.dial(t)
	c.Send(
		strings.Repeat(nsqtest.Pub("t", "x"), 100) + "IDENTIFY\n" +
			nsqtest.Sized(`{"feature_negotiation":true,"tls_v1":true,"snappy":true}`),
	)
	for range 100 {
		c.OK()
	}
	if k, d, err := c.Frame(nsqtest.Patience); k != nsqtest.FrameResponse || err != nil ||
		!bytes.Contains(d, []byte(`"tls_v1":true`)) {
		t.Fatalf("%d %s %v", k, d, err)
	}
	if _, err := c.StartTLS(ca.Client(t, "")); err != nil {
		t.Fatal(err)
	}
	c.OK()
	c.StartCompression("snappy", 0)
	c.OK()
	c.Send(nsqtest.Pub("t", "z"))
	c.OK()
	c.Send("IDENTIFY\n" + nsqtest.Sized(`{"feature_negotiation":true,"snappy":true}`))
	c.Fatal("E_INVALID cannot IDENTIFY in current state")
}

// Bytes that somebody injects behind an IDENTIFY, unencrypted, are never taken for commands of the TLS connection.
func TestNothingIsSlippedIntoTLS(t *testing.T) {
	ca := nsqtest.NewAuthority(t)
	n := startNode(t, node.Options{}, tlsOptions(t, ca))
	c := n.dial(t)
	c.Send("IDENTIFY\n" + nsqtest.Sized(`{"feature_negotiation":true,"tls_v1":true}`) + nsqtest.Pub("slipped", "x"))
	if k, _, err := c.Frame(nsqtest.Patience); k != nsqtest.FrameResponse || err != nil {
		t.Fatal(k, err)
	}
	c.Closed()
	if got := n.e.Stats("slipped", ""); len(got) != 0 {
		t.Errorf("the PUB was executed: %+v", got)
	}
}

// A client may send compressed commands in one piece with its IDENTIFY, because it knows what it will get.
func TestCompressedBehindIdentify(t *testing.T) {
	n := startNode(t, node.Options{}, Options{})
	c := n.dial(t)
	var behind bytes.Buffer
	w := s2.NewWriter(&behind, s2.WriterSnappyCompat(), s2.WriterConcurrency(1))
	if _, err := io.WriteString(w, nsqtest.Pub("t", "x")); err != nil || w.Flush() != nil {
		t.Fatal(err)
	}
	c.Send("IDENTIFY\n" + nsqtest.Sized(`{"feature_negotiation":true,"snappy":true}`) + behind.String())
	if k, _, err := c.Frame(nsqtest.Patience); k != nsqtest.FrameResponse || err != nil {
		t.Fatal(k, err)
	}
	c.StartCompression("snappy", 0)
	c.OK()
	c.OK()
}

// B98
func TestTLSRequired(t *testing.T) {
	ca := nsqtest.NewAuthority(t)
	for _, required := range []string{requiredTCP, requiredAlways} {
		o := tlsOptions(t, ca)
		o.TLS.Required, o.HTTPSAddress = required, "127.0.0.1:0"
		n := startNode(t, node.Options{}, o)
		for _, cmd := range []string{
			"PUB t\n" + nsqtest.Sized("x"), "SUB t c\n", "FIN 0123456789abcdef\n", "REQ 0123456789abcdef 0\n", "AUTH\n" +
				nsqtest.Sized("s"),
			"NOP\n", "BLAH\n",
		} {
			c := n.dial(t)
			c.Identify(`{"feature_negotiation":true}`)
			c.Send(cmd)
			name, _, _ := strings.Cut(strings.TrimSpace(strings.SplitN(cmd, "\n", 2)[0]), " ")
			c.Fatal("E_INVALID cannot " + name + " in current state (TLS required)")
		}
		c := n.dial(t).Wrap(ca.Client(t, ""), "", 0)
		c.Send(nsqtest.Pub("t", "x"))
		c.OK()

		secure := &http.Client{Transport: &http.Transport{TLSClientConfig: ca.Client(t, "")}}
		reply, err := secure.Post("https://"+n.HTTPSAddr().String()+"/pub?topic=t", "", strings.NewReader("x"))
		if err != nil || reply.StatusCode != 200 {
			t.Fatal(reply, err)
		}
		reply.Body.Close()
		secure.CloseIdleConnections()
		wantCode, wantBody := 200, "OK"
		if required == requiredAlways {
			wantCode, wantBody = 403, fmt.Sprintf(`{"message": "TLS_REQUIRED", "https_port": %d}`, listen.Port(n.HTTPSAddr()))
		}
		for _, path := range []string{"/pub?topic=t", "/ping"} {
			method := "POST"
			if path == "/ping" {
				method = "GET"
			}
			if code, body := n.do(t, method, path, "x"); code != wantCode || body != wantBody {
				t.Errorf("%s over plain HTTP, required %s: %d %s", path, required, code, body)
			}
		}
	}
}

func TestTLSVersions(t *testing.T) {
	ca := nsqtest.NewAuthority(t)
	for _, x := range []struct {
		least  string
		offers uint16
		want   bool
	}{
		{"", tls.VersionTLS12, false},
		{"1.2", tls.VersionTLS11, false},
		{"1.2", tls.VersionTLS12, true},
		{"1.3", tls.VersionTLS12, false},
		{"1.3", tls.VersionTLS13, true},
	} {
		o := tlsOptions(t, ca)
		o.TLS.MinVersion = x.least
		n := startNode(t, node.Options{}, o)
		c := n.dial(t)
		c.Negotiate(map[string]any{"tls_v1": true})
		cfg := ca.Client(t, "")
		cfg.MinVersion, cfg.MaxVersion = tls.VersionTLS10, x.offers
		_, err := c.StartTLS(cfg)
		if (err == nil) != x.want {
			t.Errorf("at least %q, the client has %x: %v", x.least, x.offers, err)
		}
		if x.want {
			c.OK()
		}
	}
}

func TestTLSOptionErrors(t *testing.T) {
	ca := nsqtest.NewAuthority(t)
	good := tlsOptions(t, ca).TLS
	_, otherKey := ca.Issue(t, "other")
	for _, x := range []struct {
		change func(o *Options)
		want   string
	}{
		{func(o *Options) { o.TLS = TLSOptions{Required: "true"} }, "there is no certificate"},
		{func(o *Options) { o.TLS = TLSOptions{ClientAuth: "require"} }, "there is no certificate"},
		{func(o *Options) { o.TLS.Required = "sometimes" }, `TLS.Required is "sometimes"`},
		{func(o *Options) { o.TLS.ClientAuth = "ask" }, `TLS.ClientAuth is "ask"`},
		{func(o *Options) { o.TLS.MinVersion = "1.1" }, "must be 1.2 or 1.3"},
		{func(o *Options) { o.TLS.NSQMinVersion = "1.1" }, "must be 1.2 or 1.3"},
		{func(o *Options) { o.TLS.KeyFile = "" }, "needs its key"},
		{func(o *Options) { o.TLS.KeyFile = otherKey }, "cannot be used"},
		{func(o *Options) { o.TLS.CertFile = ca.File("none.pem") }, "no such file"},
		{func(o *Options) { o.TLS.RootCAFile = otherKey }, "holds no certificate"},
		{func(o *Options) { o.TLS = TLSOptions{}; o.HTTPSAddress = "127.0.0.1:0" }, "needs a certificate"},
		{func(o *Options) { o.MaxDeflateLevel = 10 }, "must be 1 to 9"},
	} {
		o := Options{TCPAddress: "127.0.0.1:0", HTTPAddress: Off, LookupAddress: Off, TLS: good}
		x.change(&o)
		s, err := Listen(nil, o)
		if err == nil {
			s.tcp.Close()
		}
		if err == nil || !strings.Contains(err.Error(), x.want) {
			t.Errorf("got %v, want %s", err, x.want)
		}
	}
}

// A handshake has limited time in all, however steadily its bytes trickle in, and slow ones keep nobody else waiting.
func TestSlowHandshakes(t *testing.T) {
	t.Parallel()
	ca := nsqtest.NewAuthority(t)
	o := tlsOptions(t, ca)
	o.HandshakeTimeout, o.MaxHandshakes = time.Second, 1
	n := startNode(t, node.Options{}, o)
	start := time.Now()
	var slow []*nsqtest.Client
	for range 2 * runtime.GOMAXPROCS(0) {
		c := n.dial(t)
		c.Negotiate(map[string]any{"tls_v1": true, "heartbeat_interval": 1000})
		slow = append(slow, c)
	}
	other := n.dial(t)
	other.Send(nsqtest.Pub("t", "x")) // a client without TLS does not wait
	other.OK()
	n.dial(t).Wrap(ca.Client(t, ""), "", 0)
	hello := "\x16\x03\x01\x02\x00" + strings.Repeat("\x01", 512)
	for i := range hello {
		if _, err := io.WriteString(slow[0].Conn, hello[i:i+1]); err != nil {
			break
		}
		_ = slow[0].Conn.SetReadDeadline(time.Now().Add(10 * time.Millisecond)) // sets the pace of the trickle
		if _, err := slow[0].Conn.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
			break
		}
	}
	// No heartbeat has come in the clear, though one was due: only the end, with or without TLS's own alert.
	rest, err := io.ReadAll(slow[1].R)
	if bytes.Contains(rest, []byte("_heartbeat_")) {
		t.Errorf("in the middle of a handshake: %q, %v", rest, err)
	}
	if d := time.Since(start); d < 900*time.Millisecond || d > 10*time.Second {
		t.Errorf("handshakes of 1 s ended after %v", d)
	}
}

// The view of curl: the whole API works over TLS, and nothing works in the clear on that port.
func TestHTTPS(t *testing.T) {
	ca := nsqtest.NewAuthority(t)
	o := tlsOptions(t, ca)
	o.HTTPSAddress = "127.0.0.1:0"
	n := startNode(t, node.Options{}, o)
	secure := &http.Client{Transport: &http.Transport{TLSClientConfig: ca.Client(t, "")}}
	defer secure.CloseIdleConnections()
	base := "https://" + n.HTTPSAddr().String()
	for _, x := range []struct{ method, path, body, want string }{
		{"GET", "/ping", "", "OK"},
		{"POST", "/pub?topic=t", "x", "OK"},
		{"POST", "/mpub?topic=t", "a\nb\n", "OK"},
		{"POST", "/channel/create?topic=t&channel=c", "", ""},
	} {
		r, err := http.NewRequest(x.method, base+x.path, strings.NewReader(x.body))
		if err != nil {
			t.Fatal(err)
		}
		reply, err := secure.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(reply.Body)
		reply.Body.Close()
		if err != nil || reply.StatusCode != 200 || string(body) != x.want {
			t.Errorf("%s: %d %s %v", x.path, reply.StatusCode, body, err)
		}
	}
	if ch := n.topicNow(t, "t").Channels; len(ch) != 1 || ch[0].Depth != 3 {
		t.Errorf("%+v", ch)
	}
	reply, err := http.Get("http://" + n.HTTPSAddr().String() + "/ping")
	if err == nil {
		reply.Body.Close()
		if reply.StatusCode == 200 {
			t.Error("the HTTPS port answers plain HTTP")
		}
	}
}
