package main

import (
	"crypto/tls"
	"io"
	"log"
	"strings"
	"syscall"
	"testing"

	gonsq "github.com/nsqio/go-nsq"
)

// Clients of nsqd that know TLS only by go-nsq's options offer 1.2 at most. They can use what takes nsqd's place with
// nsqd's own flags, unless somebody asks for a newer version. Native clients need 1.3.
func TestNSQDServesTLSOfItsClients(t *testing.T) {
	cert, key := writeCertificate(t, t.TempDir(), "node")
	for _, x := range []struct {
		name, flag, env string
		nsq, native     bool // whether TLS 1.2 is accepted
	}{
		{name: "nsqd's flags", nsq: true},
		{name: "tls1.0", flag: "-tls-min-version=tls1.0", nsq: true, native: true},
		{name: "tls1.3", flag: "-tls-min-version=tls1.3"},
		{name: "1.3 by a variable", env: "1.3"},
	} {
		t.Run(x.name, func(t *testing.T) {
			t.Setenv("PENSTOCK_NATIVE_ADDRESS", "127.0.0.1:0")
			if x.env != "" {
				t.Setenv("PENSTOCK_TLS_MIN_VERSION", x.env)
			}
			args := []string{"-tls-cert", cert, "-tls-key", key, "-tls-required=tcp-https"}
			if x.flag != "" {
				args = append(args, x.flag)
			}
			p := startNSQD(t, t.TempDir(), args...)
			cfg := gonsq.NewConfig()
			must(t, cfg.Set("tls_v1", true))
			must(t, cfg.Set("tls_root_ca_file", cert))
			producer, err := gonsq.NewProducer(p.nsq, cfg)
			must(t, err)
			defer producer.Stop()
			producer.SetLogger(log.New(io.Discard, "", 0), gonsq.LogLevelError)
			err = producer.Publish("orders", []byte("a loaf"))
			if (err == nil) != x.nsq || err != nil && !strings.Contains(err.Error(), "protocol version") {
				t.Errorf("go-nsq publishes over TLS with its own options: %v", err)
			}

			address := p.native()
			for version, want := range map[uint16]bool{tls.VersionTLS12: x.native, tls.VersionTLS13: true} {
				c, err := tls.Dial("tcp", address, &tls.Config{InsecureSkipVerify: true, MaxVersion: version})
				if err == nil {
					must(t, c.Close())
				}
				if (err == nil) != want {
					t.Errorf("a native client offers %s: %v", tls.VersionName(version), err)
				}
			}
			if code := p.end(syscall.SIGTERM); code != 0 {
				t.Errorf("exit code %d:\n%s", code, p.log)
			}
		})
	}
}
