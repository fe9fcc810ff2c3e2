package serve

import (
	"crypto/x509"
	"encoding/pem"
	"log/slog"
	"net"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"penstock/internal/cluster/trust"
	"penstock/internal/node/health"
)

// remindEvery is how often a certificate that ends soon, or that nobody takes, is in the log.
const remindEvery = 24 * time.Hour

// certificateFile is a file of certificates that a setting names. Of a file of authorities every one counts for itself;
// of another the certificates are a chain, which is valid only as a whole.
type certificateFile struct {
	setting, name string
	authorities   bool
}

// readCertificates is what a certificateFile held when it was read.
type readCertificates struct {
	certificateFile
	certs []*x509.Certificate // at least one
}

// certificates knows how long the files of certificates are valid that this node uses. serve makes it before it opens
// anything, and credentials reads the files again; any goroutine calls all.
type certificates struct {
	files []certificateFile
	log   *slog.Logger
	held  atomic.Pointer[[]readCertificates]
	told  map[string]reminded // by setting; only who reads uses it

	startup *health.Startup // is told what may keep the start from its end
	noted   []string        // of it
}

// reminded is when a certificate was in the log last, and what was said of it.
type reminded struct {
	at time.Time
	of health.Validity
}

// certificatesOf returns those of the files that hold certificates.
func certificatesOf(files []credentialFile, logger *slog.Logger) *certificates {
	c := &certificates{log: logger, told: make(map[string]reminded)}
	for _, f := range files {
		if f.holds != holdsSecret {
			c.files = append(c.files, certificateFile{f.setting, f.name, f.holds == holdsAuthorities})
		}
	}
	return c
}

// read reads the files, after the node has taken what is in them. One that holds no certificate is left out: who uses
// it says so.
func (c *certificates) read() {
	held := make([]readCertificates, 0, len(c.files))
	for _, f := range c.files {
		if certs := parseCertificates(f.name); len(certs) > 0 {
			held = append(held, readCertificates{f, certs})
		}
	}
	c.held.Store(&held)
}

// readAgain reads the files of the settings, which the node has just taken. Of the others it keeps what it has: that is
// what the node uses, whatever is on the disk. One goroutine at a time calls it.
func (c *certificates) readAgain(settings []string) {
	var held []readCertificates
	for _, f := range c.files {
		if slices.Contains(settings, f.setting) {
			if certs := parseCertificates(f.name); len(certs) > 0 {
				held = append(held, readCertificates{f, certs})
			}
			continue
		}
		for _, r := range *c.held.Load() {
			if r.setting == f.setting {
				held = append(held, r)
			}
		}
	}
	c.held.Store(&held)
}

func parseCertificates(name string) (certs []*x509.Certificate) {
	data, err := os.ReadFile(name)
	if err != nil {
		return nil
	}
	for {
		var block *pem.Block
		if block, data = pem.Decode(data); block == nil {
			return certs
		}
		if cert, err := x509.ParseCertificate(block.Bytes); err == nil && block.Type == "CERTIFICATE" {
			certs = append(certs, cert)
		}
	}
}

// all returns how long each file is valid. A file of authorities is as good as the next of them to end: what that one
// has signed ends with it. One that has ended does not count while another goes on.
func (c *certificates) all() []health.Certificate { return c.at(time.Now()) }

func (c *certificates) at(now time.Time) []health.Certificate {
	var out []health.Certificate
	for _, r := range *c.held.Load() {
		one := health.Certificate{Setting: r.setting, File: r.name, From: r.certs[0].NotBefore, Until: r.certs[0].NotAfter}
		for _, cert := range r.certs[1:] {
			switch next := (health.Certificate{From: cert.NotBefore, Until: cert.NotAfter}); {
			case !r.authorities:
				one.From, one.Until = later(one.From, next.From), earlier(one.Until, next.Until)
			case one.At(now) >= health.CertificateNotYet && next.At(now) < one.At(now),
				next.At(now) < health.CertificateNotYet && next.Until.Before(one.Until):
				one.From, one.Until = next.From, next.Until
			}
		}
		out = append(out, one)
	}
	return out
}

func later(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}

func earlier(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}

// warnOfNames says which addresses that this node announces a certificate does not cover: whoever dials them refuses
// it. other is how to announce another host. Only the start calls it.
func (c *certificates) warnOfNames(setting, other string, announced ...string) {
	for _, r := range *c.held.Load() {
		if r.setting != setting {
			continue
		}
		var missing []string
		for _, address := range announced {
			host, _, err := net.SplitHostPort(address)
			if err == nil && !slices.Contains(missing, host) && r.certs[0].VerifyHostname(host) != nil {
				missing = append(missing, host)
			}
		}
		if len(missing) > 0 {
			words := "the certificate " + r.name + " of " + setting + " is not for " + strings.Join(missing, ", ") +
				", which this node announces: whoever dials that and checks the certificate refuses it; nothing that is " +
				"stored is affected; use a certificate for it, or announce another host with " + other
			c.log.Warn(words, "is_for", strings.Join(slices.Concat(r.certs[0].DNSNames, hostsOf(r.certs[0])), ", "))
			c.note(words)
		}
	}
}

// warnOfNode says that the certificate for other nodes does not name this node, so that each of them may speak for it.
// Only the start calls it.
func (c *certificates) warnOfNode(name string, rule trust.Names) {
	for _, r := range *c.held.Load() {
		if r.setting == "cluster-tls-cert" && rule != trust.NamesIgnored && !trust.Speaks(r.certs[0], name) {
			c.log.Warn("the certificate "+r.name+" of cluster-tls-cert does not name this node: whoever has the certificate "+
				"of another node can speak for this one, and with cluster-tls-names = required the others refuse it; nothing "+
				"that is stored is affected; make certificates with the nodes' names (penstock cluster init-tls does), or say "+
				"cluster-tls-names = ignored", "node", name, "subject", r.certs[0].Subject.CommonName)
		}
	}
}

func hostsOf(c *x509.Certificate) (hosts []string) {
	for _, ip := range c.IPAddresses {
		hosts = append(hosts, ip.String())
	}
	return hosts
}

// tell writes into the log which certificates end soon and which nobody takes: when that begins, and once a day.
func (c *certificates) tell(now time.Time) {
	for _, one := range c.at(now) {
		of, was := one.At(now), c.told[one.Setting]
		switch {
		case of == health.CertificateValid:
			delete(c.told, one.Setting)
			continue
		case of == was.of && now.Sub(was.at) < remindEvery && !now.Before(was.at):
			continue
		case of == health.CertificateEnding:
			c.log.Warn(one.Words(now))
		default:
			c.log.Error(one.Words(now))
		}
		c.told[one.Setting] = reminded{now, of}
	}
}

// begin reads the files before the node starts, and says in the start's stages which certificate nobody takes: the node
// may not find the others because of it.
func (c *certificates) begin(startup *health.Startup) {
	c.read()
	c.startup = startup
	now := time.Now()
	c.tell(now)
	for _, one := range c.at(now) {
		if one.At(now) >= health.CertificateNotYet {
			c.note(one.Words(now))
		}
	}
}

func (c *certificates) note(words string) {
	c.noted = append(c.noted, words)
	c.startup.Note(strings.Join(c.noted, "; "))
}
