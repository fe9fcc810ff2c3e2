package main

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"penstock/nsq"
)

// lookEvery is how often a node looks whether a file of credentials has changed.
const lookEvery = 5 * time.Second

// credentials are the files that say who this node is and whom it trusts: certificates, keys, tokens, the cluster's
// secret. They are read again at SIGHUP, and by themselves when one of them has changed: where secrets are mounted,
// nobody sends a signal. One goroutine uses it.
type credentials struct {
	files []string
	read  func() error // reads all of them; after an error what was read before holds on
	stale func(bool)   // is told whether the files on the disk cannot be used
	log   *slog.Logger
	seen  string // the state of the files when they were read last
	bad   bool   // that failed
}

// state tells two contents of the files apart, also where they are links that somebody turns.
func (c *credentials) state() string {
	var b strings.Builder
	for _, file := range c.files {
		var st syscall.Stat_t
		err := syscall.Stat(file, &st)
		fmt.Fprintln(&b, err, st.Dev, st.Ino, st.Size, st.Mtim.Nano(), st.Ctim.Nano())
	}
	return b.String()
}

// look reads the files if they have changed since they were read, or could not be read then. It says only once of the
// same files that they cannot be used.
func (c *credentials) look() {
	if now := c.state(); now != c.seen || c.bad {
		c.again(now, "a file of credentials has changed", now != c.seen)
	}
}

// again reads the files, whose state was just taken. why says what made it do so.
func (c *credentials) again(now, why string, say bool) {
	c.seen = now
	err := c.read()
	c.bad = err != nil
	c.stale(c.bad)
	switch {
	case err == nil:
		c.log.Info(why + ": certificates and tokens were read again; connections stay")
	case say:
		c.log.Error(why+": reading again failed; what was read before holds on", "error", err)
	}
}

// credentialFiles returns the files that settings name.
func (n *node) credentialFiles() (files []string) {
	t, trust := &n.nsq.TLS, &n.cluster.trust
	for _, file := range []string{
		t.CertFile, t.KeyFile, t.RootCAFile, n.nsq.Auth.File, trust.SecretFile, trust.CA, trust.Cert, trust.Key,
	} {
		if file != "" {
			files = append(files, file)
		}
	}
	return files
}

// reloadOn makes the server read its files of credentials again at each signal, and when they have changed, until the
// returned function is called.
func reloadOn(
	signals chan os.Signal, files []string, certs *certificates, server *nsq.Server, part *clusterPart,
	logger *slog.Logger,
) (stop func()) {
	c := &credentials{
		files: files, log: logger, stale: server.CredentialsStale,
		read: func() error {
			err := errors.Join(server.Reload(), part.reload())
			if err == nil {
				certs.read()
			}
			return err
		},
	}
	c.seen = c.state()
	ended := make(chan struct{})
	ticker := time.NewTicker(lookEvery)
	go func() {
		defer close(ended)
		defer ticker.Stop()
		for {
			select {
			case _, open := <-signals:
				if !open {
					return
				}
				c.again(c.state(), "SIGHUP", true)
			case <-ticker.C:
				c.look()
				certs.tell(time.Now())
			}
		}
	}()
	return func() {
		signal.Stop(signals)
		close(signals)
		<-ended
	}
}
