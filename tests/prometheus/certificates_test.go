//go:build prometheus

package prometheus

import (
	"crypto/tls"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"penstock/internal/cluster/trust"
	"penstock/tests/cluster/harness"
)

// Alerts of certificates and of the files of credentials fire when those of a real node are so, and end when the node
// has read good ones. That of handshakes fires while more clients come than the node lets wait.
func TestFaultsOfCertificates(t *testing.T) {
	dir, pairs := t.TempDir(), 0
	cert, key := filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	// put puts a certificate in place that ends after a time from now.
	put := func(ends time.Duration) {
		t.Helper()
		const years = 5 // of one that trust makes
		pairs++
		made := filepath.Join(dir, fmt.Sprint(pairs))
		_, files, err := trust.Init(made, []trust.Node{{Name: "n", Hosts: []string{"127.0.0.1"}}},
			time.Now().Add(ends).AddDate(-years, 0, 0))
		if err == nil {
			err = errors.Join(os.Rename(files[0].Key, key), os.Rename(files[0].Cert, cert))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	const day = 24 * time.Hour
	good := func() { put(1000 * day) }
	good()
	f := startSingle(t, harness.Options{Serve: append([]string{
		"--https-address", "127.0.0.1:0", "--tls-cert", cert, "--tls-key", key, "--max-tls-handshakes", "1",
	}, small...)})

	f.fault("PenstockCertificateEnds", func() { put(10 * day) }, good)
	f.fault("PenstockCertificateRefused", func() { put(-day) }, good)
	f.fault("PenstockCredentialsStale", func() { f.must(os.WriteFile(key, []byte("half"), 0o600)) }, good)

	ended := make(chan struct{})
	var clients sync.WaitGroup
	f.fault("PenstockHandshakesRefused", func() {
		for range 64 {
			clients.Go(func() {
				for {
					select {
					case <-ended:
						return
					default:
					}
					c, err := tls.Dial("tcp", f.n.Native, &tls.Config{InsecureSkipVerify: true})
					if err == nil {
						_ = c.Close()
					}
				}
			})
		}
	}, func() {
		close(ended)
		clients.Wait()
	})
}
