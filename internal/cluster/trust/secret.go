package trust

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/hkdf"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"penstock/netproto"
)

const (
	// MinSecretBytes and MaxSecretBytes bound a line of the secret's file.
	MinSecretBytes = 32
	MaxSecretBytes = 1024
	// MaxSecretCount is the number of lines: the secret, and while it is replaced its successor or predecessor.
	MaxSecretCount = 2

	authorityName = "authority.pem"
	nodeName      = "node.pem" // the certificate, the links to other authorities, and the private key
)

// The certificates made from a secret are valid for ever, see the package comment.
var (
	validFrom  = time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)
	validUntil = time.Date(9999, 12, 31, 23, 59, 59, 0, time.UTC)
)

// readSecrets returns the lines of the file that are neither empty nor begin with '#'.
func readSecrets(name string) ([]string, error) {
	f, err := os.ReadFile(name)
	if err != nil {
		return nil, fmt.Errorf("the file of --cluster-secret-file cannot be read: %w", err)
	}
	var lines []string
	for line := range strings.Lines(string(f)) {
		line = strings.TrimSpace(line)
		switch {
		case line == "" || line[0] == '#':
			continue
		case len(line) < MinSecretBytes || len(line) > MaxSecretBytes:
			return nil, fmt.Errorf("a line of %s has %d bytes, and %d to %d are allowed: make a secret with `openssl rand "+
				"-base64 32`", name, len(line), MinSecretBytes, MaxSecretBytes)
		}
		lines = append(lines, line)
	}
	if len(lines) == 0 || len(lines) > MaxSecretCount {
		return nil, fmt.Errorf("%s has %d secrets, and one or two are allowed: the one in use first, and while it is "+
			"replaced the other one on a second line", name, len(lines))
	}
	return lines, nil
}

// EnsureSecret makes a file with a random secret, unless the file exists. A crash leaves no file, or a whole one.
func EnsureSecret(name string) error {
	if _, err := os.Lstat(name); err == nil {
		return nil
	}
	random := make([]byte, 32)
	_, _ = rand.Read(random) // it never fails
	if err := replace(name, []byte(base64.StdEncoding.EncodeToString(random)+"\n")); err != nil {
		return fmt.Errorf("the cluster's secret cannot be written: %w", err)
	}
	return nil
}

func derive(line, what string) []byte {
	key, err := hkdf.Key(sha256.New, []byte(line), nil, what, 32)
	if err != nil {
		panic("BUG: trust: " + err.Error()) // only a length that is too large
	}
	return key
}

func handshakeKey(line string) netproto.Secret {
	return netproto.Secret(derive(line, "penstock 1 node handshake"))
}

// authority is a certificate authority made from a secret. The same secret makes the same key and names everywhere.
type authority struct {
	key  ed25519.PrivateKey
	cert *x509.Certificate
}

func authorityOf(line string) (*authority, error) {
	a := &authority{key: ed25519.NewKeyFromSeed(derive(line, "penstock 1 certificate authority"))}
	der, err := a.sign(a.template(), nil, a.key.Public())
	if err != nil {
		return nil, err
	}
	a.cert, err = x509.ParseCertificate(der)
	return a, err
}

func (a *authority) template() *x509.Certificate {
	sum := sha256.Sum256(a.key.Public().(ed25519.PublicKey))
	return &x509.Certificate{
		Subject:      pkix.Name{CommonName: "penstock cluster " + hex.EncodeToString(sum[:8])},
		SubjectKeyId: sum[:20], NotBefore: validFrom, NotAfter: validUntil,
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
}

// sign makes a certificate for a public key. parent nil: the authority's own.
func (a *authority) sign(template, parent *x509.Certificate, public crypto.PublicKey) ([]byte, error) {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	if err != nil {
		return nil, err
	}
	template.SerialNumber = serial
	if parent == nil {
		parent = template
	}
	return x509.CreateCertificate(rand.Reader, template, parent, public, a.key)
}

// chain makes a node's certificate of the first authority, and certificates of that authority by each of the others.
func chain(all []*authority, leaf *ecdsa.PrivateKey, hosts []string) ([][]byte, error) {
	first := all[0]
	der, err := first.sign(nodeTemplate("node", hosts, validFrom, validUntil), first.cert, leaf.Public())
	if err != nil {
		return nil, err
	}
	certs := [][]byte{der}
	for _, other := range all[1:] {
		link, err := other.sign(first.template(), other.cert, first.key.Public())
		if err != nil {
			return nil, err
		}
		certs = append(certs, link)
	}
	return certs, nil
}

// nodeTemplate is a certificate that a node can use as a server and as a client.
func nodeTemplate(name string, hosts []string, from, until time.Time) *x509.Certificate {
	c := &x509.Certificate{
		Subject: pkix.Name{CommonName: name}, NotBefore: from, NotAfter: until, BasicConstraintsValid: true,
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	for _, h := range hosts {
		if ip := net.ParseIP(h); ip != nil {
			c.IPAddresses = append(c.IPAddresses, ip)
		} else {
			c.DNSNames = append(c.DNSNames, h)
		}
	}
	return c
}

// writeCertificate writes the files for etcd. Each is replaced as a whole, and the key stays, so that etcd, which reads
// them at each connection, never finds parts that do not belong together. The caller holds mu.
func (t *Trust) writeCertificate(lines []string) error {
	var all []*authority
	var roots, node bytes.Buffer
	for _, line := range lines {
		a, err := authorityOf(line)
		if err != nil {
			return err
		}
		all = append(all, a)
		_ = pem.Encode(&roots, &pem.Block{Type: "CERTIFICATE", Bytes: a.cert.Raw})
	}
	certs, err := chain(all, t.leaf, t.hosts)
	if err != nil {
		return err
	}
	for _, der := range certs {
		_ = pem.Encode(&node, &pem.Block{Type: "CERTIFICATE", Bytes: der})
	}
	key, err := x509.MarshalPKCS8PrivateKey(t.leaf)
	if err != nil {
		return err
	}
	_ = pem.Encode(&node, &pem.Block{Type: "PRIVATE KEY", Bytes: key})
	for name, content := range map[string][]byte{authorityName: roots.Bytes(), nodeName: node.Bytes()} {
		if err := replace(filepath.Join(t.dir, name), content); err != nil {
			return fmt.Errorf("the certificate for etcd cannot be written: %w", err)
		}
	}
	return nil
}

// replace writes a file that only its owner may read, or leaves the old one as it is.
func replace(name string, content []byte) error {
	f, err := os.OpenFile(name+".new", os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(content)
	if err := errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	return os.Rename(name+".new", name)
}
