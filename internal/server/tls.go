package server

import (
	"cmp"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync/atomic"
	"time"

	"penstock/internal/server/handshakes"
	"penstock/internal/sparing"
)

// TLSOptions configure whether clients may or must use TLS. With the zero value TLS is not offered.
type TLSOptions struct {
	CertFile, KeyFile string // PEM; set both or neither
	RootCAFile        string // PEM; the authorities for client certificates; default: those of the machine

	// ClientAuth is "" (clients are not asked for certificates), "require" (any certificate) or "require-verify" (one
	// that an authority in RootCAFile has signed). Asking for certificates makes TLS required, as in nsqd.
	ClientAuth string

	// Required is "" or "false" (clients choose), "tcp-https" (NSQ connections must use TLS, HTTP requests need not) or
	// "true" (plain HTTP requests are refused, too).
	Required string

	MinVersion string // "1.2" or "1.3"; the default is 1.3
	// NSQMinVersion is MinVersion for the NSQ protocol and HTTP, and not for native clients; default: MinVersion.
	NSQMinVersion string
}

const (
	requiredNot      = "false"
	requiredTCP      = "tcp-https"
	requiredAlways   = "true"
	clientAuthAny    = "require"
	clientAuthVerify = "require-verify"

	// maxPEMBytes bounds the size of a certificate or key file.
	maxPEMBytes = 1 << 20
)

// versionOf has the versions of TLS that can be the least.
var versionOf = map[string]uint16{"1.2": tls.VersionTLS12, "1.3": tls.VersionTLS13}

func (o *TLSOptions) setDefaults() error {
	o.Required = cmp.Or(o.Required, requiredNot)
	o.MinVersion = cmp.Or(o.MinVersion, "1.3")
	o.NSQMinVersion = cmp.Or(o.NSQMinVersion, o.MinVersion)
	switch {
	case o.ClientAuth != "" && o.ClientAuth != clientAuthAny && o.ClientAuth != clientAuthVerify:
		return fmt.Errorf("nsq: TLS.ClientAuth is %q; it must be empty, %s or %s",
			o.ClientAuth, clientAuthAny, clientAuthVerify)
	case o.Required != requiredNot && o.Required != requiredTCP && o.Required != requiredAlways:
		return fmt.Errorf("nsq: TLS.Required is %q; it must be %s, %s or %s",
			o.Required, requiredNot, requiredTCP, requiredAlways)
	case versionOf[o.MinVersion] == 0:
		return fmt.Errorf("nsq: TLS.MinVersion is %q; it must be 1.2 or 1.3: older ones are broken", o.MinVersion)
	case versionOf[o.NSQMinVersion] == 0:
		return fmt.Errorf("nsq: TLS.NSQMinVersion is %q; it must be 1.2 or 1.3: older ones are broken", o.NSQMinVersion)
	case (o.CertFile == "") != (o.KeyFile == ""):
		return errors.New("nsq: a TLS certificate needs its key and a key its certificate; set both tls-cert and tls-key " +
			"(TLS.CertFile and TLS.KeyFile)")
	}
	if o.ClientAuth != "" && o.Required == requiredNot {
		o.Required = requiredAlways
	}
	if o.CertFile == "" && o.Required != requiredNot {
		return errors.New("nsq: TLS is required of clients, but there is no certificate; set both tls-cert and tls-key " +
			"(TLS.CertFile and TLS.KeyFile)")
	}
	return nil
}

// offered reports whether clients may use TLS.
func (o *TLSOptions) offered() bool { return o.CertFile != "" }

// certificates holds the TLS configuration for new connections. The readers of connections and the HTTPS server use it,
// and reload replaces the configuration, all on any goroutine and without a lock. Existing connections keep theirs.
type certificates struct {
	files TLSOptions
	now   atomic.Pointer[loadedTLS] // as last read
	outer *tls.Config               // the configuration passed to crypto/tls; it looks up now for each connection

	nativeOuter *tls.Config // the same for native clients, which may need a newer version of TLS

	gate *handshakes.Gate // for the handshakes on all listeners
}

// loadedTLS is what was read from the files. It is immutable.
type loadedTLS struct {
	cfg     *tls.Config       // without MinVersion
	tickets handshakes.Secret // of session tickets; zero: there are none
}

// certificates returns those that the Front has read, or reads them.
func (o *Options) certificates(log *sparing.Log) (*certificates, error) {
	if o.Front != nil {
		return o.Front.certs, nil
	}
	return newCertificates(o, log)
}

// newCertificates reads the files. It returns nil if TLS is not offered.
func newCertificates(o *Options, log *sparing.Log) (*certificates, error) {
	if !o.TLS.offered() {
		return nil, nil
	}
	c := &certificates{files: o.TLS, gate: handshakes.New(o.MaxHandshakes, log)}
	c.outer, c.nativeOuter = c.outerOf(c.files.NSQMinVersion), c.outerOf(c.files.MinVersion)
	return c, c.reload()
}

