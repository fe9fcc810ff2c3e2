package netproto

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"strings"
	"testing"
)

var (
	testSecret  = Secret{0: 0x5E, 31: 0x01}
	otherSecret = Secret{0: 0x5E, 31: 0x02}
)

func secrets(all ...Secret) edit {
	return func(o *Options) { o.Secrets = func() []Secret { return all } }
}

// try runs a handshake over real sockets and returns what each side made of it.
func try(t *testing.T, left, right Options) (dialed, accepted error) {
	t.Helper()
	an, bn := tcpPair(t)
	done := make(chan error, 1)
	go func() {
		c, err := Accept(context.Background(), bn, right)
		if err == nil {
			t.Cleanup(func() { c.Abort(nil); <-c.Done() })
		}
		done <- err
	}()
	c, err := Connect(context.Background(), an, left)
	if err == nil {
		t.Cleanup(func() { c.Abort(nil); <-c.Done() })
	}
	return err, <-done
}

// A connection comes about only between sides that share a secret, or have none; whoever is refused learns why.
func TestSecrets(t *testing.T) {
	for _, c := range []struct {
		name        string
		left, right edit
		want        error  // on both sides; nil: they connect
		says        string // in the error of the side that connected
	}{
		{"none", secrets(), secrets(), nil, ""},
		{"the same", secrets(testSecret), secrets(testSecret), nil, ""},
		{"different", secrets(testSecret), secrets(otherSecret), ErrUnproven, "the peer has another secret"},
		{"only the one that connects", secrets(testSecret), secrets(), ErrUnproven, "this side has none"},
		{"only the one that accepts", secrets(), secrets(testSecret), ErrUnproven, "the peer has none"},
		// a secret is replaced: each of these states meets its neighbours
		{"old, old and new", secrets(testSecret), secrets(testSecret, otherSecret), nil, ""},
		{"old and new, old", secrets(testSecret, otherSecret), secrets(testSecret), nil, ""},
		{"old and new, new and old", secrets(testSecret, otherSecret), secrets(otherSecret, testSecret), nil, ""},
		{"new and old, new", secrets(otherSecret, testSecret), secrets(otherSecret), nil, ""},
		{"new, new and old", secrets(otherSecret), secrets(otherSecret, testSecret), nil, ""},
		{"old, new", secrets(testSecret), secrets(otherSecret), ErrUnproven, "give every node the same secret"},
		// the dialer proves the old one, which is accepted; the other side answers with the new one, unknown here
		{"old, new and old", secrets(testSecret), secrets(otherSecret, testSecret), ErrUnproven, "does not prove"},
	} {
		t.Run(c.name, func(t *testing.T) {
			dialed, accepted := try(t, testOptions("n9", newSink(nil), c.left), testOptions("n2", newSink(nil), c.right))
			if !errors.Is(dialed, c.want) || c.want != nil && !strings.Contains(dialed.Error(), c.says) {
				t.Errorf("the side that connected: %v", dialed)
			}
			if c.name != "old, new and old" && !errors.Is(accepted, c.want) {
				t.Errorf("the side that accepts: %v", accepted)
			}
		})
	}
	noGoroutines(t)
}

// A secret does not replace the other checks, and these come after it.
func TestSecretAndOtherCluster(t *testing.T) {
	other := func(o *Options) { o.Hello.Cluster[3] = 7 }
	dialed, accepted := try(t, testOptions("n9", newSink(nil), secrets(testSecret), other),
		testOptions("n2", newSink(nil), secrets(testSecret)))
	mustBe(t, dialed, ErrWrongCluster)
	mustBe(t, accepted, ErrWrongCluster)
	dialed, accepted = try(t, testOptions("n9", newSink(nil), secrets(otherSecret), other),
		testOptions("n2", newSink(nil), secrets(testSecret), func(o *Options) {
			o.Admit = func(*Hello) error { t.Error("a stranger was looked at"); return nil }
		}))
	mustBe(t, dialed, ErrUnproven)
	mustBe(t, accepted, ErrUnproven)
}

// stranger is a peer in a test that speaks the handshake without this package's Connect and Accept.
type stranger struct {
	t *testing.T
	net.Conn
}

func (s stranger) send(typ Type, status Status, payload []byte) {
	s.t.Helper()
	if err := writeFrame(s, typ, status, payload); err != nil {
		s.t.Fatal(err)
	}
}

