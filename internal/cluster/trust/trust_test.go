package trust

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"penstock/internal/cluster/etcd"
)

var (
	older = strings.Repeat("an-older-secret.", 3)
	newer = strings.Repeat("a-newer-secret..", 3)
	third = strings.Repeat("a-third-secret..", 3)
)

func secretFile(t *testing.T, lines ...string) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "secret")
	write(t, name, lines...)
	return name
}

func write(t *testing.T, name string, lines ...string) {
	t.Helper()
	if err := os.WriteFile(name, []byte(strings.Join(lines, "\n")+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
}

func open(t *testing.T, o Options) *Trust {
	t.Helper()
	tr, err := Open(o)
	if err != nil {
		t.Fatal(err)
	}
	return tr
}

func TestSecretFile(t *testing.T) {
	for name, lines := range map[string][]string{
		"cannot be read":      nil,
		"has 0 secrets":       {"# nothing", ""},
		"has 3 secrets":       {older, newer, third},
		"a line of":           {"short"},
		"has 31 bytes":        {strings.Repeat("x", MinSecretBytes-1)},
		"has 1025 bytes, and": {strings.Repeat("x", MaxSecretBytes+1)},
	} {
		file := "/does/not/exist"
		if lines != nil {
			file = secretFile(t, lines...)
		}
		if _, err := Open(Options{SecretFile: file}); err == nil || !strings.Contains(err.Error(), name) ||
			strings.Contains(err.Error(), "xxxx") {
			t.Errorf("want %q, got %v", name, err)
		}
	}
	tr := open(t, Options{SecretFile: secretFile(t, "# in use", older, "", "  "+newer+"  ")})
	got := tr.Peer().Secrets()
	if len(got) != 2 || got[0] != handshakeKey(older) || got[1] != handshakeKey(newer) {
		t.Errorf("%d secrets, or others", len(got))
	}
	if _, err := Open(Options{CA: "x", Cert: "y"}); err == nil || !strings.Contains(err.Error(), "three files") {
		t.Errorf("a certificate without a key: %v", err)
	}
}

// The keys that come from a secret never change: otherwise nodes of two versions would not know each other.
func TestDerivedKeys(t *testing.T) {
	key := handshakeKey("0123456789abcdef0123456789abcdef")
	a, err := authorityOf("0123456789abcdef0123456789abcdef")
	if err != nil {
		t.Fatal(err)
	}
	if got := hexOf(key[:8]) + " " + a.cert.Subject.CommonName; got != derivedGolden {
		t.Errorf("%s", got)
	}
}

// member is what one node has for etcd.
type member struct {
	trust *Trust
	file  string
	files etcd.TLSFiles
	pool  *tls.Config // the authorities that etcd read at the node's start
}

func newMember(t *testing.T, lines ...string) *member {
	m := &member{file: secretFile(t, lines...)}
	m.start(t)
	return m
}

func (m *member) start(t *testing.T) {
	t.Helper()
	var err error
	m.trust = open(t, Options{SecretFile: m.file})
	if m.files, err = m.trust.Etcd(t.TempDir(), []string{"127.0.0.1", "node.example"}); err != nil {
		t.Fatal(err)
	}
	pair, roots := loadPair(t, m.files), loadPool(t, m.files.CA)
	m.pool = &tls.Config{
		Certificates: []tls.Certificate{pair}, ClientCAs: roots, RootCAs: roots, ClientAuth: tls.RequireAndVerifyClientCert,
		MinVersion: m.files.MinVersion,
	}
}

// config is as etcd has it: the certificate of now, the authorities of the start.
func (m *member) config(t *testing.T) *tls.Config {
	c := m.pool.Clone()
	c.Certificates = []tls.Certificate{loadPair(t, m.files)}
	c.ServerName = "node.example"
	return c
}

// meet says whether one member, as a client, and another accept each other.
func meet(t *testing.T, client, server *tls.Config) error {
	t.Helper()
	a, b := net.Pipe()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	served := make(chan error, 1)
	go func() {
		s := tls.Server(b, server)
		err := s.HandshakeContext(ctx)
		if err == nil {
			_, err = s.Write([]byte("x"))
		}
		_ = b.Close()
		served <- err
	}()
	c := tls.Client(a, client)
	err := c.HandshakeContext(ctx)
	if err == nil {
		_, err = io.ReadFull(c, make([]byte, 1))
	}
	_ = a.Close()
	return errors.Join(err, <-served)
}

// Members with the same secret accept each other's certificates, in every state while the secret is replaced; others
// are strangers.
func TestEtcdCertificates(t *testing.T) {
	for _, c := range []struct {
		name string
		a, b []string
		want bool
	}{
		{"the same", []string{older}, []string{older}, true},
		{"different", []string{older}, []string{newer}, false},
		{"one has both", []string{older}, []string{older, newer}, true},
		{"one sends the newer", []string{older}, []string{newer, older}, true},
		{"both have both", []string{older, newer}, []string{newer, older}, true},
		{"the older is gone here", []string{newer, older}, []string{newer}, true},
		{"the older is sent there", []string{older, newer}, []string{newer}, true},
		{"a third", []string{older, newer}, []string{third}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			a, b := newMember(t, c.a...), newMember(t, c.b...)
			for _, pair := range [][2]*member{{a, b}, {b, a}} {
				if err := meet(t, pair[0].config(t), pair[1].config(t)); (err == nil) != c.want {
					t.Errorf("%v", err)
				}
			}
			wrong := a.config(t)
			wrong.ServerName = "other.example"
			if err := meet(t, wrong, b.config(t)); err == nil {
				t.Error("a certificate for another host was accepted")
			}
		})
	}
}

// A member whose secret is replaced by SIGHUP goes on with members that were not told yet, and refuses the step that
// would cut it off.
func TestReloadOfSecret(t *testing.T) {
	a, b := newMember(t, older), newMember(t, older)
	for _, lines := range [][]string{{older, newer}, {newer, older}} {
		write(t, a.file, lines...)
		if err := a.trust.Reload(); err != nil {
			t.Fatal(err)
		}
		if got := a.trust.Peer().Secrets(); len(got) != 2 || got[0] != handshakeKey(lines[0]) {
			t.Errorf("the node port has %d secrets, or the wrong one first", len(got))
		}
		if err := errors.Join(meet(t, a.config(t), b.config(t)), meet(t, b.config(t), a.config(t))); err != nil {
			t.Errorf("%q: %v", lines, err)
		}
	}
	write(t, a.file, newer)
	if err := a.trust.Reload(); err == nil || !strings.Contains(err.Error(), "restart the nodes one after the other") {
		t.Errorf("the older secret was given up at once: %v", err)
	}
	if len(a.trust.Peer().Secrets()) != 2 {
		t.Error("a reload that failed changed something")
	}
	for _, m := range []*member{a, b} { // with both lines, one after the other
		write(t, m.file, newer, older)
		m.start(t)
		if err := errors.Join(meet(t, a.config(t), b.config(t)), meet(t, b.config(t), a.config(t))); err != nil {
			t.Error(err)
		}
	}
	write(t, a.file, newer)
	if err := a.trust.Reload(); err != nil {
		t.Error(err)
	}
	if err := errors.Join(meet(t, a.config(t), b.config(t)), meet(t, b.config(t), a.config(t))); err != nil {
		t.Error(err)
	}
}

// Init makes files with which nodes accept each other, and never overwrites one.
func TestInit(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "tls")
	ca, files, err := Init(dir, []Node{
		{"n1", []string{"127.0.0.1", "one.example"}}, {"n2", []string{"two.example"}},
	}, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{ca, filepath.Join(dir, "ca-key.pem"), files[0].Key, files[1].Cert} {
		if st, err := os.Stat(name); err != nil || st.Mode().Perm() != 0o600 {
			t.Errorf("%s: %v, %v", name, st, err)
		}
	}
	nodes := make([]*Trust, 2)
	for i, f := range files {
		nodes[i] = open(t, Options{CA: ca, Cert: f.Cert, Key: f.Key})
	}
	between := func(a, b *Trust, host string) error {
		_, client := a.Peer().TLS()
		server, _ := b.Peer().TLS()
		client.ServerName = host
		return meet(t, client, server)
	}
	if err := between(nodes[0], nodes[1], "two.example"); err != nil {
		t.Error(err)
	}
	if err := between(nodes[1], nodes[0], "127.0.0.1"); err != nil {
		t.Error(err)
	}
	if err := between(nodes[0], nodes[1], "one.example"); err == nil {
		t.Error("the certificate of n2 is taken for that of one.example")
	}
	for name, again := range map[string][]Node{
		"exists already": {{"n3", nil}, {"n1", nil}}, "cannot be the name": {{"../x", nil}},
	} {
		if _, _, err := Init(dir, again, time.Now()); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("want %q, got %v", name, err)
		}
	}
	if _, err := os.Stat(filepath.Join(dir, "n3.pem")); err == nil {
		t.Error("something was made although a file exists")
	}
	_, more, err := Init(dir, []Node{{"n3", []string{"127.0.0.1"}}}, time.Now()) // the authority signs one more
	if err != nil {
		t.Fatal(err)
	}
	late := open(t, Options{CA: ca, Cert: more[0].Cert, Key: more[0].Key})
	if err := between(nodes[1], late, "127.0.0.1"); err != nil {
		t.Error(err)
	}
	// Certificates of another authority are strangers, until the files are replaced and read again.
	other := filepath.Join(t.TempDir(), "tls")
	otherCA, theirs, err := Init(other, []Node{{"n1", []string{"127.0.0.1"}}}, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	stranger := open(t, Options{CA: otherCA, Cert: theirs[0].Cert, Key: theirs[0].Key})
	if between(stranger, late, "127.0.0.1") == nil || between(late, stranger, "127.0.0.1") == nil {
		t.Error("a certificate of another authority was accepted")
	}
	for from, to := range map[string]string{ca: otherCA, more[0].Cert: theirs[0].Cert, more[0].Key: theirs[0].Key} {
		p, err := os.ReadFile(from)
		if err == nil {
			err = os.WriteFile(to, p, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := stranger.Reload(); err != nil {
		t.Error(err)
	}
	if err := errors.Join(between(stranger, late, "127.0.0.1"), between(late, stranger, "127.0.0.1")); err != nil {
		t.Error(err)
	}
}

// A proof follows from the secret and the cluster, and from nothing else.
func TestProofs(t *testing.T) {
	proofs := func(cluster uuid.UUID, lines ...string) []string {
		t.Helper()
		name := filepath.Join(t.TempDir(), "secret")
		if err := os.WriteFile(name, []byte(strings.Join(lines, "\n")), 0o600); err != nil {
			t.Fatal(err)
		}
		trust, err := Open(Options{SecretFile: name})
		if err != nil {
			t.Fatal(err)
		}
		return trust.Proofs(cluster)
	}
	a, b := strings.Repeat("a", 40), strings.Repeat("b", 40)
	one, other := uuid.UUID{1}, uuid.UUID{2}
	both := proofs(one, a, b)
	if len(both) != 2 || both[0] != proofs(one, a)[0] || both[1] != proofs(one, b)[0] || both[0] == both[1] {
		t.Errorf("%v", both)
	}
	if both[0] == proofs(other, a)[0] {
		t.Error("the proof of one cluster is that of another")
	}
	if plain, err := Open(Options{}); err != nil || plain.Proofs(one) != nil {
		t.Error("a node without a secret proves something", err)
	}
}
