//go:build attacks

package attacks

import (
	"bytes"
	"crypto/rand"
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"io"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"penstock/internal/shares"
)

// What somebody can do who has no token.
var byStrangers = map[string]*attack{
	shares.BeforeAuth.Name: {
		run: func(a *assault) {
			a.often(300, func(int) { a.silent(a.node.NSQ, "  V2") })
			a.often(8, func(int) { // and some connect as fast as they can
				if nc, err := a.connects(a.node.NSQ); err == nil {
					_, _ = nc.Write([]byte("  V2"))
					_ = nc.Close()
				}
			})
		},
	},
	shares.NativeProofs.Name: {
		run:   func(a *assault) { a.often(1200, func(int) { a.silent(a.node.Native, "") }) },
		other: nativeLogin,
	},
	shares.HTTPWaiting.Name: {
		run:   func(a *assault) { a.often(6000, func(int) { a.silent(a.node.HTTP, "") }) },
		other: func(n *node) error { return n.getsIn("/ping") },
	},
	shares.Descriptors.Name: {
		files: 1500, before: true,
		run: func(a *assault) {
			a.often(1000, func(int) { a.silent(a.node.HTTP, "") })
			a.often(1000, func(int) { a.silent(a.node.NSQ, "  V2") })
			a.often(1000, func(int) { a.silent(a.node.Native, "") })
		},
		other: func(n *node) error { // a topic needs files
			return n.newTopic("good")
		},
	},
	shares.NodeProofs.Name: {
		cluster: true,
		run: func(a *assault) {
			a.often(500, func(int) { a.silent(a.node.peer, "") })
		},
	},
	shares.EtcdConnections.Name: {
		cluster: true,
		run:     func(a *assault) { a.often(3000, func(int) { a.silent(a.node.etcd, "") }) },
		other:   onlySometimes(20, func(n *node) error { return n.newTopic("good") }), // which etcd stores
	},
	shares.TLSHandshakes.Name: {
		certificates: true,
		run: func(a *assault) {
			hello := clientHello()
			a.often(64, func(int) {
				nc, err := a.connects(a.node.https)
				if err != nil {
					return
				}
				defer nc.Close()
				_, _ = nc.Write(hello)
				_ = nc.SetReadDeadline(time.Now().Add(time.Second))
				_, _ = nc.Read(make([]byte, 1)) // the answer that costs the node its computing
			})
		},
	},
	shares.CostlyAnswers.Name: {
		waits: true,
		flags: []string{"--open-pages"},
		setUp: func(n *node) {
			for i := range 200 {
				n.create(fmt.Sprintf("good-%d", i), 1)
			}
		},
		run: func(a *assault) {
			c := client(attacker)
			a.often(16, func(int) { _, _, _ = request(c, "GET", "http://"+a.node.HTTP+"/stats?format=json", "", "") })
		},
		other: func(n *node) error { return n.getsIn("/stats?format=json&topic=good") },
	},
	shares.UnreadAnswers.Name: {
		late:  true,
		flags: []string{"--open-pages"},
		setUp: func(n *node) {
			for i := range 200 {
				n.create(fmt.Sprintf("good-%d", i), 1)
			}
		},
		run: func(a *assault) {
			a.often(64, func(int) {
				a.deaf(a.node.HTTP, strings.Repeat("GET /stats?format=json HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n", 20))
			})
		},
		other: func(n *node) error { return n.getsIn("/stats?format=json&topic=good") },
	},
	shares.LogLines.Name: {
		run: func(a *assault) {
			c := client(attacker)
			a.often(4, func(int) {
				if c, err := login(attacker, a.node.NSQ, "guess"); err == nil {
					_ = c.Close()
				}
			})
			a.often(4, func(int) { _, _, _ = request(c, "GET", "http://"+a.node.HTTP+"/config", "guess", "") })
			a.often(2, func(int) { a.silent(a.node.Native, "GET / HTTP/1.1\r\n\r\n") })
			a.often(2, func(int) { a.silent(a.node.NSQ, "GET / HTTP/1.1\r\n\r\n") })
		},
		after: func(n *node, count int) {
			log, err := os.ReadFile(n.LogPath)
			if err != nil {
				n.t.Fatal(err)
			}
			if lines := bytes.Count(log, []byte("\n")); lines > 200 || count < 100 {
				n.t.Errorf("%d connections and requests made %d lines of %d bytes", count, lines, len(log))
			}
		},
	},
	shares.AuditEntries.Name: {
		flags: []string{"--max-audit-entries", "400"},
		setUp: func(n *node) { n.create("good-change", 1) },
		run: func(a *assault) {
			c := client(attacker)
			a.often(4, func(i int) {
				token := []string{"", "guess", "mallory", "good"}[i]
				_, _, _ = request(c, "POST", "http://"+a.node.HTTP+"/topic/delete?topic=other", token, "")
			})
		},
		after: func(n *node, count int) {
			if _, text := n.ask("GET", "/audit", "root", ""); !strings.Contains(text, "good-change") {
				n.t.Errorf("%d refusals have emptied the audit of changes", count)
			}
		},
	},
}

// deaf sends requests and does not read what is answered.
func (a *assault) deaf(to, requests string) {
	nc, err := a.connects(to)
	if err != nil {
		return
	}
	defer nc.Close()
	_ = nc.(*net.TCPConn).SetReadBuffer(4096)
	_, _ = io.WriteString(nc, requests)
	select {
	case <-a.ctx.Done():
	case <-time.After(time.Second):
	}
}

// getsIn asks with the neighbor's token.
func (n *node) getsIn(path string) error {
	code, text, err := request(client(neighbor), "GET", "http://"+n.HTTP+path, "good", "")
	if err == nil && code != 200 {
		err = fmt.Errorf("%s: %d %.200s", path, code, text)
	}
	return err
}

// clientHello returns the first bytes of a TLS client.
func clientHello() []byte {
	here, there := net.Pipe()
	defer here.Close()
	go func() {
		_ = tls.Client(there, &tls.Config{InsecureSkipVerify: true}).Handshake() //nolint:errcheck // it gets no answer
		_ = there.Close()
	}()
	hello := make([]byte, 4096)
	n, _ := here.Read(hello)
	return hello[:n]
}

// selfSigned writes a certificate for 127.0.0.1 and its key.
func selfSigned(t *testing.T) (cert, key string) {
	t.Helper()
	private, err := rsa.GenerateKey(rand.Reader, 4096) // which costs the node more than others
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, private.Public(), private)
	if err != nil {
		t.Fatal(err)
	}
	secret, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	cert, key = filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	for name, block := range map[string]*pem.Block{
		cert: {Type: "CERTIFICATE", Bytes: der}, key: {Type: "PRIVATE KEY", Bytes: secret},
	} {
		if err := os.WriteFile(name, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return cert, key
}
