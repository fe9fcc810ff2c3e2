package etcd

import (
	"cmp"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"os"
)

// TLSFiles names PEM files. The zero value means no TLS. A client uses CA to check the server, and shows Cert and Key
// if they are set. A member needs all three: it demands a certificate signed by CA from clients and members, and shows
// Cert in both roles.
//
// Certificate and key are read again for every connection, so they can be replaced while nodes run. CA is read at the
// start.
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

// config returns the client's configuration, or nil without TLS.
func (f TLSFiles) config() (*tls.Config, error) {
	if f.empty() {
		return nil, nil
	}
	c := &tls.Config{MinVersion: f.minVersion()}
	if f.CA != "" {
		pem, err := os.ReadFile(f.CA)
		if err != nil {
			return nil, fmt.Errorf("etcd: the file with the certificate authority cannot be read: %w", err)
		}
		c.RootCAs = x509.NewCertPool()
		if !c.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("etcd: %s holds no certificate in PEM form: name the file of the certificate authority", f.CA)
		}
	}
	if f.Cert != "" || f.Key != "" {
		if _, err := f.pair(); err != nil {
			return nil, err
		}
		c.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return f.pair() }
	}
	return c, nil
}

func (f TLSFiles) pair() (*tls.Certificate, error) {
	pair, err := tls.LoadX509KeyPair(f.Cert, f.Key)
	if err != nil {
		return nil, fmt.Errorf("etcd: certificate %q and key %q cannot be used: %w", f.Cert, f.Key, err)
	}
	return &pair, nil
}

// serverConfig returns the server's configuration, which demands a certificate of the same authority from every client.
func (f TLSFiles) serverConfig() (*tls.Config, error) {
	c, err := f.config()
	if c != nil {
		c.ClientCAs, c.ClientAuth = c.RootCAs, tls.RequireAndVerifyClientCert
		c.GetCertificate = func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return f.pair() }
	}
	return c, err
}