// outerOf returns a configuration that needs this version of TLS. Only TLS 1.3 gets tickets: it agrees on a new secret
// for each session all the same, so nobody who steals the certificate's key later can read what was recorded.
func (c *certificates) outerOf(least string) *tls.Config {
	return c.gate.Config(func(hello *tls.ClientHelloInfo) *tls.Config {
		id := c.now.Load()
		cfg := id.cfg.Clone()
		cfg.MinVersion = versionOf[least]
		if id.tickets != (handshakes.Secret{}) && slices.Contains(hello.SupportedVersions, tls.VersionTLS13) {
			cfg.SessionTicketsDisabled = false
			cfg.SetSessionTicketKeys(id.tickets.Keys(time.Now()))
		}
		return cfg
	})
}

// reload reads the files again. If it returns an error, the previous configuration remains in force.
func (c *certificates) reload() error {
	pair, err := loadPair(c.files.CertFile, c.files.KeyFile)
	if err != nil {
		return err
	}
	cfg := &tls.Config{
		Certificates: []tls.Certificate{pair},
		// Frames are written in large pieces: small first records would only add cost.
		DynamicRecordSizingDisabled: true,
		SessionTicketsDisabled:      true, // see outerOf
	}
	id := &loadedTLS{cfg: cfg}
	switch c.files.ClientAuth {
	case "":
		// A ticket spares all the clients that come back the signature. Where clients have certificates there are none: a
		// resumed session would keep trusting a client whose authority has been removed.
		if id.tickets, err = handshakes.SecretOf(pair.PrivateKey); err != nil {
			return fmt.Errorf("nsq: the TLS key %s cannot be used: %w", c.files.KeyFile, err)
		}
	case clientAuthAny:
		cfg.ClientAuth = tls.RequireAnyClientCert
	case clientAuthVerify:
		cfg.ClientAuth = tls.RequireAndVerifyClientCert
	}
	if c.files.RootCAFile != "" {
		if cfg.ClientCAs, err = loadAuthorities(c.files.RootCAFile); err != nil {
			return err
		}
	}
	c.now.Store(id)
	return nil
}

func loadPair(certFile, keyFile string) (tls.Certificate, error) {
	cert, err := readBounded(certFile, maxPEMBytes)
	if err != nil {
		return tls.Certificate{}, fmt.Errorf("nsq: the TLS certificate cannot be read: %w", err)
	}
	key, err := readBounded(keyFile, maxPEMBytes)
	if err != nil {
		return tls.Certificate{}, fmt.Errorf("nsq: the TLS key cannot be read: %w", err)
	}
	pair, err := tls.X509KeyPair(cert, key)
	if err != nil {
		return pair, fmt.Errorf("nsq: the TLS certificate %s and the key %s cannot be used: %w", certFile, keyFile, err)
	}
	return pair, nil
}

func loadAuthorities(name string) (*x509.CertPool, error) {
	data, err := readBounded(name, maxPEMBytes)
	if err != nil {
		return nil, fmt.Errorf("nsq: the certificate authorities of clients cannot be read: %w", err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(data) {
		return nil, fmt.Errorf("nsq: %s holds no certificate in PEM: no client could be verified", name)
	}
	return pool, nil
}

// readBounded reads a regular file of at most most bytes.
func readBounded(name string, most int64) ([]byte, error) {
	st, err := os.Stat(name)
	if err != nil {
		return nil, err
	}
	if !st.Mode().IsRegular() || st.Size() > most {
		return nil, fmt.Errorf("%s is not a regular file of at most %d bytes", name, most)
	}
	return os.ReadFile(name)
}

// CredentialsStale notes whether a file of credentials cannot be used as it is on the disk, for /metrics. Any
// goroutine may call it.
func (s *Server) CredentialsStale(stale bool) { s.stale.Store(stale) }

// ReloadTLS reads the certificate, the key and the authorities again. Connections stay open; new handshakes use the new
// ones. After an error everything is as it was.
func (s *Server) ReloadTLS() error {
	if s.certs == nil {
		return nil
	}
	return s.certs.reload()
}

// ReloadTokens reads the token file again. The next checks of permissions use it, and subscriptions that it does not
// allow any more end. After an error everything is as it was.
func (s *Server) ReloadTokens() error {
	if s.auth == nil {
		return nil
	}
	err := s.auth.Reload()
	if err == nil {
		s.nsq.Reconsider()
	}
	return err
}

// SetAuthServers replaces Options.Auth.HTTPAddresses. After an error everything is as it was.
func (s *Server) SetAuthServers(addresses []string) error {
	if s.auth == nil {
		return nil
	}
	return s.auth.SetServers(addresses)
}