func (s stranger) read(typ Type) []byte {
	s.t.Helper()
	h, payload, err := readFrame(s)
	if err != nil || h.Type != typ {
		s.t.Fatalf("a %v came, %v; want a %v", h.Type, err, typ)
	}
	return payload
}

// facing runs Accept or Connect with a secret against a stranger.
func facing(t *testing.T, side func(context.Context, net.Conn, Options) (*Conn, error)) (stranger, <-chan error) {
	t.Helper()
	an, bn := tcpPair(t)
	done := make(chan error, 1)
	go func() {
		c, err := side(context.Background(), bn, testOptions("node-two", newSink(nil), secrets(testSecret)))
		if err == nil {
			c.Abort(nil)
			<-c.Done()
		}
		done <- err
	}()
	return stranger{t, an}, done
}

func helloWithNonce() []byte {
	h := testHello("n9")
	h.demandProof()
	return h.AppendTo(nil)
}

// A proof holds in one handshake, for one Hello and from one side: nothing that was seen on the wire opens another.
func TestForgedProofs(t *testing.T) {
	hello, right := helloWithNonce(), func(hello, nonce []byte) []byte {
		proof := testSecret.mac(labelDialer, hello, nonce, nil)
		return proof[:]
	}
	var recorded []byte
	for _, c := range []struct {
		name  string
		proof func(nonce []byte) []byte
		want  error
	}{
		{"right", func(nonce []byte) []byte { recorded = right(hello, nonce); return recorded }, nil},
		{"replayed", func([]byte) []byte { return recorded }, ErrUnproven},
		{"for another hello", func(nonce []byte) []byte { return right(helloWithNonce(), nonce) }, ErrUnproven},
		{"of the other side", func(nonce []byte) []byte {
			proof := testSecret.mac(labelAcceptor, hello, nonce, nil)
			return proof[:]
		}, ErrUnproven},
		{"the challenge itself", bytes.Clone, ErrUnproven},
		{"zero", func([]byte) []byte { return make([]byte, authBytes) }, ErrUnproven},
		{"one bit wrong", func(nonce []byte) []byte {
			p := right(hello, nonce)
			p[authBytes-1] ^= 1
			return p
		}, ErrUnproven},
		{"truncated", func(nonce []byte) []byte { return right(hello, nonce)[:authBytes-1] }, ErrInvalid},
		{"empty", func([]byte) []byte { return nil }, ErrInvalid},
	} {
		t.Run(c.name, func(t *testing.T) {
			s, done := facing(t, Accept)
			s.send(TypeHello, StatusOK, hello)
			s.send(TypeProof, StatusOK, c.proof(s.read(TypeChallenge)))
			answer := s.read(TypeHelloAck)
			mustBe(t, <-done, c.want)
			if c.want != nil {
				showsNothing(t, answer)
			}
		})
	}
}

// showsNothing checks that bytes which a stranger gets have no identity in them (O9).
func showsNothing(t *testing.T, p []byte) {
	t.Helper()
	for _, secret := range [][]byte{
		testCluster[:], testStore[:], testBoot[:], []byte("node-two"), []byte(testCluster.String()),
		[]byte(testStore.String()),
	} {
		if bytes.Contains(p, secret) {
			t.Errorf("a stranger is told %q in %q", secret, p)
		}
	}
}

