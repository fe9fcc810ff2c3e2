package trust

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"math/big"
	"os"
	"path/filepath"
	"time"

	"penstock/netproto"
)

// How long the certificates that Init makes are valid. Nodes read new ones on SIGHUP.
const (
	authorityYears = 20
	nodeYears      = 5
)

// NodeFiles are the files of one node, made by Init.
type NodeFiles struct {
	Name, Cert, Key string
	Hosts           []string
}

// Node is a node for which Init makes a certificate, valid for the hosts.
type Node struct {
	Name  string
	Hosts []string
}

// Init makes a certificate authority (ca.pem, ca-key.pem) in dir, and a certificate and key for each node. If the
// authority exists already, it signs further nodes. No file is ever overwritten. After an error, the files that were
// made before it stay, and the error names the one that could not be made.
func Init(dir string, nodes []Node, now time.Time) (ca string, files []NodeFiles, err error) {
	ca = filepath.Join(dir, "ca.pem")
	caKey := filepath.Join(dir, "ca-key.pem")
	for _, n := range nodes {
		if err := netproto.CheckNodeName(n.Name); err != nil {
			return "", nil, fmt.Errorf("%w; nothing was made", err)
		}
		f := NodeFiles{
			Name: n.Name, Cert: filepath.Join(dir, n.Name+".pem"), Key: filepath.Join(dir, n.Name+"-key.pem"), Hosts: n.Hosts,
		}
		for _, name := range []string{f.Cert, f.Key} {
			if _, err := os.Lstat(name); !errors.Is(err, fs.ErrNotExist) {
				return "", nil, fmt.Errorf("%s exists already and is not overwritten: remove it, or name another directory; "+
					"nothing was made", name)
			}
		}
		files = append(files, f)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", nil, fmt.Errorf("the directory for the certificates cannot be made: %w", err)
	}
	authority, key, err := loadOrMakeAuthority(ca, caKey, now)
	if err != nil {
		return "", nil, err
	}
	for i, n := range nodes {
		own, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			return "", nil, err
		}
		template := nodeTemplate(n.Name, n.Hosts, now.Add(-time.Hour), now.AddDate(nodeYears, 0, 0))
		if err := issue(template, authority, own, key, files[i].Cert, files[i].Key); err != nil {
			return "", nil, err
		}
	}
	return ca, files, nil
}

func loadOrMakeAuthority(certFile, keyFile string, now time.Time) (*x509.Certificate, *ecdsa.PrivateKey, error) {
	certPEM, err1 := os.ReadFile(certFile)
	keyPEM, err2 := os.ReadFile(keyFile)
	if errors.Is(err1, fs.ErrNotExist) && errors.Is(err2, fs.ErrNotExist) {
		return makeAuthority(certFile, keyFile, now)
	}
	if err := errors.Join(err1, err2); err != nil {
		return nil, nil, fmt.Errorf("the authority is not whole, so nothing was made: restore its file, or name another "+
			"directory: %w", err)
	}
	c, _ := pem.Decode(certPEM)
	k, _ := pem.Decode(keyPEM)
	if c == nil || k == nil {
		return nil, nil, fmt.Errorf("%s or %s is not PEM: nothing was made", certFile, keyFile)
	}
	cert, err1 := x509.ParseCertificate(c.Bytes)
	parsed, err2 := x509.ParsePKCS8PrivateKey(k.Bytes)
	if err := errors.Join(err1, err2); err != nil {
		return nil, nil, fmt.Errorf("the authority in %s cannot be used: nothing was made: %w", certFile, err)
	}
	key, ok := parsed.(*ecdsa.PrivateKey)
	if !ok || !key.PublicKey.Equal(cert.PublicKey) {
		return nil, nil, fmt.Errorf("%s is not the ECDSA key of %s: nothing was made", keyFile, certFile)
	}
	return cert, key, nil
}

func makeAuthority(certFile, keyFile string, now time.Time) (*x509.Certificate, *ecdsa.PrivateKey, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	template := &x509.Certificate{
		Subject:   pkix.Name{CommonName: "penstock cluster authority"},
		NotBefore: now.Add(-time.Hour), NotAfter: now.AddDate(authorityYears, 0, 0),
		IsCA: true, BasicConstraintsValid: true, MaxPathLenZero: true, KeyUsage: x509.KeyUsageCertSign,
	}
	if err := issue(template, nil, key, key, certFile, keyFile); err != nil {
		return nil, nil, err
	}
	return template, key, nil
}

// issue signs a certificate for own, and writes it and its key. parent nil: it signs itself, and template becomes the
// certificate.
func issue(template, parent *x509.Certificate, own, signer *ecdsa.PrivateKey, certFile, keyFile string) error {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	if err != nil {
		return err
	}
	template.SerialNumber = serial
	self := parent == nil
	if self {
		parent = template
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, own.Public(), signer)
	if err != nil {
		return err
	}
	if self {
		cert, err := x509.ParseCertificate(der)
		if err != nil {
			return err
		}
		*template = *cert
	}
	key, err := x509.MarshalPKCS8PrivateKey(own)
	if err != nil {
		return err
	}
	if err := create(keyFile, "PRIVATE KEY", key); err != nil {
		return err
	}
	return create(certFile, "CERTIFICATE", der)
}

// create writes a file that must not exist, and that only its owner may read.
func create(name, kind string, der []byte) error {
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return fmt.Errorf("%s cannot be made: %w", name, err)
	}
	return errors.Join(pem.Encode(f, &pem.Block{Type: kind, Bytes: der}), f.Sync(), f.Close())
}
