package trust

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/google/uuid"

	"penstock/internal/cluster/etcd"
	"penstock/netproto"
	"penstock/replicate/peer"
)

// Names says for which nodes a certificate speaks: see package replicate/peer.
type Names = peer.Names

// The rules for names.
const (
	NamesOfNodes  = peer.NamesOfNodes
	NamesRequired = peer.NamesRequired
	NamesIgnored  = peer.NamesIgnored
)

// Speaks says whether a certificate names the node.
func Speaks(cert *x509.Certificate, name string) bool { return peer.Speaks(cert, name) }

// Options name the files. MinVersion is that of crypto/tls; 0: TLS 1.3.
type Options struct {
	SecretFile    string
	CA, Cert, Key string // PEM; all three or none
	MinVersion    uint16
	Names         Names
}

// Trust is what the files said when they were last read. Its methods may be called from any goroutine.
type Trust struct {
	o   Options
	now atomic.Pointer[state]

	mu    sync.Mutex // serializes Reload and Etcd; guards the fields below
	leaf  *ecdsa.PrivateKey
	dir   string   // where the certificate for etcd is; empty: etcd has none of the secret
	hosts []string // in that certificate
	began []string // the secrets whose authorities etcd has known since its start
}

// state is immutable.
type state struct {
	lines   []string
	secrets []netproto.Secret
	pair    *tls.Certificate // nil: no TLS files
	roots   *x509.CertPool
}

// Open reads the files.
func Open(o Options) (*Trust, error) {
	if o.MinVersion == 0 {
		o.MinVersion = tls.VersionTLS13
	}
	if n := given(o.CA) + given(o.Cert) + given(o.Key); n != 0 && n != 3 {
		return nil, errors.New("TLS between nodes needs three files, the authority, the certificate and the key: name all " +
			"three with --cluster-tls-ca, --cluster-tls-cert and --cluster-tls-key")
	}
	t := &Trust{o: o}
	s, err := t.read()
	if err != nil {
		return nil, err
	}
	t.now.Store(s)
	return t, nil
}

func given(file string) int {
	if file == "" {
		return 0
	}
	return 1
}

// Any says whether nodes prove anything to each other.
func (t *Trust) Any() bool { return t.o.SecretFile != "" || t.o.CA != "" }

func (t *Trust) read() (*state, error) {
	s := new(state)
	if t.o.SecretFile != "" {
		lines, err := readSecrets(t.o.SecretFile)
		if err != nil {
			return nil, err
		}
		s.lines = lines
		for _, line := range lines {
			s.secrets = append(s.secrets, handshakeKey(line))
		}
	}
	if t.o.CA == "" {
		return s, nil
	}
	pem, err := os.ReadFile(t.o.CA)
	if err != nil {
		return nil, fmt.Errorf("the file of --cluster-tls-ca cannot be read: %w", err)
	}
	if s.roots = x509.NewCertPool(); !s.roots.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("the file of --cluster-tls-ca, %s, holds no PEM certificate: name the authority's", t.o.CA)
	}
	pair, err := tls.LoadX509KeyPair(t.o.Cert, t.o.Key)
	if err != nil {
		return nil, fmt.Errorf("the files of --cluster-tls-cert and --cluster-tls-key cannot be used: %w", err)
	}
	s.pair = &pair
	return s, nil
}

// Reload reads the files again, for new connections. After an error everything is as it was before.
func (t *Trust) Reload() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	s, err := t.read()
	if err != nil {
		return err
	}
	if t.dir != "" && !slices.ContainsFunc(s.lines, func(line string) bool { return slices.Contains(t.began, line) }) {
		return fmt.Errorf("the embedded etcd of this node began with other secrets than those in %s, and its other members "+
			"may have, too: keep the old secret as the second line, restart the nodes one after the other, and only then "+
			"remove it; the old secrets hold on", t.o.SecretFile)
	}
	if t.dir != "" {
		if err := t.writeCertificate(s.lines); err != nil {
			return err
		}
	}
	t.now.Store(s)
	return nil
}

// Proofs returns for each secret a text that only who has the secret can make, for one cluster: the nodes write them
// into the metadata, which others may read.
func (t *Trust) Proofs(cluster uuid.UUID) (all []string) {
	for _, line := range t.now.Load().lines {
		mac := hmac.New(sha256.New, derive(line, "penstock 1 cluster proof"))
		mac.Write(cluster[:])
		all = append(all, hex.EncodeToString(mac.Sum(nil)))
	}
	return all
}

// Peer is the trust between nodes.
func (t *Trust) Peer() peer.Trust {
	p := peer.Trust{Names: t.o.Names}
	if t.o.SecretFile != "" {
		p.Secrets = func() []netproto.Secret { return t.now.Load().secrets }
	}
	if t.o.CA != "" {
		p.TLS = t.configs
	}
	return p
}

// configs returns the configurations for one handshake. Sessions are not resumed: a resumed one would go on trusting an
// authority that was removed.
func (t *Trust) configs() (server, client *tls.Config) {
	s := t.now.Load()
	pair := []tls.Certificate{*s.pair}
	server = &tls.Config{
		Certificates: pair, MinVersion: t.o.MinVersion, ClientCAs: s.roots, ClientAuth: tls.RequireAndVerifyClientCert,
		SessionTicketsDisabled: true,
	}
	client = &tls.Config{
		Certificates: pair, MinVersion: t.o.MinVersion, RootCAs: s.roots, SessionTicketsDisabled: true,
	}
	return server, client
}

// Etcd returns the files for the embedded etcd's members and for its clients: those for nodes, or, if there is only a
// secret, a certificate for the hosts that is made from it in dir. Nothing: the zero value.
func (t *Trust) Etcd(dir string, hosts []string) (etcd.TLSFiles, error) {
	files := etcd.TLSFiles{MinVersion: t.o.MinVersion, AnyAddress: true}
	if t.o.CA != "" {
		files.CA, files.Cert, files.Key = t.o.CA, t.o.Cert, t.o.Key
		return files, nil
	}
	if t.o.SecretFile == "" {
		return etcd.TLSFiles{}, nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return files, fmt.Errorf("the directory for etcd's certificate cannot be made: %w", err)
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return files, err
	}
	t.leaf, t.dir, t.hosts, t.began = key, dir, hosts, t.now.Load().lines
	node := filepath.Join(dir, nodeName)
	files.CA, files.Cert, files.Key = filepath.Join(dir, authorityName), node, node
	return files, t.writeCertificate(t.began)
}
