package etcd

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync/atomic"

	"google.golang.org/grpc/credentials"

	"penstock/internal/cluster/kv"
)

// TLSFiles names PEM files. The zero value means no TLS. A client uses CA to check the server, and shows Cert and Key
// if they are set. A member needs all three: it demands a certificate signed by CA from clients and members, and shows
// Cert in both roles.
//
// They can be replaced while nodes run: ReloadTLS and Member.ReloadTLS take what is in them for new connections. But
// etcd reads the authority of those whom a member dials only at the start.
type TLSFiles struct {
	CA   string
	Cert string
	Key  string
	// MinVersion is that of crypto/tls; 0: TLS 1.3.
	MinVersion uint16
	// AnyAddress lets a member take a certificate of CA from any address. Otherwise the certificate must be for the
	// address that the client has.
	AnyAddress bool
}

func (f TLSFiles) empty() bool { return f.CA == "" && f.Cert == "" && f.Key == "" }

func (f TLSFiles) minVersion() uint16 { return cmp.Or(f.MinVersion, tls.VersionTLS13) }

func (f TLSFiles) scheme() string {
	if f.empty() {
		return "http"
	}
	return "https"
}

// contents is what is in the files, and the client's configuration that follows.
type contents struct {
	ca, node []byte // PEM; node has the certificate and the key
	config   *tls.Config
}

// read returns nil without TLS.
func (f TLSFiles) read() (*contents, error) {
	if f.empty() {
		return nil, nil
	}
	r := &contents{config: &tls.Config{MinVersion: f.minVersion()}}
	var err error
	if f.CA != "" {
		if r.ca, err = os.ReadFile(f.CA); err != nil {
			return nil, fmt.Errorf("etcd: the file with the certificate authority cannot be read: %w", err)
		}
		r.config.RootCAs = x509.NewCertPool()
		if !r.config.RootCAs.AppendCertsFromPEM(r.ca) {
			return nil, fmt.Errorf("etcd: %s holds no certificate in PEM form: name the file of the certificate authority", f.CA)
		}
	}
	if f.Cert != "" || f.Key != "" {
		cert, err1 := os.ReadFile(f.Cert)
		key, err2 := os.ReadFile(f.Key)
		pair, err3 := tls.X509KeyPair(cert, key)
		if err := cmp.Or(err1, err2, err3); err != nil {
			return nil, fmt.Errorf("etcd: certificate %q and key %q cannot be used: %w", f.Cert, f.Key, err)
		}
		r.node = slices.Concat(cert, []byte("\n"), key)
		// Unlike one in Certificates, it is also shown to a server that names other authorities, which then says so.
		r.config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &pair, nil }
	}
	return r, nil
}

// currentTLS is the client's configuration as the files were when they were last taken. A client and a member have one
// each; any goroutine may use it.
type currentTLS struct {
	files TLSFiles
	now   atomic.Pointer[contents] // nil: no TLS
}

func (f TLSFiles) open() (*currentTLS, error) {
	c := &currentTLS{files: f}
	return c, c.reload()
}

// reload takes the files for new connections. After an error everything is as it was.
func (c *currentTLS) reload() error {
	r, err := c.files.read()
	if err == nil {
		c.now.Store(r)
	}
	return err
}

// client returns a client of the members' peer addresses.
func (c *currentTLS) client() *http.Client {
	t := &http.Transport{DisableKeepAlives: true}
	t.DialTLSContext = func(ctx context.Context, network, address string) (net.Conn, error) {
		return (&tls.Dialer{Config: c.now.Load().config}).DialContext(ctx, network, address)
	}
	return &http.Client{Timeout: probeTimeout, Transport: t}
}

// server returns the configuration of a member's ports, which demands a certificate of the same authority from every
// client; nil without TLS. admit says whether a certificate of the authority may enter; nil: each may. Sessions are not
// resumed: a resumed one would go on trusting an authority that was removed.
func (c *currentTLS) server(admit func(*x509.Certificate) error) *tls.Config {
	if c.now.Load() == nil {
		return nil
	}
	return &tls.Config{GetConfigForClient: func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
		config := c.now.Load().config.Clone()
		config.ClientCAs, config.ClientAuth = config.RootCAs, tls.RequireAndVerifyClientCert
		config.SessionTicketsDisabled = true
		// Who speaks both gets HTTP/1.1: behind the front, HTTP/2 is for gRPC only, whose clients offer nothing else.
		config.NextProtos = []string{"http/1.1", "h2"}
		config.GetCertificate = func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
			return config.GetClientCertificate(nil)
		}
		config.VerifyConnection = func(state tls.ConnectionState) error {
			cert := state.PeerCertificates[0]
			if !c.files.AnyAddress && !isFor(hello.Context(), cert, hello.Conn.RemoteAddr()) {
				return fmt.Errorf("the certificate of %q is for %v %v, and not for the address from which it is shown",
					cert.Subject.CommonName, cert.DNSNames, cert.IPAddresses)
			}
			if admit == nil {
				return nil
			}
			return admit(cert)
		}
		return config, nil
	}}
}

// isFor says whether a certificate is for an address, as etcd does: for no host at all, for the IP address, or for a
// name that has the address, or that the address has.
func isFor(ctx context.Context, cert *x509.Certificate, from net.Addr) bool {
	host, _, _ := net.SplitHostPort(from.String())
	if len(cert.IPAddresses) == 0 && len(cert.DNSNames) == 0 || cert.VerifyHostname(host) == nil {
		return true
	}
	if len(cert.DNSNames) == 0 {
		return false
	}
	names, _ := net.DefaultResolver.LookupAddr(ctx, host)
	if slices.ContainsFunc(names, func(name string) bool {
		return cert.VerifyHostname(strings.TrimSuffix(name, ".")) == nil
	}) {
		return true
	}
	return slices.ContainsFunc(cert.DNSNames, func(name string) bool {
		all, err := net.DefaultResolver.LookupHost(ctx, name)
		return err == nil && slices.Contains(all, host)
	})
}

// credentials returns what gRPC needs, or nil without TLS.
func (c *currentTLS) credentials() credentials.TransportCredentials {
	if c == nil || c.now.Load() == nil {
		return nil
	}
	return &handshakes{current: c}
}

// handshakes is currentTLS for gRPC. It is immutable.
type handshakes struct {
	current *currentTLS
	name    string // overrides the server's name in the address
}

func (h *handshakes) latest() credentials.TransportCredentials {
	config := h.current.now.Load().config
	if h.name != "" {
		config = config.Clone()
		config.ServerName = h.name
	}
	return credentials.NewTLS(config)
}

func (h *handshakes) ClientHandshake(
	ctx context.Context, authority string, nc net.Conn,
) (net.Conn, credentials.AuthInfo, error) {
	return h.latest().ClientHandshake(ctx, authority, nc)
}

func (h *handshakes) ServerHandshake(nc net.Conn) (net.Conn, credentials.AuthInfo, error) {
	return h.latest().ServerHandshake(nc)
}

func (h *handshakes) Info() credentials.ProtocolInfo { return h.latest().Info() }

func (h *handshakes) Clone() credentials.TransportCredentials {
	c := *h
	return &c
}

func (h *handshakes) OverrideServerName(name string) error {
	h.name = name
	return nil
}

// ReloadTLS makes a store of Dial take its certificates for new connections; those that are open stay. After an error
// everything is as it was.
func ReloadTLS(s kv.Store) error {
	if c, ok := s.(*store); ok {
		return c.tls.reload()
	}
	return nil
}
