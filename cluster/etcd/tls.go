package etcd

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"os"
)

// TLSFiles names PEM files. The zero value means no TLS. A client uses CA to check the server, and shows Cert and Key
// if they are set. A member needs all three: it demands a certificate signed by CA from clients and members, and shows
// Cert in both roles.
type TLSFiles struct {
	CA   string
	Cert string
	Key  string
}

func (f TLSFiles) empty() bool { return f == TLSFiles{} }

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
	c := &tls.Config{MinVersion: tls.VersionTLS12}
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
		pair, err := tls.LoadX509KeyPair(f.Cert, f.Key)
		if err != nil {
			return nil, fmt.Errorf("etcd: certificate %q and key %q cannot be used: %w", f.Cert, f.Key, err)
		}
		c.Certificates = []tls.Certificate{pair}
	}
	return c, nil
}

// serverConfig returns the server's configuration, which demands a certificate of the same authority from every client.
func (f TLSFiles) serverConfig() (*tls.Config, error) {
	c, err := f.config()
	if c != nil {
		c.ClientCAs, c.ClientAuth = c.RootCAs, tls.RequireAndVerifyClientCert
	}
	return c, err
}
