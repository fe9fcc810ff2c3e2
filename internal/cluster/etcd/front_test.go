package etcd

import (
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"testing"
	"time"
)

// config is that of a client; nil: no TLS.
func (f TLSFiles) config() (*tls.Config, error) {
	r, err := f.read()
	if r == nil {
		return nil, err
	}
	return r.config, err
}

// visitor asks over HTTP from an address of loopback, with the cluster's certificate if there is one.
func visitor(t *testing.T, files TLSFiles, from string) *http.Client {
	t.Helper()
	config, err := files.config()
	if err != nil {
		t.Fatal(err)
	}
	return &http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{
		DisableKeepAlives: true, TLSClientConfig: config,
		DialContext: (&net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}).DialContext,
	}}
}

// crowd opens connections from 127.0.0.1 to the addresses, and says nothing on them. leave closes them.
func crowd(t *testing.T, count int, addresses ...string) (leave func()) {
	t.Helper()
	var all []net.Conn
	leave = func() {
		for _, nc := range all {
			_ = nc.Close()
		}
	}
	t.Cleanup(leave)
	for range count {
		for _, address := range addresses {
			nc, err := net.DialTimeout("tcp", address, enough)
			if err != nil {
				t.Fatalf("connection %d to %s: %v", len(all), address, err)
			}
			all = append(all, nc)
		}
	}
	return leave
}

// Silent connections, several times as many as the process may have files, are at both ports of a member. One of
// another address gets in meanwhile; when they are gone all is as before, and while they are there the member ends.
func TestStrangersAtThePorts(t *testing.T) {
	t.Parallel()
	secured := certificates(t)
	secured.AnyAddress = true
	for name, files := range map[string]TLSFiles{"plain": {}, "with certificates": secured} {
		t.Run(name, func(t *testing.T) {
			c := newCluster(t, 1)
			c.tls = files
			const limit = 512
			child := startChildWith(t, c.options(0), fmt.Sprintf("ulimit -n %d", limit))
			child.ready(t)
			v := c.voters[0]
			s := c.dial(Options{TLS: c.tls}, 0)
			leave := crowd(t, 3*limit, v.Peer, v.Client)
			other := visitor(t, c.tls, "127.0.0.2")
			for port, at := range map[string]string{"peer": v.Peer + "/members", "client": v.Client + saysPath} {
				answer, err := other.Get(c.tls.scheme() + "://" + at)
				if err != nil {
					t.Errorf("while strangers are at the %s port: %v", port, err)
					continue
				}
				_ = answer.Body.Close()
			}
			put(t, s, "a", "1")
			leave()
			here := visitor(t, c.tls, "127.0.0.1")
			for port, at := range map[string]string{"peer": v.Peer + "/members", "client": v.Client + saysPath} {
				for again := within(t, enough); ; {
					answer, err := here.Get(c.tls.scheme() + "://" + at)
					if err == nil {
						_ = answer.Body.Close()
						break
					}
					if !pause(again, probePause) {
						t.Errorf("%v after the strangers have left, the %s port: %v", enough, port, err)
						break
					}
				}
			}

			crowd(t, 3*limit, v.Peer, v.Client)
			began := time.Now()
			_ = child.stdin.Close()
			ended := make(chan error, 1)
			go func() { ended <- child.cmd.Wait() }()
			select {
			case err := <-ended:
				t.Logf("with strangers at its ports it ends after %v, %v", time.Since(began), err)
			case <-time.After(10 * time.Second):
				t.Error("with strangers at its ports the process does not end")
			}
		})
	}
}
