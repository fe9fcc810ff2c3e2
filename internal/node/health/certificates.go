package health

import (
	"fmt"
	"strings"
	"time"
)

// CertificateNotice is how long before its end a certificate is spoken of.
const CertificateNotice = 30 * 24 * time.Hour

// Certificate is a file of certificates that this node uses, or what another node showed last.
type Certificate struct {
	Setting, File string    // the setting that names the file; "": another node showed it
	From, Until   time.Time // by the wall clock: nobody takes it before and after
}

// Validity is what the wall clock says of a certificate.
type Validity uint8

// From good to bad.
const (
	CertificateValid  Validity = iota
	CertificateEnding          // within CertificateNotice
	CertificateNotYet
	CertificateEnded
)

// At returns the validity at a moment of the wall clock.
func (c *Certificate) At(now time.Time) Validity {
	switch left := c.Until.Sub(now); {
	case left <= 0:
		return CertificateEnded
	case now.Before(c.From):
		return CertificateNotYet
	case left <= CertificateNotice:
		return CertificateEnding
	}
	return CertificateValid
}

// Words says that a certificate of this node ends, has ended or is not valid yet, what that means, and what to do; "":
// it is valid.
func (c *Certificate) Words(now time.Time) string {
	what := fmt.Sprintf("the certificate %s of %s", c.File, c.Setting)
	switch c.At(now) {
	case CertificateEnding:
		return fmt.Sprintf("%s ends in %s, at %s, and is refused then: put a new one in its place, which the node reads by "+
			"itself", what, span(c.Until.Sub(now)), moment(c.Until))
	case CertificateEnded:
		return fmt.Sprintf("%s ended %s ago, at %s: new connections that need it are refused, and what is stored is not "+
			"affected; put a new one in its place, which the node reads by itself", what, span(now.Sub(c.Until)),
			moment(c.Until))
	case CertificateNotYet:
		return fmt.Sprintf("%s is not valid before %s, and this machine's clock says %s: new connections that need it are "+
			"refused, and what is stored is not affected; correct the clock, or put another certificate in its place",
			what, moment(c.From), moment(now))
	}
	return ""
}

// moment writes a moment of the wall clock.
func moment(t time.Time) string { return t.UTC().Format("2006-01-02 15:04 UTC") }

// span writes a time in days, if there are several.
func span(d time.Duration) string {
	if days := int(d.Hours() / 24); days > 1 {
		return plural(days, "day")
	}
	return Age(d)
}

// refused lists the certificates of this node that nobody takes now.
func (f *Facts) refused() (all []string) {
	for i := range f.Certificates {
		if c := &f.Certificates[i]; c.At(f.Wall) >= CertificateNotYet {
			all = append(all, c.Words(f.Wall))
		}
	}
	return all
}

// certificatesNote says which certificates of this node end soon.
func certificatesNote(f *Facts) (note string) {
	for i := range f.Certificates {
		if c := &f.Certificates[i]; c.At(f.Wall) == CertificateEnding {
			note += "; " + c.Words(f.Wall)
		}
	}
	return note
}

// CountCertificates returns how many certificates end soon, and how many nobody takes now.
func CountCertificates(all []Certificate, now time.Time) (ending, refused int) {
	for i := range all {
		switch v := all[i].At(now); {
		case v == CertificateEnding:
			ending++
		case v >= CertificateNotYet:
			refused++
		}
	}
	return ending, refused
}

// deadWords says which nodes are dead, and of which of them the certificates that they showed last are not valid now.
func (c *Cluster) deadWords() string {
	words := nodes(c.Dead) + " dead"
	if len(c.DeadCertificates) > 0 {
		words += " (" + strings.Join(c.DeadCertificates, "; ") + ")"
	}
	return words
}

// shownWords says why nobody takes the certificate that a node showed last; "": it is valid, or none is known.
func (v *View) shownWords(name string, shown *Certificate) string {
	if shown == nil {
		return ""
	}
	switch shown.At(v.Wall) {
	case CertificateEnded:
		return fmt.Sprintf("the certificate that node %s showed last ended at %s: give it a new one", name,
			moment(shown.Until))
	case CertificateNotYet:
		return fmt.Sprintf("the certificate that node %s showed last is not valid before %s, and this machine's clock says "+
			"%s: correct the clock, or give it another one", name, moment(shown.From), moment(v.Wall))
	}
	return ""
}
