package nsq

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"sync/atomic"
)

// TLSOptions say whether and how clients may, or must, use TLS. The zero value offers none.
type TLSOptions struct {
	CertFile, KeyFile string // PEM; both or none
	RootCAFile        string // PEM; whom client certificates must come from; none: the machine's authorities

	// ClientAuth is "" (no certificates are asked for), "require" (any certificate) or "require-verify" (one that
	// RootCAFile vouches for). Asking for certificates makes TLS required, as in nsqd.
	ClientAuth string

	// Required is "" or "false" (clients choose), "tcp-https" (NSQ connections must use TLS, HTTP need not) or
	// "true" (requests over plain HTTP are refused, too).
	Required string

	MinVersion string // "1.2" or "1.3"; 1.2
}

const (
	requiredNot      = "false"
	requiredTCP      = "tcp-https"
	requiredAlways   = "true"
	clientAuthAny    = "require"
	clientAuthVerify = "require-verify"

	// maxPEMBytes bounds the files of certificates and keys.
	maxPEMBytes = 1 << 20
)

func (o *TLSOptions) setDefaults() error {
	orDefault(&o.Required, requiredNot)
	orDefault(&o.MinVersion, "1.2")
	switch {
	case o.ClientAuth != "" && o.ClientAuth != clientAuthAny && o.ClientAuth != clientAuthVerify:
		return fmt.Errorf("nsq: TLS.ClientAuth is %q; it must be empty, %s or %s",
			o.ClientAuth, clientAuthAny, clientAuthVerify)
	case o.Required != requiredNot && o.Required != requiredTCP && o.Required != requiredAlways:
		return fmt.Errorf("nsq: TLS.Required is %q; it must be %s, %s or %s",
			o.Required, requiredNot, requiredTCP, requiredAlways)
	case o.MinVersion != "1.2" && o.MinVersion != "1.3":
		return fmt.Errorf("nsq: TLS.MinVersion is %q; it must be 1.2 or 1.3: older ones are broken", o.MinVersion)
	case (o.CertFile == "") != (o.KeyFile == ""):
		return errors.New("nsq: a TLS certificate needs its key and a key its certificate; set TLS.CertFile and TLS.KeyFile")
	}
	if o.ClientAuth != "" && o.Required == requiredNot {
		o.Required = requiredAlways
	}
	if o.CertFile == "" && o.Required != requiredNot {
		return errors.New("nsq: TLS is required of clients, but there is no certificate; set TLS.CertFile and TLS.KeyFile")
	}
	return nil
}

// offered says that clients may use TLS.
func (o *TLSOptions) offered() bool { return o.CertFile != "" }

// certificates is the TLS configuration that new connections get. Connections' readers and the HTTPS server use it, and
// reload replaces what it hands out, on any goroutine and without a lock. Connections that are there keep what they
// have.
type certificates struct {
	files TLSOptions
	now   atomic.Pointer[tls.Config] // what was read last
	outer *tls.Config                // asks now for every connection

	handshakes chan struct{} // a token for each handshake that runs; its capacity is Options.MaxHandshakes
}

// newCertificates reads the files; nil: TLS is not offered.
func newCertificates(o *Options) (*certificates, error) {
	if !o.TLS.offered() {
		return nil, nil
	}
	c := &certificates{files: o.TLS, handshakes: make(chan struct{}, o.MaxHandshakes)}
	c.outer = &tls.Config{
		MinVersion:         tls.VersionTLS12,
		GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) { return c.now.Load(), nil },
	}
	return c, c.reload()
}

// reload reads the files. After an error what was read before stays in force.
func (c *certificates) reload() error {
	pair, err := loadPair(c.files.CertFile, c.files.KeyFile)
	if err != nil {
		return err
	}
	cfg := &tls.Config{
		Certificates: []tls.Certificate{pair},
		MinVersion:   tls.VersionTLS12,
		// Frames are written in large pieces: small first records would only cost.
		DynamicRecordSizingDisabled: true,
		// A resumed session would keep what a removed authority once vouched for, and connections live long.
		SessionTicketsDisabled: true,
	}
	if c.files.MinVersion == "1.3" {
		cfg.MinVersion = tls.VersionTLS13
	}
	switch c.files.ClientAuth {
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
	c.now.Store(cfg)
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

// enter waits for a place among the handshakes; leave gives it back. Handshakes are what costs a server most
// before it knows anything of a client.
func (c *certificates) enter(ctx context.Context) error {
	select {
	case c.handshakes <- struct{}{}:
		return nil
	case <-ctx.Done():
		return errors.New("too many TLS handshakes at once; the client may try again")
	}
}

func (c *certificates) leave() { <-c.handshakes }

// Reload reads certificates, keys, authorities and the token file again. Connections stay; new handshakes and the next
// check of a permission see what was read. Where a file is not usable, what it said before stays in force, and the
// error says so.
func (s *Server) Reload() error {
	var errs []error
	if s.certs != nil {
		errs = append(errs, s.certs.reload())
	}
	if s.auth != nil {
		err := s.auth.Reload()
		errs = append(errs, err)
		if err == nil {
			s.each((*conn).reconsider)
		}
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("nsq: what could not be read again stays as it was: %w", err)
	}
	return nil
}
