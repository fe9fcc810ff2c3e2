package traffic

import (
	"fmt"
	"io"
	stdlog "log"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"penstock/internal/node"
	"penstock/internal/server"
	"penstock/netproto"
)

// A failure or two in a failover is not yet that nothing can be reached, and later ones do not add to earlier ones.
func TestReach(t *testing.T) {
	at := time.Now()
	for name, tc := range map[string]struct {
		failures []time.Duration
		reached  bool
		want     bool // of the last one
	}{
		"one":             {[]time.Duration{0}, false, false},
		"for a while":     {[]time.Duration{0, 4 * time.Second, 8 * time.Second}, false, true},
		"long ago":        {[]time.Duration{0, time.Minute}, false, false},
		"another reached": {[]time.Duration{0, 4 * time.Second, 8 * time.Second}, true, false},
	} {
		r, got := reach{reached: tc.reached}, false
		for _, after := range tc.failures {
			got = r.hopeless(io.EOF, at.Add(after))
		}
		if got != tc.want {
			t.Errorf("%s: hopeless %v", name, got)
		}
	}
}

// A command that no node answers ends, and says what is wrong with the address: nobody watches a log at night.
func TestNativeAddressIsWrong(t *testing.T) {
	e, err := node.Open(t.Context(), node.Options{DataPath: t.TempDir(), Logger: slog.New(slog.DiscardHandler)})
	must(t, err)
	defer e.Close()
	srv, err := server.Listen(e, server.Options{
		TCPAddress: "127.0.0.1:0", HTTPAddress: server.Off, LookupAddress: server.Off, NativeAddress: server.Off,
		Logger: slog.New(slog.DiscardHandler),
	})
	must(t, err)
	defer srv.Shutdown(t.Context())
	go func() { _ = srv.Serve() }()
	nsq := srv.TCPAddr().String()
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	nobody := silent.Addr().String()
	must(t, silent.Close())
	web := httptest.NewServer(http.NotFoundHandler())
	defer web.Close()
	secret := httptest.NewUnstartedServer(http.NotFoundHandler())
	secret.Config.ErrorLog = stdlog.New(io.Discard, "", 0)
	secret.StartTLS()
	defer secret.Close()
	for _, tc := range []struct {
		address, want string
		tls           bool
	}{
		{nobody, "connection refused", false},
		{nsq, "does not speak the native protocol, or only over TLS (--tls)", false},
		{web.Listener.Addr().String(), "does not speak the native protocol", false},
		{secret.Listener.Addr().String(), "does not speak the native protocol, or only over TLS (--tls)", false},
		{nsq, "does not speak the native protocol over TLS", true},
		{secret.Listener.Addr().String(), "unknown authority; nothing was done: name the certificate of the node's " +
			"authority with --tls-ca", true},
	} {
		var log strings.Builder
		n := nativeFlags{seeds: []string{tc.address}, useTLS: tc.tls}
		_, err := n.dialWithin(t.Context(), &log, 3*time.Second)
		if err == nil || !strings.Contains(err.Error(), tc.want) || !strings.Contains(err.Error(), "nothing was done") {
			t.Errorf("%s: %v, want %q", tc.address, err, tc.want)
		}
		if lines := strings.Count(log.String(), "\n"); lines != 1 {
			t.Errorf("%s: %d lines in the log:\n%s", tc.address, lines, log.String())
		}
	}
	n := nativeFlags{}
	if got := n.unreached(fmt.Errorf("client: %w", netproto.ErrUnproven)); !strings.Contains(got, "for other nodes") {
		t.Errorf("the port between nodes: %s", got)
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