// A side that connects is not taken in by one that accepts and does not have the secret.
func TestForgedAcceptor(t *testing.T) {
	ack := testHello("n9")
	ack.Chosen = 1
	plain := ack.AppendTo(nil)
	ack.demandProof()
	for _, c := range []struct {
		name   string
		answer func(s stranger, hello []byte)
		want   error
	}{
		{"no challenge", func(s stranger, _ []byte) { s.send(TypeHelloAck, StatusOK, plain) }, ErrUnproven},
		{"no proof", func(s stranger, _ []byte) {
			s.send(TypeChallenge, StatusOK, make([]byte, authBytes))
			s.read(TypeProof)
			s.send(TypeHelloAck, StatusOK, plain)
		}, ErrUnproven},
		{"the dialer's own proof", func(s stranger, _ []byte) { // reflected
			s.send(TypeChallenge, StatusOK, make([]byte, authBytes))
			p := ack.AppendTo(nil)
			s.send(TypeHelloAck, StatusOK, append(p[:len(p)-authBytes], s.read(TypeProof)...))
		}, ErrUnproven},
		{"another secret", func(s stranger, hello []byte) {
			nonce := make([]byte, authBytes)
			s.send(TypeChallenge, StatusOK, nonce)
			s.read(TypeProof)
			s.send(TypeHelloAck, StatusOK, sealAck(&ack, []Secret{otherSecret}, hello, nonce))
		}, ErrUnproven},
		{"other words under a right proof", func(s stranger, hello []byte) {
			nonce := make([]byte, authBytes)
			s.send(TypeChallenge, StatusOK, nonce)
			s.read(TypeProof)
			p := sealAck(&ack, []Secret{testSecret}, hello, nonce)
			p[offStore]++
			s.send(TypeHelloAck, StatusOK, p)
		}, ErrUnproven},
		{"short challenge", func(s stranger, _ []byte) {
			s.send(TypeChallenge, StatusOK, make([]byte, authBytes-1))
		}, ErrInvalid},
		{"an older version", func(s stranger, hello []byte) {
			self := testHello("n9")
			peer, err := ParseHello(hello)
			if err != nil {
				t.Fatal(err)
			}
			_, err = negotiate(&self, &peer) // as versions without secrets do
			self.Text = err.Error()
			s.send(TypeHelloAck, StatusVersionMismatch, self.AppendTo(nil))
		}, ErrUnproven},
		{"overloaded", func(s stranger, _ []byte) {
			h := ack.anonymous("later")
			s.send(TypeHelloAck, StatusOverloaded, h.AppendTo(nil))
		}, ErrRefused},
	} {
		t.Run(c.name, func(t *testing.T) {
			s, done := facing(t, Connect)
			c.answer(s, s.read(TypeHello))
			mustBe(t, <-done, c.want)
		})
	}
}

// What an older version, which knows no secret, sends and gets.
func TestSecretAgainstOlderVersion(t *testing.T) {
	s, done := facing(t, Accept)
	hello := testHello("n9")
	s.send(TypeHello, StatusOK, hello.AppendTo(nil))
	payload := s.read(TypeHelloAck)
	refusal, err := ParseHello(payload)
	if err != nil || !strings.Contains(refusal.Text, "the cluster's secret is required here") {
		t.Errorf("it is told %q, %v", refusal.Text, err)
	}
	showsNothing(t, payload)
	mustBe(t, <-done, ErrUnproven)
}

// A node that speaks TLS at one that does not is told so.
func TestTLSWhereNoneIs(t *testing.T) {
	s, done := facing(t, Accept)
	if _, err := io.WriteString(s, "\x16\x03\x01"+strings.Repeat("x", 200)); err != nil {
		t.Fatal(err)
	}
	if err := <-done; !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), "speaks TLS") {
		t.Errorf("%v", err)
	}
}

// heard is a script that keeps what is written to it.
type heard struct {
	script
	bytes.Buffer
}

func (h *heard) Read(p []byte) (int, error)  { return h.script.Read(p) }
func (h *heard) Write(p []byte) (int, error) { return h.Buffer.Write(p) }

// FuzzStranger: whatever a side without the secret sends, it is not let in, and learns nothing.
func FuzzStranger(f *testing.F) {
	hello := rawFrame(Header{Type: TypeHello}, helloWithNonce())
	f.Add(append(bytes.Clone(hello), rawFrame(Header{Type: TypeProof}, make([]byte, authBytes))...), true)
	f.Add(append(bytes.Clone(hello), hello...), true)
	f.Add(seedFrames()[0], false)
	f.Add(rawFrame(Header{Type: TypeChallenge}, make([]byte, authBytes)), true)
	f.Fuzz(func(t *testing.T, data []byte, fix bool) {
		if fix {
			data = repair(bytes.Clone(data))
		}
		h := &heard{script: script{data: bytes.Clone(data), rnd: rand.New(rand.NewPCG(1, 2))}}
		c, err := Accept(t.Context(), h, testOptions("node-two", newSink(nil), secrets(testSecret)))
		if err == nil {
			c.Abort(nil)
			t.Fatal("a stranger was let in")
		}
		if !bytes.Contains(data, testCluster[:]) { // else it may be told what it said itself
			showsNothing(t, h.Bytes())
		}
		h = &heard{script: script{data: data, rnd: rand.New(rand.NewPCG(1, 2))}}
		if c, err = Connect(t.Context(), h, testOptions("node-two", newSink(nil), secrets(testSecret))); err == nil {
			c.Abort(nil)
			t.Fatal("a stranger was trusted")
		}
	})
}
